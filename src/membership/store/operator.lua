-- SPDX-License-Identifier: Apache-2.0
--
-- What the operator may see and ask for, and which processes are proven dead from outside.

outside = function()
	local out = { 'OK' }
	for _, f in ipairs(sorted(h)) do
		if f ~= 'secret' and f ~= 'rev' and f ~= 'late' and f ~= 'deaf' and f ~= 'unack' and f ~= 'log' and f ~= 'moved' then
			out[#out + 1] = f
			out[#out + 1] = h[f]
		end
	end
	out[#out + 1] = 'life'
	out[#out + 1] = h.gen or '-'
	out[#out + 1] = 'now' -- to compare t: with
	out[#out + 1] = str(server_ms())
	return add_fields(out, 'bcdejklmoqrtuwx')
end

bury = function(r, inc, kind)
	tell = true
	if joiner_inc(r) == inc then note('j', r, nil) end
	if member_inc(r) == inc or g.o[r] == inc or in_doubt(r, inc) then
		prove(r, inc, RANK, kind)
		if member_inc(r) == inc then start_change() end -- a repeat after the commit opens nothing
		if h.ph == 'open' and num(h.epoch) > 0 then decide(0) end -- it may be the last thing that was waited for
	end
end

script.prove = function()
	bury(num(arg(1)), arg(2), arg(3))
	return reply('OK')
end

local function refused(why) return reply('REFUSED', 'why', why) end

local function rank_list(text)
	local list = {}
	for r in text:gmatch('%d+') do list[#list + 1] = num(r) end
	return list, #list > 0 and not text:find('[^%d,]')
end

local ask = {}

ask.evict = function(list)
	local left = 0
	for r in pairs(g.m) do
		if not pending(r) then left = left + 1 end
	end
	for _, r in ipairs(list) do
		if not g.m[r] then return refused('rank ' .. str(r) .. ' is not in the group') end
		if not pending(r) then left = left - 1 end
	end
	if left < 1 then return refused('nobody would be left in the group') end
	local mem, T, out = read_members(), {}, {}
	for _, r in ipairs(list) do out[r] = true end
	for r, m in pairs(mem) do
		if not out[r] and not evicted(r, m.inc) and not same_inc('d', r, m.inc) then T[r] = true end
	end
	local need = no_quorum(mem, T)
	if need then return refused('too few would be left to agree on a view without rank ' .. ranks(need)) end
	for _, r in ipairs(list) do
		local inc = member_inc(r)
		note('e', r, inc .. ' evict')
		if not same_inc('x', r, inc) then put('x', r, inc .. ' ' .. RANK .. ' operator') end
	end
	count()
	start_change()
	return reply('OK')
end

ask.retire = function(list)
	for _, r in ipairs(list) do
		if not g.m[r] or pending(r) then return refused('rank ' .. str(r) .. ' is not an admitted member') end
	end
	for _, r in ipairs(list) do
		if not same_inc('e', r, member_inc(r)) then note('e', r, member_inc(r) .. ' retire') end
	end
	return reply('OK')
end

ask.recover = function(list)
	for _, r in ipairs(list) do
		if r >= num(h.size) then return refused('rank ' .. str(r) .. ' was never in the group: extend it') end
	end
	for _, r in ipairs(list) do note('w', r, 'recover') end
	open_for_joiners()
	return reply('OK')
end

ask.extend = function(list)
	local size = list[1]
	if size > math.min(num(h.max), MAX_RANKS) then return refused('size ' .. str(size) .. ' is above max_ranks ' .. h.max) end
	for r = num(h.size), size - 1 do
		if not g.w[r] then note('w', r, 'extend') end
	end
	open_for_joiners()
	return reply('OK')
end

local function forget()
	local now = server_ms()
	for _, r in ipairs(sorted(g.t)) do
		local age = now - num(word(g.t[r], 1))
		if (g.m[r] or g.j[r]) and age < FORGET_MS and h.ph ~= 'closed' then
			return refused('rank ' .. str(r) .. ' was alive ' .. str(age) .. ' ms ago')
		end
	end
	local out = reply('OK')
	for field in pairs(changes) do changes[field] = nil end
	h, erased, tell, moved = {}, true, false, false
	return out
end

script.ask = function()
	local kind, what = arg(1), arg(2)
	if kind == 'forget' then return forget() end
	if h.ph == 'closed' then return reply('CLOSED', 'why', 'the group is closed') end
	if kind == 'policy' then
		if what ~= 'auto' and what ~= 'manual' then return refused('policy is auto or manual, not ' .. what) end
		set('policy', what)
		moved = true
		open_for_joiners()
		return reply('OK')
	end
	local list, good = rank_list(what)
	if not ask[kind] or not good then
		return refused('ask is evict, retire or recover R[,R], extend N, policy auto|manual or forget, not ' .. kind .. ' ' .. what)
	end
	if num(h.epoch) == 0 then return refused(h.ph == 'form' and 'the group is not formed yet' or 'the store forgot the view and waits for its members') end
	return ask[kind](list)
end
