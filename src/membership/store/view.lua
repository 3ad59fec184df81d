-- SPDX-License-Identifier: Apache-2.0
--
-- When a change is decided, and what the next view is.

local function failed_at(mem, T, base)
	local fail
	for r in pairs(T) do
		local m = mem[r]
		if m.from ~= '-' then
			-- MISMATCH wins over LOST: it is the cause. If others are past that call, base fails with it.
			if has_flag(m.rep, 'm') then return 'MISMATCH' end
			if m.rep.ent == base and has_flag(m.rep, 's') then fail = 'LOST' end
		end
	end
	return fail
end

-- Notes that a rank left or was retired, and when. Only readers from outside use it; no decision depends on it.
local function note_left(r, inc)
	local why = same_inc('e', r, inc) and word(g.e[r], 2) == 'retire' and 'retired' or 'left'
	put('q', r, inc .. ' ' .. why .. ' ' .. str(server_ms()))
end

local function write_view(mem, T, J)
	local removed, added, other = {}, {}, {} -- other: kept, with another `from`
	for r, m in pairs(mem) do
		if not T[r] then
			removed[r] = true
			-- A vow to leave outlives the report: the member that gave it never decides again.
			if has_flag(m.rep, 'l') then
				put('d', r, m.inc .. ' ' .. str(r) .. ' left')
				note_left(r, m.inc)
			end
			put('m', r, nil)
		else
			local was = g.m[r]
			put('m', r, m.inc .. ' ' .. m.from .. ' ' .. m.addr .. ' ' .. m.host)
			if g.m[r] ~= was then other[r] = true end
			if m.came and m.from ~= '-' and g.w[r] then note('w', r, nil) end
		end
	end
	for r in pairs(J) do
		local inc, _, addr, host = g.j[r]:match('^(%S+) (%S+) (%S+) (%S+)')
		put('m', r, inc .. ' - ' .. addr .. ' ' .. host)
		note('j', r, nil)
		put('q', r, nil)
		added[r], other[r] = true, true
	end
	set('moved', str(num(h.epoch) + 1) .. ' ' .. ranks(other))
	for r in pairs(removed) do
		if g.e[r] and not same_inc('e', r, member_inc(r)) then note('e', r, nil) end
	end
	return removed, added
end

local function new_epoch(removed, added, lag)
	local epoch = num(h.epoch) + 1
	set('epoch', str(epoch))
	set('vid', RND:sub(17, 32))
	put('l', epoch, h.vid .. ' ' .. ranks(removed) .. ' ' .. ranks(added) .. ' ' .. ranks(lag))
	for e in pairs(g.l) do
		if e <= epoch - KEEP_EPOCHS then changes['l:' .. str(e)] = false end
	end
	drop('rkbx')
	count()
	set('ph', 'inst')
	tell, news = true, 'record'
end

local function commit(mem, T)
	local done, stamp, size = -1, num(h.stamp), num(h.size)
	for r in pairs(T) do
		local m = mem[r]
		stamp = math.max(stamp, m.rep.stamp)
		if m.from ~= '-' then done = math.max(done, m.rep.done) end
	end
	if done < 0 or num(h.epoch) >= EPOCH_MAX then -- nobody admitted is left, or no number for another view
		set('ph', 'closed')
		tell = true
		for r, m in pairs(mem) do
			if has_flag(m.rep, 'l') then note_left(r, m.inc) end
		end
		return 'CLOSED'
	end
	local base, lag, J = done + 1, {}, {}
	for r in pairs(T) do -- their ADMIT was not completed by anybody kept
		if mem[r].from ~= '-' and num(mem[r].from) >= base then mem[r].from = '-' end
	end
	for r in pairs(T) do
		if mem[r].from ~= '-' then
			size = math.max(size, r + 1)
			if mem[r].rep.done < base - 1 then lag[r] = true end
		end
	end
	set('size', str(size))
	for r in pairs(g.j) do
		if not T[r] and may_enter(r) and not g.o[r] then J[r] = true end -- one proof a rank: its old voter leaves first
	end
	local fail = failed_at(mem, T, base)
	set('fail', fail and str(base) .. ' ' .. fail or '0')
	set('base', str(fail and base + 1 or base))
	set('stamp', str(stamp < STAMP_MAX and stamp + STAMP_STEP or STAMP_STEP))
	local removed, added = write_view(mem, T, J)
	new_epoch(removed, added, lag)
	return 'COMMIT'
end

decide = function(force)
	if force < 2 and num(force == 0 and h.late or h.deaf) > 0 then return 'WAIT' end
	local mem, wait = read_members(), {}
	for r, m in pairs(mem) do
		if not m.rep and not same_inc('d', r, m.inc) and not (force >= 1 and same_inc('x', r, m.inc)) then
			wait[r] = true
		end
	end
	if next(wait) and force < 2 then
		count()
		return 'WAIT'
	end
	local T, complaints = reporters_kept(mem)
	-- More complaints usually follow the first. Deciding on a half-noticed partition keeps members of both halves.
	if complaints and force < 2 then return 'WAIT' end
	admit(mem, T)
	local need = no_quorum(mem, T)
	-- Others died since: evicted members stay while they are needed, and then accused joiners.
	for _, with_accused in ipairs({ false, true }) do
		local all = need and reporters_kept(mem, true)
		if all then
			admit(mem, all, with_accused)
			if not no_quorum(mem, all) then T, need = all, nil end
		end
	end
	if need then return 'NOQUORUM', 'need', ranks(need) end
	return commit(mem, T)
end

-- All members have acknowledged. If a member's report says so, a change may be open: its reports are kept.
activate = function()
	voters_are_admitted()
	drop('k')
	for r, v in pairs(g.d) do
		if member_inc(r) ~= word(v, 1) then changes['d:' .. str(r)] = false end
	end
	set('act', h.epoch)
	if h.ph ~= 'inst' then return end
	set('ph', 'run')
	tell, news = true, news or 'state'
	open_for_joiners() -- those that became ready while acknowledgements were missing
end
