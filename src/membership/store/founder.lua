-- SPDX-License-Identifier: Apache-2.0
--
-- Whether processes that form a group agree, and what they are told if not.

local function shown(value, other) -- shortens a long value to the part where it differs
	if #value <= SHOWN then return value end
	local at = 1
	while at < #value and value:byte(at) == other:byte(at) do at = at + 1 end
	at = math.max(1, math.min(at - 10, #value - SHOWN + 7))
	return (at > 1 and '...' or '') .. value:sub(at, at + SHOWN - 7) .. (at + SHOWN - 7 < #value and '...' or '')
end

local function pid_of(addr) return addr and addr:match('proc:(%d+)') end

local function process(r, addr) -- `rank 3 (process 1234)`
	local pid = pid_of(addr)
	return (r == 'any' and 'a process without a rank' or 'rank ' .. r) .. (pid and ' (process ' .. pid .. ')' or '')
end

local function founder() -- the one that has waited longest
	local first
	for r in pairs(g.j) do
		if not first or num(joiner_inc(r)) < num(joiner_inc(first)) then first = r end
	end
	return first and process(str(first), word(g.j[first], 3)) or 'the group'
end

local function name_of_group() return KEY:match('{(.*)}') or KEY end

-- The first setting that must be the same and is not: its name, the group's value, the applicant's value.
local function unlike(a)
	local theirs = {}
	for w in (h.alike or ''):gmatch('%S+') do
		local name, value = w:match('^([^=]+)=(.*)$')
		if name then theirs[name] = value end
	end
	for _, w in ipairs(a.alike) do
		local name, value = w:match('^([^=]+)=(.*)$')
		if name and theirs[name] and theirs[name] ~= value then return name, theirs[name], value end
	end
end

local function both_known(x, y) return x and y and x ~= '-' and y ~= '-' end

local function other_job(a) return both_known(h.job, a.job) and h.job ~= a.job end

-- Why the applicant cannot be a founder of this group: kind, error, text; then the ranks whose death would change that.
local function conflict(a)
	if other_job(a) then return 'job', 'BUSY', 'it is being formed by job ' .. h.job .. ', this process is of job ' .. a.job end
	local name, theirs, ours = 'world', h.world, str(a.world)
	if theirs == ours then name, theirs, ours = unlike(a) end
	if name then
		return 'value', 'INVAL', name .. ' is ' .. shown(theirs, ours) .. ' in ' .. founder() .. ' and ' .. shown(ours, theirs) ..
			' in ' .. process(a.want, a.addr) .. ': all that form a group need the same'
	end
	local r = a.want ~= 'any' and num(a.want)
	if r and g.j[r] then
		local theirs, ours = pid_of(word(g.j[r], 3)), pid_of(a.addr)
		local both = theirs and ours and ': process ' .. theirs .. ' has it, process ' .. ours .. ' asks for it' or ''
		return 'rank', 'BUSY', 'rank ' .. a.want .. ' of ' .. h.world .. ' was given to two processes' .. both .. ' (RANK, COVEY_RANK)',
			{ [r] = joiner_inc(r) }
	end
	local members = 0
	for q in pairs(g.j) do
		if q < num(h.world) then members = members + 1 end
	end
	if not r and members >= num(h.world) then
		return 'rank', 'BUSY', 'world is ' .. h.world .. ', and so many processes have come: ' .. process(a.want, a.addr) ..
			' is one too many'
	end
end

-- The reply TAKEN with the ranks in the way. The caller checks them and names the dead ones when it asks again.
local function taken(kind, why, list)
	local out, n = reply('TAKEN', 'kind', kind, 'why', why, 'now', str(server_ms())), 0
	for _, r in ipairs(sorted(list)) do
		n = n + 1
		if n <= TAKEN_RANKS then
			out[#out + 1] = 't:' .. str(r)
			out[#out + 1] = g.t[r] or '-'
			local p = g.m[r] and 'm' or 'j'
			if g[p][r] then
				out[#out + 1] = p .. ':' .. str(r)
				out[#out + 1] = g[p][r]
			end
		end
	end
	out[#out + 1] = 'count'
	out[#out + 1] = str(n)
	return out
end

local function formed_by_others(a)
	local text = 'world is ' .. h.world .. ' there'
	if str(a.world) ~= h.world then text = text .. ' and ' .. str(a.world) .. ' here' end
	local theirs, ours = pid_of(a.want ~= 'any' and word(g.m[num(a.want)], 3)), pid_of(a.addr)
	if other_job(a) then
		text = text .. ', job ' .. h.job .. ' there and ' .. a.job .. ' here'
	elseif theirs and ours then
		text = text .. ', rank ' .. a.want .. ' is process ' .. theirs .. ' there and process ' .. ours .. ' here'
	end
	return text
end

local function call_off(err, why)
	set('ph', 'closed')
	set('fault', str(server_ms()) .. ' ' .. err .. ' ' .. why)
	tell = true
	return called_off()
end
