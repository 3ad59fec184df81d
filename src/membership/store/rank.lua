-- SPDX-License-Identifier: Apache-2.0
-- Which rank a process gets, and when all founders have one.

local function any_rank(first)
	local STALE_MS = 10000 -- a joiner without a beat for this long loses its rank to `any`
	local size, low, now = num(group.size), 0, nil
	if group.ph == 'form' then
		size = num(group.world)
		low = first and 0 or size -- the places of founders are not for joiners
	end
	local function free(rank, stale_too)
		if of.members[rank] or not of.joiners[rank] then return not of.members[rank] end
		now = now or server_ms()
		return stale_too and now - num(inc_of(of.beats, rank)) > STALE_MS
	end
	for _, stale_too in ipairs({ false, true }) do
		for rank = low, size - 1 do
			if free(rank, stale_too) then return rank end
		end
		for _, rank in ipairs(sorted(of.invited)) do
			if free(rank, stale_too) then return rank end
		end
		for rank = size, (group.policy == 'auto' and num(group.max) or 0) - 1 do
			if free(rank, stale_too) then return rank end
		end
	end
end

local function wanted_rank(asker)
	local rank = asker.rank or any_rank(asker.first)
	if not rank and group.ph == 'form' then return nil, reply('BUSY', 'why', 'the group is being formed') end
	if not rank then
		return nil, reply('FULL', 'why', 'no rank below ' .. group.max .. ' is free (policy ' .. group.policy .. ')')
	end
	if rank < 0 or rank >= num(group.max) then
		return nil, reply('REFUSED', 'why', 'rank ' .. asker.want .. ' is not below max_ranks ' .. group.max)
	end
	if of.members[rank] then
		local beat = inc_of(of.beats, rank)
		return nil, reply('BUSY', 'why', process(asker.want, word(of.members[rank], 3)) .. ' is a member, incarnation ' ..
			member_inc(rank) .. (beat and ', whose last beat is ' .. str(server_ms() - num(beat)) .. ' ms old' or ''))
	end
	return rank
end

local function registered()
	for _, rank in ipairs(sorted(of.joiners)) do
		if word(of.joiners[rank], 2) == NONCE then return rank end
	end
end

script.register = function()
	local asker, rank, refusal = applicant(), registered(), nil
	local found_here = group.gid and asker.gone:find(group.gid, 1, true) == 1 -- incs of another group name other processes
	for dead, inc in each_pair(found_here and asker.gone) do bury(dead, inc, 'process') end
	if not rank or group.ph == 'closed' then
		refusal = enter(asker)
		if refusal then return refusal end
		rank, refusal = wanted_rank(asker)
		if not rank then return refusal end
		if num(group.incs) >= INC_MAX then return reply('REFUSED', 'why', 'incarnation numbers have run out: form a new group') end
		set({ incs = str(num(group.incs) + 1) })
		local gone = found_here and asker.gone:match(',(.*)$') or '-'
		note(of.joiners, rank, join(group.incs, NONCE, asker.addr, asker.host, '0', one_word(gone)))
		put(of.beats, rank, str(server_ms()) .. ' -')
		RANK = str(rank) -- so that the key is kept alive
	end
	local inc = joiner_inc(rank)
	put(of.hellos, rank, inc)
	return full('OK', 'rank', str(rank), 'inc', inc)
end

rules.form = function()
	local founders = {}
	for rank = 0, num(group.world) - 1 do
		if num(word(of.joiners[rank], 5)) == 0 then return end
		founders[rank] = true
	end
	for rank, joiner in pairs(of.joiners) do
		local inc, nonce, addr, host = first_four(joiner)
		if founders[rank] then
			put(of.members, rank, join(inc, '0', addr, host))
			put(of.voters, rank, inc)
			note(of.joiners, rank, nil)
		else
			note(of.joiners, rank, join(inc, nonce, addr, host, '0', word(joiner, 6) or '-'))
		end
	end
	set({ stamp = str(STAMP_STEP), size = group.world })
	if group.prev then -- no process of the earlier group came back
		remember('quiet', group.prev)
		group.prev, changes.prev = nil, false
	end
	new_epoch({}, founders, {})
end
