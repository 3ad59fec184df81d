-- SPDX-License-Identifier: Apache-2.0
-- What a call writes at its end, and what the notice to the members says.

local function changed_news() -- the j: e: w: that this call changed
	local fields = {}
	for field in pairs(changes) do
		if field:find('^[jew]:') then fields[#fields + 1] = field end
	end
	table.sort(fields)
	return fields
end

-- Adds what a commit changed, if that is little. News do not travel in notices, so marks of the operator must be as before.
local function add_few_changes(out)
	local NOTICE_BYTES = 256 -- of the ranks that changed; if they are more, members peek
	local known = str(num(group.epoch) - 1)
	local on = last_view(known)
	for _, field in ipairs(changed_news()) do
		if not field:find('^j') then return false end
	end
	if not on or #group.moved > NOTICE_BYTES or #of.lineage[num(group.epoch)] > NOTICE_BYTES then return false end
	add_changes(out, known, on)
	return true
end

-- The text of the notice: the state after this call. A commit carries its record, without the secret, or its changes.
-- News are j: e: w: that this call changed, for members that know all before.
local function notice()
	local NOTICE_MEMBERS = 64 -- of larger views a notice has only changes: the record would cost members squared
	local text = (group.epoch or '0') .. ' ' .. (group.ph or 'form')
	if not news or not group.gid then return text end
	local out, large = reply(text), size_of(of.members) > NOTICE_MEMBERS
	if news == 'record' and not large then
		add_record(out)
	elseif news == 'record' and not add_few_changes(out) then
		return text
	elseif news == 'news' then
		if not large then return text end
		add(out, 'since', str(num(group.rev) - 1))
		add(out, 'rev', group.rev)
		add_fields(out, changed_news(), function(field) return changes[field] end)
	end
	local kept = { text }
	for i = 2, #out, 2 do
		if out[i] ~= 'secret' then add(kept, out[i], out[i + 1]) end
	end
	return table.concat(kept, '\n')
end

-- `log` is the last revision, followed by one word for each revision.
local function log_news()
	local LOG_BYTES = 2048 -- of the log of changes of j: e: w:, so that replies carry only changes
	local last, line = (group.log or ''):match('^(%d+)(.*)$')
	line = (last == group.rev and line or '') .. ' ' .. or_dash(table.concat(changed_news(), ','))
	if #line > LOG_BYTES then line = line:sub(-LOG_BYTES):match(' .*$') or '' end
	local rev = str(num(group.rev) + 1)
	set({ rev = rev, log = rev .. line })
end

local function flush()
	local TTL_MS, TTL_CLOSED_MS = 600000, 60000
	if erased then call('DEL', KEY) end
	if moved then
		log_news()
		if not tell and group.ph == 'run' then news = 'news' end
		tell = true
	end
	local set_list, del_list = {}, {}
	for field, value in pairs(changes) do
		if value then add(set_list, field, value) else del_list[#del_list + 1] = field end
	end
	batches('HDEL', del_list)
	batches('HSET', set_list)
	if group.ph == 'closed' then
		if changes.ph then call('PEXPIRE', KEY, TTL_CLOSED_MS) end
	elseif RANK ~= '-' or #set_list > 0 then -- a call from outside that only reads keeps nothing alive
		call('PEXPIRE', KEY, TTL_MS)
	end
	if tell then call('PUBLISH', CHANNEL, notice()) end
end
