-- SPDX-License-Identifier: Apache-2.0
-- All calls of the store, in one script. KEYS[1] is the hash of the group, KEYS[2] its channel. store.h has the wire
-- format, PROTOCOL.md sections 3 and 4 the rules. A call works on a copy of the hash and writes its changes at the end,
-- so a call that fails writes nothing. Every member makes the calls of a view change, so these read only the fields
-- that they need. Code that walks all ranks reads the whole hash first (all()). Ranks are always walked in ascending
-- order: nothing depends on the order of a table.

local KEY, CHANNEL = KEYS[1], KEYS[2]
local COMMON = 7             -- arguments of every call
local PROTO = '2'

-- Fields without a colon. Every call reads HOT; COLD is read as a whole when one of its fields is needed.
local HOT = { 'proto', 'gid', 'srv', 'gen', 'ph', 'epoch', 'vid', 'act', 'rev', 'max', 'late', 'deaf', 'unack' }
local COLD = { 'secret', 'policy', 'world', 'incs', 'base', 'fail', 'stamp', 'size', 'moved', 'log', 'job', 'alike', 'old', 'fault' }
-- Kinds of fields with a rank or an epoch, and their letters.
local KINDS = { members = 'm', voters = 'o', doubted = 'u', lineage = 'l', joiners = 'j', invited = 'w', marked = 'e', accused = 'x',
		proven = 'd', departed = 'q', beats = 't', reports = 'r', complaints = 'b', acks = 'k', hellos = 'c' }
local LETTERS = 'bcdejklmoqrtuwx'
local RECORD = 'moulew' -- a member has a copy of these
-- Kinds whose field of the caller's rank the calls of members read at once; all others read those of OWN_ALWAYS.
local OWN_ALWAYS = 'cmj'
local OWN = { report = 'cmjrbdx', ack = 'cmjk', ready = 'cmjw', beat = 'cmj', peek = 'cmj', open = 'cmj', decide = 'cmj' }

local running                -- the last command given to the server: its refusal does not always name it
local function call(command, ...)
	running = command
	return redis.call(command, ...)
end
local whole = false          -- the whole hash was read: a field that is missing here does not exist
local tell, moved, erased = false, false, false
local news = nil             -- `record`, `state` or `news`: the content of the notice, so that members need not ask
local server                 -- the name of this server
local changes = {}           -- field -> value, false: deleted
local NAME, GID, RANK, INC, NONCE, LIFE, RND = unpack(ARGV, 1, COMMON)
local function arg(i) return ARGV[COMMON + i] or '-' end
local function num(text) -- 0 for a text that is no number, or one that does not count
	local n = tonumber(text)
	return n and n > -2^63 and n < 2^63 and math.floor(n) or 0
end
local function str(n) return string.format('%.0f', n) end
local group = setmetatable({}, { -- the fields without a colon
	__index = function(fields, field)
		setmetatable(fields, nil)
		local values = call('HMGET', KEY, unpack(COLD))
		for i, name in ipairs(COLD) do fields[name] = fields[name] or values[i] or nil end
		return fields[field]
	end
})

-- of.members[3] is field `m:3`; false or nil: there is none.
local letter_of = {}
local function field_of(kind, rank) return letter_of[kind] .. ':' .. str(rank) end
local lazy = {
	__index = function(kind, rank)
		if whole then return nil end
		local field = field_of(kind, rank)
		if changes[field] ~= nil then return changes[field] or nil end
		local value = call('HGET', KEY, field)
		kind[rank] = value
		return value or nil
	end
}
local of = setmetatable({}, { -- by name and by letter
	__index = function(kinds, key)
		local letter = KINDS[key] or (LETTERS:find(key, 1, true) and key)
		if not letter then return nil end
		local kind = rawget(kinds, letter) or setmetatable({}, lazy)
		kinds[key], kinds[letter], letter_of[kind] = kind, kind, letter
		return kind
	end
})

local function set(fields)
	for field, value in pairs(fields) do
		if group[field] ~= value then group[field], changes[field] = value, value end
	end
end

local function put(kind, rank, value)
	rank = num(rank)
	if (kind[rank] or nil) ~= value then
		kind[rank] = value
		changes[field_of(kind, rank)] = value or false
	end
end

local function drop(...) -- after all()
	for _, kind in ipairs({ ... }) do
		for rank in pairs(kind) do put(kind, rank, nil) end
	end
end

local function note(kind, rank, value) -- a change that `rev` counts
	moved = moved or (kind[num(rank)] or nil) ~= value
	put(kind, rank, value)
end

local function each_pair(text) -- of `rank:inc,...`
	local next_pair = (text or ''):gmatch('(%d+):(%d+)')
	return function()
		local rank, inc = next_pair()
		return rank and num(rank), inc
	end
end

local function all()
	if whole then return end
	for _, kind in pairs(of) do
		for rank, value in pairs(kind) do
			if not value then kind[rank] = nil end
		end
	end
	whole = true
	setmetatable(group, nil)
	local flat = call('HGETALL', KEY)
	for i = 1, #flat, 2 do
		local field, value = flat[i], flat[i + 1]
		local kind = field:byte(2) == 58 and of[field:sub(1, 1)]
		if changes[field] ~= nil then -- newer than the hash
		elseif kind then
			kind[num(field:sub(3))] = value
		else
			group[field] = value
		end
	end
end

local function failed(why) return { 'ERROR', 'why', why } end
-- The reply to a refusal that does not depend on the hash: a permission that the user lacks, a command that is missing.
local function denied(err)
	local text = tostring(type(err) == 'table' and err.err or err)
	if text:find('NOPERM', 1, true) or text:find('executing the script can', 1, true) or text:find('ACL failure', 1, true) then
		return failed('NOPERM ' .. tostring(running) .. ': ' .. text)
	end
	return text:find('nknown Redis command', 1, true) and failed('NOCOMMAND ' .. tostring(running)) or nil
end

-- The reply of @work, or the server's refusal.
local function guarded(work)
	local good, out = pcall(work)
	if good or denied(out) then return good and out or denied(out) end
	error(out, 0) -- full, read-only, ...: the client gets the server's own words
end

-- Returns nil if the key is of another type.
local function load_hot()
	local own, rank, fields = OWN[NAME] or OWN_ALWAYS, tonumber(RANK), {}
	if rank ~= rank then rank = nil end -- "nan" reads as a number, but names no field
	local skip = rank and #own or 0
	for i = 1, skip do fields[i] = own:sub(i, i) .. ':' .. RANK end
	for i, name in ipairs(HOT) do fields[skip + i] = name end
	running = 'HMGET'
	local values = redis.pcall('HMGET', KEY, unpack(fields))
	if values.err then return denied(values) and error(values.err, 0) end
	for i = 1, skip do of[own:sub(i, i)][rank] = values[i] or nil end
	for i, name in ipairs(HOT) do rawset(group, name, values[skip + i] or nil) end
	return true
end

local function named(section, name)
	local info = call('INFO', section)
	local _, at = info:find(name, 1, true) -- a pattern would take far longer
	return at and info:match('^%w+', at + 1) or '-'
end

local function server_name() return named('server', 'run_id:') .. ':' .. named('replication', 'master_replid:') end

local function server_ms()
	local t = call('TIME')
	return num(t[1]) * 1000 + math.floor(num(t[2]) / 1000)
end

local function batches(command, list, take) -- take(first, the reply to the fields from this position on)
	local BATCH = 1000 -- fields of one command
	for first = 1, #list, BATCH do
		local out = call(command, KEY, unpack(list, first, math.min(first + BATCH - 1, #list)))
		if take then take(first, out) end
	end
end
