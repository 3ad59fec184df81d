-- SPDX-License-Identifier: Apache-2.0
-- Which members a change keeps, and whether they are enough to decide.

local function has_flag(member, flag) return member.report and member.report.flags:find(flag, 1, true) ~= nil end

local function read_members()
	local list = {}
	for rank, value in pairs(of.members) do
		local inc, from, addr, host = first_four(value)
		local reporter, done, entered, admit, stamp, flags = (of.reports[rank] or ''):match('^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
		list[rank] = { inc = inc, from = from, addr = addr, host = host, report = reporter == inc and
			{ done = num(done), entered = num(entered), admit = num(admit), stamp = num(stamp), flags = flags } or nil }
	end
	return list
end

-- Of kept ranks that cannot reach each other, removes the one with more complaints; of equals the higher rank. Returns
-- whether there were complaints.
local function settle_complaints(list, kept)
	local bad, any = {}, false
	for rank in pairs(kept) do
		for other, inc in each_pair(of.complaints[rank]) do
			if rank ~= other and kept[other] and list[other].inc == inc then
				bad[rank], bad[other] = bad[rank] or {}, bad[other] or {}
				bad[rank][other], bad[other][rank] = true, true
				any = true
			end
		end
	end
	while next(bad) do
		local worst, most = -1, 0
		for rank, others in pairs(bad) do
			local n = size_of(others)
			if n > most or (n == most and rank > worst) then worst, most = rank, n end
		end
		kept[worst] = nil
		for other in pairs(bad[worst]) do
			bad[other][worst] = nil
			if not next(bad[other]) then bad[other] = nil end
		end
		bad[worst] = nil
	end
	return any
end

local function is_marked(rank, inc, mark) return same_inc(of.marked, rank, inc) and word(of.marked[rank], 2) == mark end

local function reporters_kept(list, with_evicted)
	local kept = {}
	for rank, member in pairs(list) do
		local out = (is_marked(rank, member.inc, 'evict') and not with_evicted) or has_flag(member, 'l')
		if member.report and not out and not same_inc(of.proven, rank, member.inc) then kept[rank] = true end
	end
	return kept, settle_complaints(list, kept)
end

-- If a kept member completed the ADMIT, it admits all pending ranks. If none did, accused joiners are removed although
-- they reported, but for those that are needed.
local function admit(list, kept, with_accused)
	local at = 0
	for rank in pairs(kept) do at = math.max(at, list[rank].report.admit) end
	for rank, member in pairs(list) do
		local report = member.report
		if member.from == '-' and at > 0 then
			member.from, member.came = str(at), true
			if report and report.admit ~= at then report.done, report.entered = at - 1, at - 1 end
		elseif member.from == '-' and kept[rank] and same_inc(of.accused, rank, member.inc) and not with_accused then
			kept[rank] = nil
		end
	end
end

-- Has a process that registered anew said that it gave up this incarnation? An address alone says nothing: a repeat of a
-- register may come late, and give a number to nobody.
local function given_up(rank, inc)
	for _, joiner in pairs(of.joiners) do
		for old, old_inc in each_pair(word(joiner, 6)) do
			if old == rank and old_inc == inc then return true end
		end
	end
	return false
end

-- One set of voters, rank -> inc: nil if it agrees, else the missing voters. Half of them or fewer decide only if nobody
-- else can have decided. A rival view may have admitted members that have no vote here, so these count as voters do then.
local function missing_voters(set_of_voters, list, kept)
	local size, agree, sure, need = 0, 0, true, {}
	local function meet(rank, inc) -- 1: it is kept
		local here = list[rank] and list[rank].inc == inc
		local gone = here and not kept[rank] and (has_flag(list[rank], 'l') or given_up(rank, inc))
		if same_inc(of.proven, rank, inc) or gone then return 0 end
		if of.hellos[rank] ~= inc then sure = false end
		if here and kept[rank] then return 1 end
		need[rank] = true
		return 0
	end
	for rank, inc in pairs(set_of_voters) do
		size, agree = size + 1, agree + meet(rank, inc)
	end
	if 2 * agree > size then return nil end
	for rank, member in pairs(list) do
		if set_of_voters[rank] ~= member.inc then meet(rank, member.inc) end
	end
	if (2 * agree == size and sure) or not next(need) then return nil end
	return need
end

-- The voters that are missing: nil if @kept may decide.
local function no_quorum(list, kept)
	local sets, need, short = { of.voters }, {}, false
	for _, text in pairs(active() and {} or of.doubted) do
		sets[#sets + 1] = {}
		for rank, inc in each_pair(text) do sets[#sets][rank] = inc end
	end
	for _, set_of_voters in ipairs(sets) do
		local missing = missing_voters(set_of_voters, list, kept)
		for rank in pairs(missing or {}) do need[rank] = true end
		short = short or missing ~= nil
	end
	return short and need
end
