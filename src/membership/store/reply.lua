-- SPDX-License-Identifier: Apache-2.0
-- What a reply tells its caller: the record of the group, or only what changed since the view and the revision that the
-- caller knows.

local function reply(status, ...)
	if not group.gid then return { status, ... } end
	return { status, 'gid', group.gid, 'ph', group.ph or '-', 'epoch', group.epoch or '-', 'vid', group.vid or '-',
		 'life', group.gen or '-', ... }
end

local function add(out, field, value)
	out[#out + 1] = field
	out[#out + 1] = value
end

local function add_kinds(out, ...)
	all()
	for _, kind in ipairs({ ... }) do
		for _, rank in ipairs(sorted(kind)) do add(out, field_of(kind, rank), kind[rank]) end
	end
	return out
end

local function add_record(out) -- epoch, vid, gid: every reply has them
	for _, field in ipairs({ 'proto', 'secret', 'max', 'policy', 'world', 'job', 'alike', 'old', 'incs', 'base', 'fail', 'stamp', 'size', 'act' }) do
		if group[field] then add(out, field, group[field]) end
	end
	for letter in RECORD:gmatch('.') do add_kinds(out, of[letter]) end
	return out
end

local function full(status, ...) return add_kinds(add_record(reply(status, ...)), of.joiners) end

local function value_of(field) return of[field:sub(1, 1)][num(field:sub(3))] end

local function fetch(fields) -- at once, where value_of would read one by one
	batches('HMGET', whole and {} or fields, function(first, values)
		for i, value in ipairs(values) do
			local field = fields[first + i - 1]
			of[field:sub(1, 1)][num(field:sub(3))] = value
		end
	end)
end

-- The words of the log, one for each revision up to this one: nil if it does not reach back to revision @since.
local function logged(since)
	local last, line = (group.log or ''):match('^(%d+)(.*)$')
	local list, gap = words(line), num(group.rev) - (tonumber(since) or -1)
	if last ~= group.rev or not (gap >= 0 and gap <= #list) then return nil end
	return table.concat(list, ',', #list - gap + 1)
end

-- Adds @fields of j: e: w:, with their values, and the names of those that are deleted.
local function add_fields(out, fields, value_at)
	local gone = {}
	for _, field in ipairs(fields) do
		local value = value_at(field)
		if value then add(out, field, value) else gone[#gone + 1] = field end
	end
	add(out, 'gone', or_dash(table.concat(gone, ',')))
	return out
end

-- Adds j: e: w: that changed since @rev; all of them if the log does not reach back to @rev.
local function add_news(out, rev)
	local log, seen, fields = logged(rev), {}, {}
	if not log then return add_kinds(out, of.joiners, of.marked, of.invited) end
	for field in log:gmatch('[jew]:%d+') do
		if not seen[field] then fields[#fields + 1] = field end
		seen[field] = true
	end
	fetch(fields)
	return add_fields(out, fields, value_of)
end

-- Adds what the last commit changed, for a caller that knows the view before, @known, with vid @on.
local function add_changes(out, known, on)
	for _, field in ipairs({ 'policy', 'incs', 'base', 'fail', 'stamp', 'size', 'act' }) do add(out, field, group[field] or '-') end
	add(out, 'on', known .. ' ' .. on)
	add(out, 'l:' .. group.epoch, of.lineage[num(group.epoch)] or '-')
	local fields = {}
	for i, rank in ipairs(words(group.moved:match(' (.*)$'), '%d+')) do fields[i] = 'm:' .. rank end
	fetch(fields)
	for _, field in ipairs(fields) do add(out, field, value_of(field) or '-') end
	return out
end

-- The vid of view @known, if it was the last view and became active, so that the changes since are at hand.
local function last_view(known)
	local epoch = num(group.epoch)
	local on = num(known) > 0 and num(known) == epoch - 1 and group.act == known and word(of.lineage[epoch - 1], 1)
	return on and (group.moved or ''):match('^(%d+) ') == group.epoch and on
end

-- Adds the record for a caller that knows view @known: only the changes if that was the last view and became active.
local function add_view(out, known)
	local on = last_view(known)
	if on then return add_changes(out, known, on), false end
	return add_kinds(add_record(out), of.joiners), true
end
