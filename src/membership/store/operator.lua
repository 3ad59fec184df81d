-- SPDX-License-Identifier: Apache-2.0
-- What the operator may see and ask for.

local HIDDEN = { secret = true, rev = true, late = true, deaf = true, unack = true, log = true, moved = true }

rules.outside = function()
	local out = { 'OK' }
	for _, field in ipairs(sorted(group)) do
		if not HIDDEN[field] then add(out, field, group[field]) end
	end
	add(out, 'life', group.gen or '-')
	add(out, 'now', str(server_ms())) -- to compare t: with
	for letter in LETTERS:gmatch('.') do add_kinds(out, of[letter]) end
	return out
end

local function refused(why) return reply('REFUSED', 'why', why) end

local function rank_list(text)
	local list = {}
	for rank in text:gmatch('%d+') do list[#list + 1] = num(rank) end
	return list, #list > 0 and not text:find('[^%d,]')
end

local ask = {} -- each returns nothing, or a refusal

ask.evict = function(list)
	local out, kept, remain = {}, {}, 0
	for _, rank in ipairs(list) do
		if not of.members[rank] then return refused('rank ' .. str(rank) .. ' is not in the group') end
		out[rank] = true
	end
	local all_members = read_members()
	for rank, member in pairs(all_members) do
		if not out[rank] and not pending(rank) then remain = remain + 1 end
		local gone = out[rank] or is_marked(rank, member.inc, 'evict') or same_inc(of.proven, rank, member.inc)
		if not gone then kept[rank] = true end
	end
	if remain < 1 then return refused('nobody would be left in the group') end
	local need = no_quorum(all_members, kept)
	if need then return refused('too few would be left to agree on a view without rank ' .. ranks(need)) end
	for rank in pairs(out) do
		local inc = member_inc(rank)
		note(of.marked, rank, inc .. ' evict')
		if not same_inc(of.accused, rank, inc) then put(of.accused, rank, join(inc, RANK, 'operator')) end
	end
	count()
	start_change()
end

ask.retire = function(list)
	for _, rank in ipairs(list) do
		if not of.members[rank] or pending(rank) then return refused('rank ' .. str(rank) .. ' is not an admitted member') end
	end
	for _, rank in ipairs(list) do
		if not same_inc(of.marked, rank, member_inc(rank)) then note(of.marked, rank, member_inc(rank) .. ' retire') end
	end
end

ask.recover = function(list)
	for _, rank in ipairs(list) do
		if rank >= num(group.size) then return refused('rank ' .. str(rank) .. ' was never in the group: extend it') end
	end
	for _, rank in ipairs(list) do note(of.invited, rank, 'recover') end
	open_for_joiners()
end

ask.extend = function(list)
	local size = list[1]
	if size > math.min(num(group.max), MAX_RANKS) then
		return refused('size ' .. str(size) .. ' is above max_ranks ' .. group.max)
	end
	for rank = num(group.size), size - 1 do
		if not of.invited[rank] then note(of.invited, rank, 'extend') end
	end
	open_for_joiners()
end

local function forget()
	local now = server_ms()
	for _, rank in ipairs(sorted(of.beats)) do
		local age = now - num(inc_of(of.beats, rank))
		if (of.members[rank] or of.joiners[rank]) and age < FORGET_MS and group.ph ~= 'closed' then
			return refused('rank ' .. str(rank) .. ' was alive ' .. str(age) .. ' ms ago')
		end
	end
	local out = reply('OK')
	group, changes, erased, tell, moved = {}, {}, true, false, false
	return out
end

local function set_policy(what)
	if what ~= 'auto' and what ~= 'manual' then return refused('policy is auto or manual, not ' .. what) end
	set({ policy = what })
	moved = true
	open_for_joiners()
end

script.ask = function()
	local kind, what = arg(1), arg(2)
	if kind == 'forget' then return forget() end
	if group.ph == 'closed' then return reply('CLOSED', 'why', 'the group is closed') end
	if kind == 'policy' then return set_policy(what) or reply('OK') end
	local list, good = rank_list(what)
	if not ask[kind] or not good then
		return refused('ask is evict, retire or recover R[,R], extend N, policy auto|manual or forget, not ' .. kind .. ' ' .. what)
	end
	if num(group.epoch) > 0 then return ask[kind](list) or reply('OK') end
	return refused(group.ph == 'form' and 'the group is not formed yet' or 'the store forgot the view and waits for its members')
end
