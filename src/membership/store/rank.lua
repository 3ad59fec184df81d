-- SPDX-License-Identifier: Apache-2.0
--
-- Which rank a process gets, and when all founders have one.

local function any_rank(first)
	local size, max, low, now = num(h.size), num(h.max), 0, nil
	if h.ph == 'form' then
		size = num(h.world)
		low = first and 0 or size -- the places of founders are not for joiners
	end
	local function free(r, patience)
		if g.m[r] or not g.j[r] then return not g.m[r] end
		now = now or server_ms()
		return patience and now - num(word(g.t[r], 1)) > STALE_MS
	end
	for _, patience in ipairs({ false, true }) do
		for r = low, size - 1 do
			if free(r, patience) then return r end
		end
		for _, r in ipairs(sorted(g.w)) do
			if free(r, patience) then return r end
		end
		for r = size, (h.policy == 'auto' and max or 0) - 1 do
			if free(r, patience) then return r end
		end
	end
	return nil
end

local function wanted_rank(want, first)
	if want ~= 'any' then
		local r = num(want)
		if r < 0 or r >= num(h.max) then
			return nil, reply('REFUSED', 'why', 'rank ' .. want .. ' is not below max_ranks ' .. h.max)
		end
		if g.m[r] then
			local beat = word(g.t[r], 1)
			return nil, reply('BUSY', 'why', process(want, word(g.m[r], 3)) .. ' is a member, incarnation ' .. member_inc(r) ..
				(beat and ', whose last beat is ' .. str(server_ms() - num(beat)) .. ' ms old' or ''))
		end
		return r
	end
	local r = any_rank(first)
	if not r and h.ph == 'form' then return nil, reply('BUSY', 'why', 'the group is being formed') end
	if not r then return nil, reply('FULL', 'why', 'no rank below ' .. h.max .. ' is free (policy ' .. h.policy .. ')') end
	return r
end

local function registered()
	for _, r in ipairs(sorted(g.j)) do
		if word(g.j[r], 2) == NONCE then return r end
	end
	return nil
end

script.register = function()
	local a, refusal = applicant(), nil
	local r = registered()
	local found_here = h.gid and a.gone:find(h.gid, 1, true) == 1 -- incs of another group name other processes
	for rank, inc in each_pair(found_here and a.gone or '') do bury(num(rank), inc, 'process') end
	if not r or h.ph == 'closed' then
		refusal = enter(a)
		if refusal then return refusal end
		r, refusal = wanted_rank(a.want, a.first)
		if not r then return refusal end
		if num(h.incs) >= INC_MAX then return reply('REFUSED', 'why', 'incarnation numbers have run out: form a new group') end
		set('incs', str(num(h.incs) + 1))
		note('j', r, h.incs .. ' ' .. NONCE .. ' ' .. a.addr .. ' ' .. a.host .. ' 0 ' .. one_word(found_here and a.gone:match(',(.*)$') or '-'))
		put('t', r, str(server_ms()) .. ' -')
		RANK = str(r) -- so that the key is kept alive
	end
	local inc = joiner_inc(r)
	put('c', r, inc)
	return full('OK', 'rank', str(r), 'inc', inc)
end

form = function()
	local list = {}
	for r = 0, num(h.world) - 1 do
		if num(word(g.j[r], 5)) == 0 then return end
		list[r] = true
	end
	for r in pairs(g.j) do
		local inc, nonce, addr, host = g.j[r]:match('^(%S+) (%S+) (%S+) (%S+)')
		if list[r] then
			put('m', r, inc .. ' 0 ' .. addr .. ' ' .. host)
			put('o', r, inc)
			note('j', r, nil)
		else
			note('j', r, inc .. ' ' .. nonce .. ' ' .. addr .. ' ' .. host .. ' 0 ' .. (word(g.j[r], 6) or '-'))
		end
	end
	set('stamp', str(STAMP_STEP))
	set('size', h.world)
	if h.prev then -- no process of the earlier group came back
		remember('quiet', h.prev)
		h.prev, changes.prev = nil, false
	end
	new_epoch({}, list, {})
end
