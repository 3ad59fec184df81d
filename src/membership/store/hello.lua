-- SPDX-License-Identifier: Apache-2.0
-- Which group, view and life a member finds again, and what this server takes from its record.

local function read_record(n)
	local rec = { scalars = {} }
	for letter in RECORD:gmatch('.') do rec[of[letter]] = {} end
	for i = 1, math.min(n, #ARGV) do
		local field, value = arg(2 * i), arg(2 * i + 1)
		local ranked = field:byte(2) == 58
		local kind = rec[ranked and of[field:sub(1, 1)] or '']
		if kind then kind[num(field:sub(3))] = value elseif not ranked then rec.scalars[field] = value end
	end
	rec.epoch, rec.vid = num(rec.scalars.epoch), rec.scalars.vid
	rec.active = rec.scalars.ph == 'run' or (rec.scalars.act ~= nil and rec.scalars.act == rec.scalars.epoch)
	return rec
end

-- Is view (epoch, vid) the last view of @line, or an ancestor of that?
local function in_line(line, epoch, vid) return epoch > 0 and word(line[epoch], 1) == vid end

local function take(rec)
	local kin = num(group.epoch) == 0 or in_line(rec[of.lineage], num(group.epoch), group.vid)
	local incs = math.max(num(rec.scalars.incs), num(INC))
	drop(of.members, of.voters, of.doubted, of.lineage, of.marked, of.invited, of.reports, of.acks, of.complaints)
	if not kin then drop(of.hellos) end
	for _, field in ipairs({ 'proto', 'gid', 'secret', 'max', 'policy', 'world', 'job', 'alike', 'old', 'epoch', 'vid', 'base', 'fail', 'stamp', 'size' }) do
		set({ [field] = rec.scalars[field] })
	end
	for letter in RECORD:gmatch('.') do
		for rank, value in pairs(rec[of[letter]]) do put(of[letter], rank, value) end
	end
	for rank in pairs(of.members) do
		incs = math.max(incs, num(member_inc(rank)))
		put(of.joiners, rank, nil) -- the rank is held: a process that asks for it gets BUSY
	end
	pass(incs)
	set({ ph = rec.active and 'run' or 'inst', act = rec.active and group.epoch or '0' })
	if rec.active then voters_are_admitted() else put(of.doubted, rec.epoch, admitted()) end
	count()
	moved = true
end

-- This server missed something: its next life has a number above that of the caller's.
local function catch_up()
	if LIFE ~= group.gen and life_number(group.gen) <= life_number(LIFE) then new_life(life_number(LIFE)) end
end

local function hello_joiner()
	if not group.gid then return { 'GONE' } end
	if group.ph == 'closed' and group.fault then return called_off() end
	if group.ph == 'form' then catch_up() end
	local rank = num(RANK)
	local listed = GID == group.gid and is_me(of.members) -- by a view that it has not heard of, and that may wait for it
	if not listed and (not is_me(of.joiners) or word(of.joiners[rank], 2) ~= NONCE or of.members[rank]) then return reply('GONE') end
	note_hello()
	return full('OK')
end

local function start_over(rec) -- the server was emptied, or another group took the name while this one was alive
	local number = math.max(life_number(LIFE), life_number(group.gen))
	wipe()
	new_life(number)
	take(rec)
end

-- Did the caller's group succeed the group in this hash, an older copy? `yes`, `no`, or `later`: a process of the older
-- group may still call.
local function succeeds(rec)
	if GID == group.gid or is_old(GID) or not lists(rec.scalars.old, group.gid) then return 'no' end
	for rank in pairs(of.beats) do -- a joiner is no sign of the older group: it asks whoever has the name
		if not of.joiners[rank] and num(inc_of(of.beats, rank)) > num(group.since) then return 'no' end
	end
	return (group.ph == 'closed' or server_ms() - num(group.since) > FORGET_MS) and 'yes' or 'later'
end

script.hello = function()
	local rec = read_record(num(arg(1)))
	if rec.epoch == 0 then return hello_joiner() end
	local function fenced(why) return reply('FENCED', 'why', why) end
	if not is_me(rec[of.members]) then return fenced('the caller is not in its own view') end
	local takes_back = GID ~= group.gid and group.ph == 'form' and rec.active and not is_old(GID)
	local later = group.gid and not takes_back and succeeds(rec) or 'no'
	if later == 'later' then return reply('LIFE', 'why', 'the name is that of a group before, and somebody of it may speak yet') end
	if not group.gid or takes_back or later == 'yes' then
		start_over(rec)
	elseif GID ~= group.gid then
		return fenced('the name belongs to another group now')
	else
		catch_up()
	end
	local epoch, more = num(group.epoch), rec.active and not active() -- the caller knows more of this view
	if rec.epoch == epoch and rec.vid == group.vid and more then
		pass(rec.scalars.incs)
		rules.activate()
	elseif epoch == 0 or rec.epoch > epoch or (rec.epoch == epoch and more) then
		take(rec)
	elseif not in_line(of.lineage, rec.epoch, rec.vid) then
		return fenced('the group went on without the view that this rank has learned')
	elseif not is_me(of.members) then
		return fenced('a later view is without this rank')
	end
	note_hello()
	return full(group.ph == 'closed' and 'CLOSED' or 'OK')
end
