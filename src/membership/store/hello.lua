-- SPDX-License-Identifier: Apache-2.0
--
-- Which group, view and life a member finds again, and what this server takes from its record.

local function read_record(n)
	local rec = { s = {}, m = {}, o = {}, u = {}, l = {}, e = {}, w = {} }
	for i = 1, math.min(n, #ARGV) do
		local field, value = arg(2 * i), arg(2 * i + 1)
		local p = field:sub(1, 1)
		if field:byte(2) == 58 then
			if rec[p] then rec[p][num(field:sub(3))] = value end
		else
			rec.s[field] = value
		end
	end
	rec.epoch = num(rec.s.epoch)
	rec.active = rec.s.ph == 'run' or (rec.s.act ~= nil and rec.s.act == rec.s.epoch)
	return rec
end

-- Is view (epoch, vid) the last view of @l, or an ancestor of that?
local function in_line(l, epoch, vid) return epoch > 0 and word(l[epoch], 1) == vid end

local function take(rec)
	local kin = num(h.epoch) == 0 or in_line(rec.l, num(h.epoch), h.vid)
	local incs = math.max(num(rec.s.incs), num(INC))
	drop(kin and 'moulewrkb' or 'moulewrkbc')
	for _, f in ipairs({ 'proto', 'gid', 'secret', 'max', 'policy', 'world', 'job', 'alike', 'old', 'epoch', 'vid', 'base', 'fail', 'stamp', 'size' }) do
		if rec.s[f] then set(f, rec.s[f]) end
	end
	for p in ('moulew'):gmatch('.') do
		for r, v in pairs(rec[p]) do put(p, r, v) end
	end
	for r, v in pairs(g.m) do
		incs = math.max(incs, num(word(v, 1)))
		put('j', r, nil) -- the rank is held: a process that asks for it gets BUSY
	end
	pass(incs)
	set('ph', rec.active and 'run' or 'inst')
	if rec.active then
		set('act', h.epoch)
		voters_are_admitted()
	else
		set('act', '0')
		put('u', rec.epoch, admitted())
	end
	count()
	moved = true
end

local function hello_joiner()
	if not h.gid then return { 'GONE' } end
	if h.ph == 'closed' and h.fault then return called_off() end
	if h.ph == 'form' and LIFE ~= h.gen and life_number(h.gen) <= life_number(LIFE) then new_life(life_number(LIFE)) end
	local r = num(RANK)
	local listed = GID == h.gid and member_inc(r) == INC -- by a view that it has not heard of, and that may wait for it
	if not listed and (joiner_inc(r) ~= INC or word(g.j[r], 2) ~= NONCE or g.m[r]) then return reply('GONE') end
	note_hello()
	return full('OK')
end

local function start_over(rec) -- the server was emptied, or another group took the name while this one was alive
	local number = math.max(life_number(LIFE), life_number(h.gen or '-'))
	wipe()
	L = server_name()
	new_life(number)
	take(rec)
end

-- Did the caller's group succeed the group in this hash, an older copy? `yes`, `no`, or `later`: a process of the older
-- group may still call.
local function succeeds(rec)
	if GID == h.gid or is_old(GID) or not lists(rec.s.old, h.gid) then return 'no' end
	for r, v in pairs(g.t) do -- a joiner is no sign of the older group: it asks whoever has the name
		if not g.j[r] and num(word(v, 1)) > num(h.since) then return 'no' end
	end
	return (h.ph == 'closed' or server_ms() - num(h.since) > FORGET_MS) and 'yes' or 'later'
end

script.hello = function()
	local rec = read_record(num(arg(1)))
	if rec.epoch == 0 then return hello_joiner() end
	if not lists_me(rec.m) then return reply('FENCED', 'why', 'the caller is not in its own view') end
	local takes_back = GID ~= h.gid and h.ph == 'form' and rec.active and not is_old(GID)
	local later = h.gid and not takes_back and succeeds(rec) or 'no'
	if later == 'later' then return reply('LIFE', 'why', 'the name is that of a group before, and somebody of it may speak yet') end
	if not h.gid or takes_back or later == 'yes' then
		start_over(rec)
	elseif GID ~= h.gid then
		return reply('FENCED', 'why', 'the name belongs to another group now')
	elseif LIFE ~= h.gen and life_number(h.gen) <= life_number(LIFE) then
		new_life(life_number(LIFE)) -- this server missed something
	end
	local mine, epoch = rec.active and 1 or 0, num(h.epoch)
	local held = active() and 1 or 0
	if rec.epoch == epoch and rec.s.vid == h.vid and mine > held then
		pass(rec.s.incs)
		activate()
	elseif epoch == 0 or rec.epoch > epoch or (rec.epoch == epoch and mine > held) then
		take(rec)
	elseif not in_line(g.l, rec.epoch, rec.s.vid) then
		return reply('FENCED', 'why', 'the group went on without the view that this rank has learned')
	elseif not lists_me(g.m) then
		return reply('FENCED', 'why', 'a later view is without this rank')
	end
	note_hello()
	return full(h.ph == 'closed' and 'CLOSED' or 'OK')
end
