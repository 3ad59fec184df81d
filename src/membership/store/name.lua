-- SPDX-License-Identifier: Apache-2.0
--
-- Which group has the name: may the process that registers join it, or form another one?

local function lists(text, w) -- is @w a word of @text?
	return text and (' ' .. text .. ' '):find(' ' .. w .. ' ', 1, true) ~= nil
end

-- Earlier groups of this name. `old`: they have ended for certain, and this group's members may tell any server so.
-- `quiet`: this server heard nothing of them.
local function is_old(gid) return lists(h.old, gid) or lists(h.quiet, gid) end

local function remember(field, gid)
	local list = {}
	for w in (h[field] or ''):gmatch('%S+') do list[#list + 1] = w end
	list[#list + 1] = gid
	set(field, table.concat(list, ' ', math.max(1, #list - OLD_LIVES + 1)))
end

local function wipe()
	erased = erased or h.gid ~= nil
	h, whole, news = {}, true, nil
	for field in pairs(changes) do changes[field] = nil end
	for p in pairs(g) do clear(p) end
end

local function create(a)
	set('proto', PROTO)
	set('gid', RND)
	set('secret', a.secret)
	set('max', str(a.max))
	set('policy', a.policy == 'manual' and 'manual' or 'auto')
	set('world', str(a.world))
	set('job', a.job)
	set('alike', #a.alike > 0 and table.concat(a.alike, ' ') or '-')
	set('incs', '0')
	set('ph', 'form')
	set('epoch', '0')
	set('vid', '-')
	set('act', '0')
	set('base', '1')
	set('fail', '0')
	set('stamp', '0')
	set('size', '0')
	L = server_name()
	new_life(0)
	set('incs', '0') -- a new group: no server can have given out any
end

-- The arguments of register: the process that asks for a rank, and its findings about processes in its way.
local function applicant()
	local a = { want = arg(1), addr = one_word(arg(2)), host = one_word(arg(3)), first = arg(4) == '1',
		    world = num(arg(5)), max = num(arg(6)), policy = arg(7), secret = arg(8), job = one_word(arg(9)),
		    age = tonumber(arg(10)), lapse = num(arg(11)), gone = arg(12), gids = arg(13), tell = arg(14) == '1',
		    alike = {} }
	for i = 15, #ARGV - COMMON do a.alike[#a.alike + 1] = one_word(arg(i)) end
	if a.lapse > 0 then a.lapse = math.max(a.lapse, FORGET_MS) end
	return a
end

-- Was rank r silent for @lapse ms? Never if @lapse is 0. Silence before this life does not count: the server was away.
local function silent(r, lapse, now)
	return lapse > 0 and now - math.max(num(word(g.t[r], 1)), num(h.since)) > lapse
end

-- rank -> inc of members, voters and joiners that may be alive.
local function living(lapse)
	local list, now = {}, server_ms()
	local function add(r, inc)
		if not same_inc('d', r, inc) and not silent(r, lapse, now) then list[r] = inc end
	end
	if num(h.epoch) == 0 and h.ph ~= 'form' then -- the view was dropped: every rank with a beat may be in it
		for r in pairs(g.t) do add(r, '?') end
	end
	for _, voters in pairs(g.u) do
		for r, inc in each_pair(voters) do add(num(r), inc) end
	end
	for r, inc in pairs(g.o) do add(r, inc) end
	for r in pairs(g.m) do add(r, member_inc(r)) end
	for r in pairs(g.j) do add(r, joiner_inc(r)) end
	return list
end

-- Makes the hash a new group. The earlier group of this name has ended: its processes are dead or have left. If they
-- are only silent, one of them may still take the name back until the new group is formed.
local function begin(a)
	if a.max < 1 or a.max > MAX_RANKS or a.world < 1 or a.world > a.max then
		return { 'ERROR', 'why', 'a new group needs 1 <= world <= max_ranks <= 4096, not ' .. arg(5) .. ' and ' .. arg(6) }
	end
	local gid, old, quiet, incs, prev = h.gid, h.old, h.quiet, h.incs, h.prev
	local unsure = gid and h.ph ~= 'closed' and h.ph ~= 'form' and next(living(0)) ~= nil
	if gid then wipe() end
	create(a)
	if not gid then return nil end
	set('incs', incs) -- a late message about an incarnation of the old group must match none of this one
	if old then set('old', old) end
	if quiet then set('quiet', quiet) end
	if unsure then
		set('prev', gid)
	else
		remember('old', gid)
		if prev then set('prev', prev) end -- never formed in between
	end
	return nil
end

-- A process forms a group and the name is in use: nil if it may have a rank, else the reply.
local function compete(a)
	if h.ph ~= 'form' then
		local list = living(a.lapse)
		if next(list) then return taken('run', formed_by_others(a), list) end
		return begin(a)
	end
	local kind, err, why, list = conflict(a)
	if not kind then return nil end
	local alive = living(a.lapse)
	if kind == 'rank' then
		for r in pairs(list or g.j) do
			if not alive[r] then note('j', r, nil) end
		end
		kind, err, why, list = conflict(a)
		if not kind then return nil end
	elseif not next(alive) then
		return begin(a)
	end
	if a.tell and kind ~= 'job' then return call_off(err, why) end
	return taken(kind, why, list or alive)
end

local function gids_of(a) return a.gids:gmatch('[^,]+') end

-- Was the process in this group before, and did the group lose it?
local function came_back(a)
	for gid in gids_of(a) do
		if gid == h.gid then return true end
	end
	return false
end

-- Was the process started before the fault was found? Then it is one of the founders in conflict.
local function shares_fault(a)
	local at = (h.fault or ''):match('^(%d+)')
	local now = server_ms()
	return at and a.age and now >= num(at) and now - a.age < num(at) and not other_job(a)
end

-- A process that forms no group, while one is being formed: it may only stand in for a founder that is dead.
local function stand_in(a)
	if other_job(a) then return reply('BUSY', 'why', 'job ' .. h.job .. ' is forming the group, this process is of job ' .. a.job) end
	local r = a.want ~= 'any' and num(a.want)
	if not r or not living(a.lapse)[r] then return nil end
	return taken('rank', 'rank ' .. a.want .. ' is a founder, ' .. process(a.want, word(g.j[r], 3)), { [r] = joiner_inc(r) })
end

local function enter(a) -- nil: the applicant may have a rank of the group in the hash
	if not h.gid then
		if not a.first then return { 'GONE' } end
		return begin(a)
	end
	for gid in gids_of(a) do
		if gid == h.prev and not a.first then return reply('BUSY', 'why', 'its group is silent, and another one forms under the name') end
		if is_old(gid) then
			return reply('CLOSED', 'why', 'the group that this process was to join has ended, and another one has its name now')
		end
	end
	if h.ph == 'closed' then
		if shares_fault(a) then return called_off() end
		if a.first and not came_back(a) then return begin(a) end
		return reply('CLOSED', 'why', 'the group was closed by its last member')
	end
	if a.first and (h.ph == 'form' or not came_back(a)) then return compete(a) end
	local name, theirs, ours = unlike(a)
	if name then
		return reply('REFUSED', 'err', 'INVAL', 'why', name .. ' is ' .. shown(theirs, ours) .. ' in the group and ' ..
			shown(ours, theirs) .. ' in ' .. process(a.want, a.addr) .. ': all ranks need the same')
	end
	return h.ph == 'form' and stand_in(a) or nil
end
