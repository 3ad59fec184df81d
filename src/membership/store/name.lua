-- SPDX-License-Identifier: Apache-2.0
-- Which group has the name: may the process that registers join it, or form another one?

-- Is @w a word of @text?
local function lists(text, w) return text and (' ' .. text .. ' '):find(' ' .. w .. ' ', 1, true) ~= nil end

-- Earlier groups of this name. `old`: they have ended for certain, and this group's members may tell any server so.
-- `quiet`: this server heard nothing of them.
local function is_old(gid) return lists(group.old, gid) or lists(group.quiet, gid) end

local function remember(field, gid)
	local OLD_LIVES = 16 -- ended groups of this name that are remembered
	local list = words(group[field])
	list[#list + 1] = gid
	set({ [field] = table.concat(list, ' ', math.max(1, #list - OLD_LIVES + 1)) })
end

local function wipe()
	erased = erased or group.gid ~= nil
	for _, kind in pairs(of) do
		for rank in pairs(kind) do kind[rank] = nil end
	end
	group, whole, news, changes = {}, true, nil, {}
end

local function create(asker)
	set({ proto = PROTO, gid = RND, secret = asker.secret, max = str(asker.max), world = str(asker.world),
	      policy = asker.policy == 'manual' and 'manual' or 'auto', job = asker.job,
	      alike = or_dash(table.concat(asker.alike, ' ')), ph = 'form', epoch = '0', vid = '-', act = '0', base = '1',
	      fail = '0', stamp = '0', size = '0' })
	new_life(0)
	set({ incs = '0' }) -- a new group: no server can have given out any
end

-- rank -> inc of members, voters and joiners that may be alive: not those that were silent for @lapse ms, unless @lapse
-- is 0. Silence before this life does not count: the server was away.
local function living(lapse)
	local list, now = {}, server_ms()
	local function may_live(rank, inc)
		local silent = lapse > 0 and now - math.max(num(inc_of(of.beats, rank)), num(group.since)) > lapse
		if not same_inc(of.proven, rank, inc) and not silent then list[rank] = inc end
	end
	if num(group.epoch) == 0 and group.ph ~= 'form' then -- the view was dropped: every rank with a beat may be in it
		for rank in pairs(of.beats) do may_live(rank, '?') end
	end
	for _, text in pairs(of.doubted) do
		for rank, inc in each_pair(text) do may_live(rank, inc) end
	end
	for _, kind in ipairs({ of.voters, of.members, of.joiners }) do
		for rank in pairs(kind) do may_live(rank, inc_of(kind, rank)) end
	end
	return list
end

-- Makes the hash a new group. The earlier group of this name has ended: its processes are dead or have left. If they
-- are only silent, one of them may still take the name back until the new group is formed.
local function begin(asker)
	if asker.max < 1 or asker.max > MAX_RANKS or asker.world < 1 or asker.world > asker.max then
		return failed('a new group needs 1 <= world <= max_ranks <= 4096, not ' .. arg(5) .. ' and ' .. arg(6))
	end
	local was = group.gid and group
	local unsure = was and was.ph ~= 'closed' and was.ph ~= 'form' and next(living(0)) ~= nil
	if was then wipe() end
	create(asker)
	if not was then return end
	-- A late message about an incarnation of the old group must match none of this one. was.prev: no group was formed since.
	set({ incs = was.incs, old = was.old, quiet = was.quiet, prev = unsure and was.gid or was.prev })
	if not unsure then remember('old', was.gid) end
end

-- A process forms a group and the name is in use: nil if it may have a rank, else the reply.
local function compete(asker)
	local kind, err, why, list
	if group.ph == 'form' then
		kind, err, why, list = conflict(asker)
		if not kind then return nil end
	end
	local alive = living(asker.lapse)
	if not kind and next(alive) then return taken('run', formed_by_others(asker), alive) end
	if kind ~= 'rank' and not next(alive) then return begin(asker) end
	if kind == 'rank' then
		for rank in pairs(list or of.joiners) do
			if not alive[rank] then note(of.joiners, rank, nil) end
		end
		kind, err, why, list = conflict(asker)
		if not kind then return nil end
	end
	if asker.tell and kind ~= 'job' then return call_off(err, why) end
	return taken(kind, why, list or alive)
end

-- Was the process started before the fault was found? Then it is one of the founders in conflict.
local function shares_fault(asker)
	local at, now = (group.fault or ''):match('^(%d+)'), server_ms()
	return at and asker.age and now >= num(at) and now - asker.age < num(at) and not other_job(asker)
end

-- A process that forms no group, while one is being formed: it may only stand in for a founder that is dead.
local function stand_in(asker)
	if other_job(asker) then
		return reply('BUSY', 'why', 'job ' .. group.job .. ' is forming the group, this process is of job ' .. asker.job)
	end
	local rank = asker.rank
	if not rank or not living(asker.lapse)[rank] then return nil end
	return taken('rank', 'rank ' .. asker.want .. ' is a founder, ' .. process(asker.want, word(of.joiners[rank], 3)),
		     { [rank] = joiner_inc(rank) })
end

local function enter(asker) -- nil: the applicant may have a rank of the group in the hash
	if not group.gid and not asker.first then return { 'GONE' } end
	if not group.gid then return begin(asker) end
	local came_back = false -- the process was in this group before, and the group lost it
	for gid in asker.gids:gmatch('[^,]+') do
		if gid == group.prev and not asker.first then
			return reply('BUSY', 'why', 'its group is silent, and another one forms under the name')
		end
		if is_old(gid) then
			return reply('CLOSED', 'why', 'the group that this process was to join has ended, and another one has its name now')
		end
		came_back = came_back or gid == group.gid
	end
	if group.ph == 'closed' then
		if shares_fault(asker) then return called_off() end
		if asker.first and not came_back then return begin(asker) end
		return reply('CLOSED', 'why', 'the group was closed by its last member')
	end
	if asker.first and (group.ph == 'form' or not came_back) then return compete(asker) end
	local name, theirs, ours = unlike(asker)
	if name then
		return reply('REFUSED', 'err', 'INVAL', 'why', values_differ(name, theirs, ours, 'the group', asker) .. 'ranks need the same')
	end
	return group.ph == 'form' and stand_in(asker) or nil
end
