-- SPDX-License-Identifier: Apache-2.0
--
-- All calls of the store, in one script. KEYS[1] is the hash of the group, KEYS[2] its channel. store.h has the wire
-- format, PROTOCOL.md sections 3 and 4 the rules. A call works on a copy of the hash and writes its changes at the end,
-- so a call that fails writes nothing. Every member makes the calls of a view change, so these read only the fields
-- that they need. Code that walks all ranks reads the whole hash first (all()). Ranks are always walked in ascending
-- order: nothing depends on the order of a table.

local KEY, CHANNEL = KEYS[1], KEYS[2]
local NAME, GID, RANK, INC, NONCE, LIFE, RND =
	ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local COMMON = 7
local PROTO = '2'
local TTL_MS, TTL_CLOSED_MS = 600000, 60000
local STAMP_STEP = 5         -- 1 + 2D: no stamp of the old view is used again
local STAMP_MAX = 2147483648 -- stamps restart above it: members have 32 bits for them
local EPOCH_MAX = 4294967294 -- members have 32 bits for epochs, too; epochs never restart
local INC_MAX = 9007199254740991 -- the largest integer of a Lua number
local KEEP_EPOCHS = 16       -- epochs with an l: field
local INC_STEP = 1048576     -- upper bound of incarnations given out and forgotten
local STALE_MS = 10000       -- a joiner without a beat for this long loses its rank to `any`
local FORGET_MS = 5000       -- a group with a younger beat is not forgotten
local NOTICE_MEMBERS = 64    -- of larger views a notice has only changes: the record would cost members squared
local NOTICE_BYTES = 256     -- of the ranks that changed; if they are more, members peek
local LOG_BYTES = 2048       -- of the log of changes of j: e: w:, so that replies carry only changes
local HUGE = 2^63            -- numbers are below it
local MAX_RANKS = 4096
local LEASES = 16            -- following ranks whose last beats the reply to a beat carries
local OLD_LIVES = 16         -- ended groups of this name that are remembered
local TAKEN_RANKS = 64       -- ranks in the way that one reply names
local SHOWN = 48             -- characters of a value in an error text

-- Fields without a colon. Every call reads HOT; COLD is read as a whole when one of its fields is needed.
local HOT = { 'proto', 'gid', 'srv', 'gen', 'ph', 'epoch', 'vid', 'act', 'rev', 'max', 'late', 'deaf', 'unack' }
local COLD = { 'secret', 'policy', 'world', 'incs', 'base', 'fail', 'stamp', 'size', 'moved', 'log', 'job', 'alike', 'old', 'fault' }
local KINDS = 'jmouelwxdbrkctq' -- letters of the fields with a rank or an epoch
-- Kinds whose field of the caller's rank a call reads at once.
local OWN = { report = 'cmjrbdx', ack = 'cmjk', beat = 'cmj', peek = 'cmj', open = 'cmj', decide = 'cmj', ready = 'cmjw' }

local running                -- the last command given to the server: its refusal does not always name it
local function call(command, ...)
	running = command
	return redis.call(command, ...)
end
local whole = false          -- the whole hash was read: a field that is missing here does not exist
local changes = {}           -- field -> value, false: deleted
local tell, moved, erased = false, false, false
local news = nil             -- `record`, `state` or `news`: the content of the notice, so that members need not ask
local L                      -- the name of this server

local cold = {
	__index = function(t, field)
		setmetatable(t, nil)
		local v = call('HMGET', KEY, unpack(COLD))
		for i, f in ipairs(COLD) do t[f] = t[f] or v[i] or nil end
		return t[field]
	end
}
local h = setmetatable({}, cold)

local letter = {}
local lazy = {
	__index = function(t, r)
		if whole then return nil end
		local field = string.format('%s:%.0f', letter[t], r)
		if changes[field] ~= nil then return changes[field] or nil end
		local v = call('HGET', KEY, field)
		t[r] = v
		return v or nil
	end
}
local g = setmetatable({}, { -- g.m[3]: field `m:3`; false or nil: there is none
	__index = function(t, p)
		local kind = setmetatable({}, lazy)
		letter[kind] = p
		t[p] = kind
		return kind
	end
})

local function arg(i) return ARGV[COMMON + i] or '-' end
local function num(text) -- 0 for a text that is no number, or one that does not count
	local n = tonumber(text)
	return n and n > -HUGE and n < HUGE and math.floor(n) or 0
