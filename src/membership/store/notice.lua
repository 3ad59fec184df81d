-- SPDX-License-Identifier: Apache-2.0
--
-- What a call writes at its end, and what the notice to the members says.

-- Adds what a commit changed, if that is little. News do not travel in notices, so marks of the operator must be as before.
local function add_few_changes(out)
	local known = str(num(h.epoch) - 1)
	local on = last_view(known)
	for field in pairs(changes) do
		if field:find('^[ew]:') then return false end
	end
	if not on or #h.moved > NOTICE_BYTES or #g.l[num(h.epoch)] > NOTICE_BYTES then return false end
	add_changes(out, known, on)
	return true
end

-- Adds the j: e: w: that this call changed, for members that know all before.
local function add_own_news(out)
	local names, gone = {}, {}
	for field in pairs(changes) do
		if field:find('^[jew]:') then names[#names + 1] = field end
	end
	table.sort(names)
	out[#out + 1] = 'since'
	out[#out + 1] = str(num(h.rev) - 1)
	out[#out + 1] = 'rev'
	out[#out + 1] = h.rev
	for _, field in ipairs(names) do
		if changes[field] then
			out[#out + 1] = field
			out[#out + 1] = changes[field]
		else
			gone[#gone + 1] = field
		end
	end
	out[#out + 1] = 'gone'
	out[#out + 1] = #gone > 0 and table.concat(gone, ',') or '-'
end

-- The text of the notice: the state after this call. A commit carries its record, without the secret, or its changes.
local function notice()
	local text = (h.epoch or '0') .. ' ' .. (h.ph or 'form')
	if not news or not h.gid then return text end
	local out, members = reply(text), 0
	for _ in pairs(g.m) do members = members + 1 end
	if news == 'record' and members <= NOTICE_MEMBERS then
		add_record(out)
	elseif news == 'record' and not add_few_changes(out) then
		return text
	elseif news == 'news' then
		if members <= NOTICE_MEMBERS then return text end
		add_own_news(out)
	end
	local kept = { text }
	for i = 2, #out, 2 do
		if out[i] ~= 'secret' then
			kept[#kept + 1] = out[i]
			kept[#kept + 1] = out[i + 1]
		end
	end
	return table.concat(kept, '\n')
end

-- `log` is the last revision, followed by one word for each revision.
local function log_news()
	local names = {}
	for field in pairs(changes) do
		if field:find('^[jew]:') then names[#names + 1] = field end
	end
	local last, line = (h.log or ''):match('^(%d+)(.*)$')
	line = (last == h.rev and line or '') .. ' ' .. (#names > 0 and table.concat(names, ',') or '-')
	if #line > LOG_BYTES then line = line:sub(-LOG_BYTES):match(' .*$') or '' end
	set('rev', str(num(h.rev) + 1))
	set('log', h.rev .. line)
end

local function flush()
	if erased then call('DEL', KEY) end
	if moved then
		log_news()
		if not tell and h.ph == 'run' then news = 'news' end
		tell = true
	end
	local put_list, del_list = {}, {}
	for field, value in pairs(changes) do
		if value then
			put_list[#put_list + 1] = field
			put_list[#put_list + 1] = value
		else
			del_list[#del_list + 1] = field
		end
	end
	in_batches('HDEL', del_list)
	in_batches('HSET', put_list)
	if h.ph == 'closed' then
		if changes.ph then call('PEXPIRE', KEY, TTL_CLOSED_MS) end
	elseif RANK ~= '-' or #put_list > 0 then -- a call from outside that only reads keeps nothing alive
		call('PEXPIRE', KEY, TTL_MS)
	end
	if tell then call('PUBLISH', CHANNEL, notice()) end
end
