-- SPDX-License-Identifier: Apache-2.0
--
-- Which members a change keeps, and whether they are enough to decide.

local function has_flag(rep, letter) return rep and rep.flags:find(letter, 1, true) ~= nil end

local function read_members()
	local mem = {}
	for r, v in pairs(g.m) do
		local inc, from, addr, host = v:match('^(%S+) (%S+) (%S+) (%S+)')
		mem[r] = { inc = inc, from = from, addr = addr, host = host }
		local i, done, ent, adm, stamp, flags = (g.r[r] or ''):match('^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
		if i == inc then
			mem[r].rep = { done = num(done), ent = num(ent), adm = num(adm), stamp = num(stamp), flags = flags }
		end
	end
	return mem
end

-- Of kept ranks that cannot reach each other, removes the one with more complaints; of equals the higher rank. Returns
-- whether there were complaints.
local function settle_complaints(mem, T)
	local bad, any = {}, false
	for a in pairs(T) do
		for r, inc in each_pair(g.b[a] or '') do
			local b = num(r)
			if a ~= b and T[b] and mem[b].inc == inc then
				bad[a], bad[b] = bad[a] or {}, bad[b] or {}
				bad[a][b], bad[b][a] = true, true
				any = true
			end
		end
	end
	while next(bad) do
		local worst, most = -1, 0
		for r, others in pairs(bad) do
			local n = 0
			for _ in pairs(others) do n = n + 1 end
			if n > most or (n == most and r > worst) then worst, most = r, n end
		end
		T[worst] = nil
		for other in pairs(bad[worst]) do
			bad[other][worst] = nil
			if not next(bad[other]) then bad[other] = nil end
		end
		bad[worst] = nil
	end
	return any
end

local function evicted(r, inc) return same_inc('e', r, inc) and word(g.e[r], 2) == 'evict' end

local function reporters_kept(mem, with_evicted)
	local T = {}
	for r, m in pairs(mem) do
		local out = evicted(r, m.inc) and not with_evicted
		if m.rep and not out and not has_flag(m.rep, 'l') and not same_inc('d', r, m.inc) then T[r] = true end
	end
	return T, settle_complaints(mem, T)
end

-- If a kept member completed the ADMIT, it admits all pending ranks. If none did, accused joiners are removed although
-- they reported, but for those that are needed.
local function admit(mem, T, with_accused)
	local a = 0
	for r in pairs(T) do a = math.max(a, mem[r].rep.adm) end
	for r, m in pairs(mem) do
		if m.from == '-' and a > 0 then
			m.from, m.came = str(a), true
			if m.rep and m.rep.adm ~= a then m.rep.done, m.rep.ent = a - 1, a - 1 end
		elseif m.from == '-' and T[r] and same_inc('x', r, m.inc) and not with_accused then
			T[r] = nil
		end
	end
end

-- Has a process that registered anew said that it gave up this incarnation? An address alone says nothing: a repeat of a
-- register may come late, and give a number to nobody.
local function given_up(rank, m)
	for _, v in pairs(g.j) do
		for r, inc in each_pair(word(v, 6) or '') do
			if num(r) == rank and inc == m.inc then return true end
		end
	end
	return false
end

-- One set of voters: nil if it agrees, else the missing voters. Half of them or fewer decide only if nobody else can have
-- decided. A rival view may have admitted members that have no vote here, so these count as voters do then.
local function missing_voters(W, mem, T)
	local size, kept, sure, need = 0, 0, true, {}
	local function meet(r, inc) -- 1: it is kept
		local here = mem[r] and mem[r].inc == inc
		if same_inc('d', r, inc) or (here and not T[r] and (has_flag(mem[r].rep, 'l') or given_up(r, mem[r]))) then return 0 end
		if g.c[r] ~= inc then sure = false end
		if here and T[r] then return 1 end
		need[r] = true
		return 0
	end
	for r, inc in pairs(W) do
		size, kept = size + 1, kept + meet(r, inc)
	end
	if 2 * kept > size then return nil end
	for r, m in pairs(mem) do
		if W[r] ~= m.inc then meet(r, m.inc) end
	end
	if (2 * kept == size and sure) or not next(need) then return nil end
	return need
end

local function no_quorum(mem, T)
	local sets = { g.o }
	if not active() then
		for _, list in pairs(g.u) do
			local W = {}
			for r, inc in each_pair(list) do W[num(r)] = inc end
			sets[#sets + 1] = W
		end
	end
	local need, short = {}, false
	for _, W in ipairs(sets) do
		local missing = missing_voters(W, mem, T)
		for r in pairs(missing or {}) do need[r] = true end
		short = short or missing ~= nil
	end
	return short and need
end