end
local function str(n) return string.format('%.0f', n) end
local function word(text, i)
	if not text then return nil end
	if i == 1 then return text:match('%S+') end
	for w in text:gmatch('%S+') do
		i = i - 1
		if i == 0 then return w end
	end
	return nil
end
local function one_word(text) -- the value without spaces
	text = text:gsub('%s', '_')
	return text == '' and '-' or text
end

local function set(field, value)
	if h[field] ~= value then
		h[field] = value
		changes[field] = value
	end
end

local function put(p, r, value)
	r = num(r)
	if (g[p][r] or nil) ~= value then
		g[p][r] = value
		changes[p .. ':' .. str(r)] = value or false
	end
end

local function clear(p)
	for r in pairs(g[p]) do g[p][r] = nil end
end

local function drop(prefixes) -- after all()
	for p in prefixes:gmatch('.') do
		for r in pairs(g[p]) do changes[p .. ':' .. str(r)] = false end
		clear(p)
	end
end

local function note(p, r, value) -- a change that `rev` counts
	if (g[p][num(r)] or nil) ~= value then
		put(p, r, value)
		moved = true
	end
end

local function sorted(t)
	local list = {}
	for r in pairs(t) do list[#list + 1] = r end
	table.sort(list)
	return list
end

local function ranks(t)
	local list = sorted(t)
	return #list > 0 and table.concat(list, ',') or '-'
end

local function each_pair(text) -- `rank:inc,...`
	return text:gmatch('(%d+):(%d+)')
end

local function all()
	if whole then return end
	for _, kind in pairs(g) do
		for r, v in pairs(kind) do
			if not v then kind[r] = nil end
		end
	end
	whole = true
	setmetatable(h, nil)
	local flat = call('HGETALL', KEY)
	for i = 1, #flat, 2 do
		local field, value = flat[i], flat[i + 1]
		local p = field:sub(1, 1)
		if changes[field] ~= nil then -- newer than the hash
		elseif field:byte(2) == 58 and KINDS:find(p, 1, true) then
			g[p][num(field:sub(3))] = value
		else
			h[field] = value
		end
	end
end

-- The reply to a refusal that does not depend on the hash: a permission that the user lacks, a command that is missing.
local function denied(err)
	local text = tostring(type(err) == 'table' and err.err or err)
	if text:find('NOPERM', 1, true) or text:find('executing the script can', 1, true) or text:find('ACL failure', 1, true) then
		return { 'ERROR', 'why', 'NOPERM ' .. tostring(running) .. ': ' .. text }
	end
	if text:find('nknown Redis command', 1, true) then return { 'ERROR', 'why', 'NOCOMMAND ' .. tostring(running) } end
	return nil
end

-- The reply of @work, or the server's refusal.
local function guarded(work)
	local good, out = pcall(work)
	if good or denied(out) then return good and out or denied(out) end
	error(out, 0) -- full, read-only, ...: the client gets the server's own words
end

-- Returns nil if the key is of another type.
local function load_hot()
	local own = OWN[NAME] or 'cmj'
	local fields, r = {}, tonumber(RANK)
	if r ~= r then r = nil end -- "nan" reads as a number, but names no field
	for i = 1, r and #own or 0 do fields[i] = own:sub(i, i) .. ':' .. RANK end
	for i = 1, #HOT do fields[#fields + 1] = HOT[i] end
	running = 'HMGET'
	local v = redis.pcall('HMGET', KEY, unpack(fields))
	if v.err and denied(v) then error(v.err, 0) end
	if v.err then return nil end
	local skip = #fields - #HOT
	for i = 1, skip do g[own:sub(i, i)][r] = v[i] or nil end
	for i = 1, #HOT do rawset(h, HOT[i], v[skip + i] or nil) end
	return true
end

local function named(section, name)
	local info = call('INFO', section)
	local _, at = info:find(name, 1, true)
	return at and info:match('^%w+', at + 1) or '-'
end

local function server_name() return named('server', 'run_id:') .. ':' .. named('replication', 'master_replid:') end

local function server_ms()
	local t = call('TIME')
	return num(t[1]) * 1000 + math.floor(num(t[2]) / 1000)
end

local function in_batches(command, list)
	for i = 1, #list, 1000 do call(command, KEY, unpack(list, i, math.min(i + 999, #list))) end
end
