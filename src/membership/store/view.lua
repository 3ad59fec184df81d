-- SPDX-License-Identifier: Apache-2.0
-- When a change is decided, and what the next view is.

local STAMP_STEP = 5         -- 1 + 2D: no stamp of the old view is used again
local STAMP_MAX = 2147483648 -- stamps restart above it: members have 32 bits for them

local function failed_at(list, kept, base)
	local fail
	for rank in pairs(kept) do
		local member = list[rank]
		if member.from ~= '-' then
			-- MISMATCH wins over LOST: it is the cause. If others are past that call, base fails with it.
			if has_flag(member, 'm') then return 'MISMATCH' end
			if member.report.entered == base and has_flag(member, 's') then fail = 'LOST' end
		end
	end
	return fail
end

-- Notes that a rank left or was retired, and when. Only readers from outside use it; no decision depends on it.
local function note_left(rank, inc)
	put(of.departed, rank, join(inc, is_marked(rank, inc, 'retire') and 'retired' or 'left', str(server_ms())))
end

local function write_view(list, kept, entering)
	local removed, added, other = {}, {}, {} -- other: kept, with another `from`
	for rank, member in pairs(list) do
		if not kept[rank] then
			removed[rank] = true
			-- A vow to leave outlives the report: the member that gave it never decides again.
			if has_flag(member, 'l') then
				put(of.proven, rank, join(member.inc, str(rank), 'left'))
				note_left(rank, member.inc)
			end
			put(of.members, rank, nil)
		else
			local was = of.members[rank]
			put(of.members, rank, join(member.inc, member.from, member.addr, member.host))
			if of.members[rank] ~= was then other[rank] = true end
			if member.came and member.from ~= '-' then note(of.invited, rank, nil) end
		end
	end
	for rank in pairs(entering) do
		local inc, _, addr, host = first_four(of.joiners[rank])
		put(of.members, rank, join(inc, '-', addr, host))
		note(of.joiners, rank, nil)
		put(of.departed, rank, nil)
		added[rank], other[rank] = true, true
	end
	set({ moved = str(num(group.epoch) + 1) .. ' ' .. ranks(other) })
	for rank in pairs(removed) do
		if not same_inc(of.marked, rank, member_inc(rank)) then note(of.marked, rank, nil) end
	end
	return removed, added
end

local function new_epoch(removed, added, laggards)
	local KEEP_EPOCHS = 16 -- epochs with an l: field
	local epoch = num(group.epoch) + 1
	set({ epoch = str(epoch), vid = RND:sub(17, 32), ph = 'inst' })
	put(of.lineage, epoch, join(group.vid, ranks(removed), ranks(added), ranks(laggards)))
	for old in pairs(of.lineage) do
		if old <= epoch - KEEP_EPOCHS then changes[field_of(of.lineage, old)] = false end
	end
	drop(of.reports, of.acks, of.complaints, of.accused)
	count()
	tell, news = true, 'record'
end

-- The last operation that a kept member completed, -1 if nobody admitted is kept, and the highest stamp.
local function newest(list, kept)
	local done, stamp = -1, num(group.stamp)
	for rank in pairs(kept) do
		stamp = math.max(stamp, list[rank].report.stamp)
		if list[rank].from ~= '-' then done = math.max(done, list[rank].report.done) end
	end
	return done, stamp
end

local function close(list) -- nobody admitted is left, or no number for another view
	set({ ph = 'closed' })
	tell = true
	for rank, member in pairs(list) do
		if has_flag(member, 'l') then note_left(rank, member.inc) end
	end
	return 'CLOSED'
end

local function commit(list, kept)
	local done, stamp = newest(list, kept)
	if done < 0 or num(group.epoch) >= EPOCH_MAX then return close(list) end
	local base, size, laggards, entering = done + 1, num(group.size), {}, {}
	for rank in pairs(kept) do
		local member = list[rank]
		if num(member.from) >= base then member.from = '-' end -- its ADMIT was not completed by anybody kept
		if member.from ~= '-' then
			size = math.max(size, rank + 1)
			if member.report.done < base - 1 then laggards[rank] = true end
		end
	end
	for rank in pairs(of.joiners) do
		-- one proof a rank: its old voter leaves first
		if not kept[rank] and may_enter(rank) and not of.voters[rank] then entering[rank] = true end
	end
	local fail = failed_at(list, kept, base)
	set({ size = str(size), fail = fail and str(base) .. ' ' .. fail or '0', base = str(fail and base + 1 or base),
	      stamp = str((stamp < STAMP_MAX and stamp or 0) + STAMP_STEP) })
	local removed, added = write_view(list, kept, entering)
	new_epoch(removed, added, laggards)
	return 'COMMIT'
end

local function anybody_awaited(list, force)
	for rank, member in pairs(list) do
		local given_up_on = force >= 1 and same_inc(of.accused, rank, member.inc)
		if not member.report and not same_inc(of.proven, rank, member.inc) and not given_up_on then return true end
	end
	return false
end

rules.settle = function(force)
	local list = read_members()
	if force < 2 and anybody_awaited(list, force) then
		count()
		return 'WAIT'
	end
	local kept, any_complaints = reporters_kept(list)
	-- More complaints usually follow the first. Deciding on a half-noticed partition keeps members of both halves.
	if any_complaints and force < 2 then return 'WAIT' end
	admit(list, kept)
	local need = no_quorum(list, kept)
	-- Others died since: evicted members stay while they are needed, and then accused joiners.
	for _, with_accused in ipairs({ false, true }) do
		local more = need and reporters_kept(list, true)
		if more then
			admit(list, more, with_accused)
			if not no_quorum(list, more) then kept, need = more, nil end
		end
	end
	if need then return 'NOQUORUM', 'need', ranks(need) end
	return commit(list, kept)
end

rules.missing_acks = function()
	local missing = {}
	for rank in pairs(of.members) do
		if of.acks[rank] ~= member_inc(rank) then missing[rank] = true end
	end
	if not next(missing) then return nil end
	count()
	return ranks(missing)
end

-- All members have acknowledged. If a member's report says so, a change may be open: its reports are kept.
rules.activate = function()
	voters_are_admitted()
	drop(of.acks)
	for rank in pairs(of.proven) do
		if not same_inc(of.proven, rank, member_inc(rank)) then changes[field_of(of.proven, rank)] = false end
	end
	set({ act = group.epoch })
	if group.ph ~= 'inst' then return end
	set({ ph = 'run' })
	tell, news = true, news or 'state'
	open_for_joiners() -- those that became ready while acknowledgements were missing
end

-- A proof of death, from wherever it comes.
local function bury(rank, inc, kind)
	tell = true
	if joiner_inc(rank) == inc then note(of.joiners, rank, nil) end
	if may_decide(rank, inc) then
		prove(rank, inc, RANK, kind)
		if member_inc(rank) == inc then start_change() end -- a repeat after the commit opens nothing
		if group.ph == 'open' and num(group.epoch) > 0 then decide(0) end -- it may be the last thing that was waited for
	end
end

script.prove = function()
	bury(num(arg(1)), arg(2), arg(3))
	return reply('OK')
end
