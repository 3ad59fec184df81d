-- SPDX-License-Identifier: Apache-2.0
-- Whether processes that form a group agree, and what they are told if not.

local MAX_RANKS = 4096

-- The arguments of register: the process that asks for a rank, and its findings about processes in its way.
local function applicant()
	local lapse, alike = num(arg(11)), {}
	for i = 15, #ARGV - COMMON do alike[#alike + 1] = one_word(arg(i)) end
	return { want = arg(1), rank = arg(1) ~= 'any' and num(arg(1)), addr = one_word(arg(2)), host = one_word(arg(3)),
		 first = arg(4) == '1', world = num(arg(5)), max = num(arg(6)), policy = arg(7), secret = arg(8),
		 job = one_word(arg(9)), age = tonumber(arg(10)), lapse = lapse > 0 and math.max(lapse, FORGET_MS) or 0,
		 gone = arg(12), gids = arg(13), tell = arg(14) == '1', alike = alike }
end

local function shown(value, other) -- shortens a long value to the part where it differs
	local SHOWN = 48 -- characters of a value in an error text
	if #value <= SHOWN then return value end
	local at, last = 1, #value - SHOWN + 7
	while at < #value and value:byte(at) == other:byte(at) do at = at + 1 end
	at = math.max(1, math.min(at - 10, last))
	return (at > 1 and '...' or '') .. value:sub(at, at + SHOWN - 7) .. (at < last and '...' or '')
end

local function pid_of(addr) return addr and addr:match('proc:(%d+)') end

local function process(rank, addr) -- `rank 3 (process 1234)`
	local pid = pid_of(addr)
	return (rank == 'any' and 'a process without a rank' or 'rank ' .. rank) .. (pid and ' (process ' .. pid .. ')' or '')
end

local function founder() -- the one that has waited longest
	local first
	for rank in pairs(of.joiners) do
		if not first or num(joiner_inc(rank)) < num(joiner_inc(first)) then first = rank end
	end
	return first and process(str(first), word(of.joiners[first], 3)) or 'the group'
end

local function name_and_value(setting) return setting:match('^([^=]+)=(.*)$') end

-- The first setting that must be the same and is not: its name, the group's value, the applicant's value.
local function unlike(asker)
	local theirs = {}
	for _, setting in ipairs(words(group.alike)) do
		local name, value = name_and_value(setting)
		if name then theirs[name] = value end
	end
	for _, setting in ipairs(asker.alike) do
		local name, value = name_and_value(setting)
		if name and theirs[name] and theirs[name] ~= value then return name, theirs[name], value end
	end
end

local function values_differ(name, theirs, ours, where, asker)
	return name .. ' is ' .. shown(theirs, ours) .. ' in ' .. where .. ' and ' .. shown(ours, theirs) .. ' in ' ..
		process(asker.want, asker.addr) .. ': all '
end

local function other_job(asker) return group.job and group.job ~= '-' and asker.job ~= '-' and group.job ~= asker.job end

-- Why the applicant cannot be a founder of this group: kind, error, text; then the ranks whose death would change that.
local function conflict(asker)
	if other_job(asker) then
		return 'job', 'BUSY', 'it is being formed by job ' .. group.job .. ', this process is of job ' .. asker.job
	end
	local name, theirs, ours = 'world', group.world, str(asker.world)
	if theirs == ours then name, theirs, ours = unlike(asker) end
	if name then
		return 'value', 'INVAL', values_differ(name, theirs, ours, founder(), asker) .. 'that form a group need the same'
	end
	local rank = asker.rank
	if rank and of.joiners[rank] then
		local holder, pid = pid_of(word(of.joiners[rank], 3)), pid_of(asker.addr)
		local both = holder and pid and ': process ' .. holder .. ' has it, process ' .. pid .. ' asks for it' or ''
		return 'rank', 'BUSY', 'rank ' .. asker.want .. ' of ' .. group.world .. ' was given to two processes' .. both ..
			' (RANK, COVEY_RANK)', { [rank] = joiner_inc(rank) }
	end
	local founders = 0
	for place in pairs(of.joiners) do
		if place < num(group.world) then founders = founders + 1 end
	end
	if not rank and founders >= num(group.world) then
		return 'rank', 'BUSY', 'world is ' .. group.world .. ', and so many processes have come: ' ..
			process(asker.want, asker.addr) .. ' is one too many'
	end
end

-- The reply TAKEN with the ranks in the way. The caller checks them and names the dead ones when it asks again.
local function taken(kind, why, list)
	local TAKEN_RANKS = 64 -- ranks in the way that one reply names
	local out, in_way = reply('TAKEN', 'kind', kind, 'why', why, 'now', str(server_ms())), sorted(list)
	for i = 1, math.min(#in_way, TAKEN_RANKS) do
		local rank, holders = in_way[i], of.members[in_way[i]] and of.members or of.joiners
		add(out, field_of(of.beats, rank), of.beats[rank] or '-')
		if holders[rank] then add(out, field_of(holders, rank), holders[rank]) end
	end
	add(out, 'count', str(#in_way))
	return out
end

local function formed_by_others(asker)
	local text = 'world is ' .. group.world .. ' there'
	if str(asker.world) ~= group.world then text = text .. ' and ' .. str(asker.world) .. ' here' end
	local theirs, ours = pid_of(asker.rank and word(of.members[asker.rank], 3)), pid_of(asker.addr)
	if other_job(asker) then
		text = text .. ', job ' .. group.job .. ' there and ' .. asker.job .. ' here'
	elseif theirs and ours then
		text = text .. ', rank ' .. asker.want .. ' is process ' .. theirs .. ' there and process ' .. ours .. ' here'
	end
	return text
end

local function call_off(err, why)
	set({ ph = 'closed', fault = join(str(server_ms()), err, why) })
	tell = true
	return called_off()
end
