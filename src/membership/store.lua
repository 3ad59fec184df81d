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

-- ---- The hash ------------------------------------------------------------------------------------

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

-- ---- Replies -------------------------------------------------------------------------------------

local function reply(status, ...)
	if not h.gid then return { status, ... } end
	return { status, 'gid', h.gid, 'ph', h.ph or '-', 'epoch', h.epoch or '-', 'vid', h.vid or '-', 'life', h.gen or '-', ... }
end

local function add_fields(out, prefixes)
	all()
	for p in prefixes:gmatch('.') do
		for _, r in ipairs(sorted(g[p])) do
			out[#out + 1] = p .. ':' .. str(r)
			out[#out + 1] = g[p][r]
		end
	end
	return out
end

local function add_record(out) -- epoch, vid, gid: every reply has them
	for _, f in ipairs({ 'proto', 'secret', 'max', 'policy', 'world', 'job', 'alike', 'old', 'incs', 'base', 'fail', 'stamp', 'size', 'act' }) do
		if h[f] then
			out[#out + 1] = f
			out[#out + 1] = h[f]
		end
	end
	return add_fields(out, 'moulew')
end

local function fetch(p, list)
	if whole then return end
	for first = 1, #list, 1000 do
		local fields, last = {}, math.min(first + 999, #list)
		for i = first, last do fields[#fields + 1] = p .. ':' .. list[i] end
		for i, v in ipairs(call('HMGET', KEY, unpack(fields))) do g[p][num(list[first + i - 1])] = v end
	end
end

-- Adds j: e: w: that changed since @rev; all of them if the log does not reach back to @rev.
local function add_news(out, rev)
	local last, line = (h.log or ''):match('^(%d+)(.*)$')
	local words, seen, gone, gap = {}, {}, {}, num(h.rev) - (tonumber(rev) or -1)
	for w in (line or ''):gmatch('%S+') do words[#words + 1] = w end
	if last ~= h.rev or not (gap >= 0 and gap <= #words) then return add_fields(out, 'jew') end
	local list = { j = {}, e = {}, w = {} }
	for p, r in table.concat(words, ',', #words - gap + 1):gmatch('([jew]):(%d+)') do
		if not seen[p .. r] then list[p][#list[p] + 1] = r end
		seen[p .. r] = true
	end
	for p, changed in pairs(list) do
		fetch(p, changed)
		for _, r in ipairs(changed) do
			local field, value = p .. ':' .. r, g[p][num(r)]
			if value then
				out[#out + 1] = field
				out[#out + 1] = value
			else
				gone[#gone + 1] = field
			end
		end
	end
	out[#out + 1] = 'gone'
	out[#out + 1] = #gone > 0 and table.concat(gone, ',') or '-'
	return out
end

-- Adds what the last commit changed, for a caller that knows the view before, @known, with vid @on.
local function add_changes(out, known, on)
	for _, f in ipairs({ 'policy', 'incs', 'base', 'fail', 'stamp', 'size', 'act' }) do
		out[#out + 1] = f
		out[#out + 1] = h[f] or '-'
	end
	out[#out + 1] = 'on'
	out[#out + 1] = known .. ' ' .. on
	out[#out + 1] = 'l:' .. h.epoch
	out[#out + 1] = g.l[num(h.epoch)] or '-'
	local moved_ranks = {}
	for r in h.moved:match(' (.*)$'):gmatch('%d+') do moved_ranks[#moved_ranks + 1] = r end
	fetch('m', moved_ranks)
	for _, r in ipairs(moved_ranks) do
		out[#out + 1] = 'm:' .. r
		out[#out + 1] = g.m[num(r)] or '-'
	end
	return out
end

-- The vid of view @known, if it was the last view and became active, so that the changes since are at hand.
local function last_view(known)
	local epoch = num(h.epoch)
	local on = num(known) > 0 and num(known) == epoch - 1 and h.act == known and word(g.l[epoch - 1], 1)
	return on and (h.moved or ''):match('^(%d+) ') == h.epoch and on
end

-- Adds the record for a caller that knows view @known: only the changes if that was the last view and became active.
local function add_view(out, known)
	local on = last_view(known)
	if on then return add_changes(out, known, on), false end
	add_record(out)
	return add_fields(out, 'j'), true
end

local function full(status, ...)
	return add_fields(add_record(reply(status, ...)), 'j')
end

-- ---- Writing ------------------------------------------------------------------------------------

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

-- ---- Shared by the calls of a view change ---------------------------------------------------------

local function same_inc(p, r, inc) return inc and word(g[p][r], 1) == inc end

local function less(counter)
	if h[counter] then set(counter, str(num(h[counter]) - 1)) end
end

local function awaited(r, inc) return not same_inc('r', r, inc) and not same_inc('d', r, inc) end

-- Member r has reported or is proven dead. Call this before that fact is noted.
local function not_awaited(r, inc)
	if not awaited(r, inc) then return end
	less('late')
	if not same_inc('x', r, inc) then less('deaf') end
end

-- A hello alone is no promise to obey this life: its reply may be lost. Whoever names this life has had a reply in it.
local function note_hello() put('c', RANK, LIFE == h.gen and INC or INC .. ' said') end

local function said_hello()
	if LIFE ~= h.gen or word(g.c[num(RANK)], 1) ~= INC then return false end
	note_hello()
	return true
end

local function member_inc(r) return word(g.m[num(r)], 1) end

local function joiner_inc(r) return word(g.j[num(r)], 1) end

local function start_change()
	if h.ph ~= 'run' and h.ph ~= 'inst' then return end
	set('ph', 'open') -- there is no r: or b:; they are noted in `open` alone and dropped when that phase ends
	tell, news = true, nil
end

local function may_enter(r) -- joiners that the next commit takes
	local v = g.j[r]
	return num(h.epoch) > 0 and word(v, 5) == h.epoch and (h.policy == 'auto' or g.w[r])
end

local function is_current(epoch) return h.epoch == epoch and num(epoch) > 0 end

local function lists_me(members) return word(members[num(RANK)], 1) == INC end

local function decided(status, ...) -- the reply of report and decide
	if status == 'COMMIT' then return (add_view(reply(status), ARGV[COMMON + 1])) end
	if status == 'CLOSED' then
		return reply(status, 'why', num(h.epoch) >= EPOCH_MAX and 'epoch numbers have run out: form a new group' or 'the last member has left the group')
	end
	return reply(status, ...)
end

-- The reply to a call that came too late or too early and stored nothing.
local function current(epoch)
	if h.ph == 'closed' then return decided('CLOSED') end
	if num(h.epoch) > num(epoch) then return decided('COMMIT') end
	return reply('WAIT')
end

-- Is (r, inc) a voter of a view that may be active elsewhere? decide counts it, although the current view lacks it.
local function in_doubt(r, inc)
	all()
	for _, list in pairs(g.u) do
		for rank, voter in each_pair(list) do
			if num(rank) == r and voter == inc then return true end
		end
	end
	return false
end

-- A rank has one proof. A voter's is kept over that of a later joiner, which comes in when no view has that voter any more.
local function prove(r, inc, by, kind)
	r = num(r)
	local old = word(g.d[r], 1)
	if old == inc then return end
	if old and g.o[r] == old and g.o[r] ~= inc then return end
	if member_inc(r) == inc then not_awaited(r, inc) end
	put('d', r, inc .. ' ' .. by .. ' ' .. one_word(kind))
end

-- ---- open, report, decide, ack, peek, beat -------------------------------------------------------
--
-- Every member makes these calls. Nearly always they need few fields and none of the rules below, so this part runs
-- first, before the rules are defined. A call that needs them sets `more` and is run again: it can be repeated.

local script = {}
local more = false
local count, activate, outside, form, bury

local decide = function(force)
	if force < 2 and num(force == 0 and h.late or h.deaf) > 0 then return 'WAIT' end
	more = true
	return 'WAIT'
end

-- The reply after a founder reported that settings of the founders conflict. Late founders get it, too.
local function called_off()
	local err, why = (h.fault or ''):match('^%d+ (%S+) (.*)$')
	return err and reply('REFUSED', 'err', err, 'why', why)
end

script.ready = function()
	local r, epoch = num(RANK), arg(1)
	local inc, nonce, addr, host = (g.j[r] or ''):match('^(%S+) (%S+) (%S+) (%S+)')
	local gone = word(g.j[r], 6) or '-'
	local function note_ready(for_epoch) note('j', r, table.concat({ inc, nonce, addr, host, for_epoch, gone }, ' ')) end
	if h.ph == 'closed' then return called_off() or reply('CLOSED', 'why', 'no member is left in the group') end
	if inc == INC and h.ph == 'form' then -- ready for the first view
		more = true
		note_ready('1')
		if form then form() end
	elseif inc == INC and is_current(epoch) then
		note_ready(epoch)
		if h.ph == 'run' and may_enter(r) and not g.m[r] then start_change() end
	end
	return reply('OK')
end

script.open = function()
	local epoch, reason = arg(1), one_word(arg(2))
	if not is_current(epoch) or h.ph == 'closed' then return reply(h.ph == 'closed' and 'CLOSED' or 'OK') end
	local accused = {}
	for i = 1, math.min(num(arg(3)), #ARGV) do accused[i] = str(num(arg(2 + 2 * i))) end
	fetch('m', accused)
	fetch('x', accused)
	for i = 1, math.min(num(arg(3)), #ARGV) do
		local r, inc = num(arg(2 + 2 * i)), arg(3 + 2 * i)
		if member_inc(r) == inc and not same_inc('x', r, inc) then
			if awaited(r, inc) then less('deaf') end
			put('x', r, inc .. ' ' .. RANK .. ' ' .. reason)
		end
	end
	start_change()
	return reply('OK')
end

local function proves_member(list)
	for r, inc in each_pair(list) do
		if member_inc(r) == inc then return true end
	end
	return false
end

script.report = function()
	local epoch, vid, bad = arg(1), arg(2), arg(9)
	if not lists_me(g.m) then return reply('ERROR', 'why', 'only a member of the view reports') end
	if is_current(epoch) and vid == h.vid and h.act ~= epoch and arg(7):find('a', 1, true) then
		if not activate then -- the members went on by themselves: votes of the removed no longer count
			more = true
			return nil
		end
		activate()
	end
	if is_current(epoch) and vid == h.vid and arg(7):find('o', 1, true) and proves_member(arg(8)) then start_change() end
	if not is_current(epoch) or vid ~= h.vid or h.ph ~= 'open' then return current(epoch) end
	not_awaited(num(RANK), INC)
	put('r', RANK, table.concat({ INC, arg(3), arg(4), arg(5), arg(6), one_word(arg(7)) }, ' '))
	for r, inc in each_pair(arg(8)) do
		if member_inc(r) == inc or g.o[num(r)] == inc or in_doubt(num(r), inc) then prove(r, inc, RANK, 'member') end
	end
	put('b', RANK, bad ~= '-' and bad or nil)
	return decided(decide(0))
end

script.decide = function()
	if not is_current(arg(1)) or h.ph ~= 'open' then return current(arg(1)) end
	return decided(decide(num(arg(2))))
end

script.ack = function()
	if not is_current(arg(1)) or arg(2) ~= h.vid or (h.ph ~= 'inst' and h.ph ~= 'run') then return current(arg(1)) end
	if not lists_me(g.m) then return reply('ERROR', 'why', 'only a member of the view acknowledges it') end
	if h.ph == 'run' then return reply('ACTIVE') end
	local again = g.k[num(RANK)] == INC
	if not again then
		put('k', RANK, INC)
		less('unack')
	end
	if not again and num(h.unack) > 0 then return reply('WAIT') end
	if not activate then -- perhaps the last one; a caller that repeats its ack gets the missing ranks
		more = true
		return nil
	end
	local missing = {}
	for r in pairs(g.m) do
		if g.k[r] ~= member_inc(r) then missing[r] = true end
	end
	if next(missing) then
		count()
		return reply('WAIT', 'wait', ranks(missing))
	end
	activate()
	return reply('ACTIVE')
end

local function beats(out)
	local now, fields = server_ms(), {}
	changes['t:' .. RANK] = str(now) .. ' ' .. one_word(arg(3))
	for i = 1, math.min(LEASES, num(h.max) - 1) do fields[i] = 't:' .. str((num(RANK) + i) % num(h.max)) end
	local v = #fields > 0 and call('HMGET', KEY, unpack(fields)) or {}
	out[#out + 1] = 'now'
	out[#out + 1] = str(now)
	for i, f in ipairs(fields) do
		if v[i] then
			out[#out + 1] = f
			out[#out + 1] = word(v[i], 1) -- Members need only the time; ep-admin reads the rest.
		end
	end
	return out
end

script.peek = function()
	if RANK == '-' then return outside() end
	if h.ph == 'closed' and h.epoch == '0' and h.fault then return called_off() end
	local out, all_told = reply('OK'), false
	if h.epoch ~= arg(1) then out, all_told = add_view(out, arg(1)) end
	return h.rev ~= arg(2) and not all_told and add_news(out, arg(2)) or out
end

script.beat = function() return beats(script.peek()) end

local function finish(out)
	if next(h) or erased then flush() end
	if h.gid then -- the value after this call
		out[#out + 1] = 'rev'
		out[#out + 1] = h.rev or '0'
	end
	return out
end

-- Returns the reply, and whether changes are written: those of a call that failed are not. A damaged hash does not
-- raise an error, which members would take for a store that cannot be reached.
local function attempt(work)
	local good, out = pcall(work)
	if good then return out, true end
	if denied(out) then return denied(out), false end
	return { 'ERROR', 'why', KEY .. ' cannot be understood: ' .. tostring(type(out) == 'table' and out.err or out) }, false
end

-- Is the caller a member or joiner that this life knows?
local function well_known()
	return h.proto == PROTO and h.gid == GID and h.srv == L and said_hello() and
	       (member_inc(RANK) == INC or joiner_inc(RANK) == INC)
end

local is_hash
local function at_once()
	is_hash = load_hot()
	L = server_name()
	if #ARGV >= COMMON and OWN[NAME] and #RND == 32 and is_hash and well_known() then
		local out, good = attempt(script[NAME])
		if not good then return out end
		if not more then return finish(out) end
	end
	return false
end

local early = guarded(at_once)
if early then return early end

-- ---- Lives and views -----------------------------------------------------------------------------

local function active() return num(h.epoch) > 0 and h.act == h.epoch end

-- Counts the members that are waited for, so that a report or an acknowledgement need not read all fields. `late`:
-- without a report in a change. `deaf`: late and not accused. `unack`: without an acknowledgement of a view that is not
-- active. The counts only say when to look: code that finds 0, or no count, reads the fields themselves.
count = function()
	local late, deaf, unack = 0, 0, 0
	for r, v in pairs(g.m) do
		local inc = word(v, 1)
		if not same_inc('r', r, inc) and not same_inc('d', r, inc) then
			late = late + 1
			if not same_inc('x', r, inc) then deaf = deaf + 1 end
		end
		if g.k[r] ~= inc then unack = unack + 1 end
	end
	set('late', str(late))
	set('deaf', str(deaf))
	set('unack', str(unack))
end

local function drop_view()
	drop('moul')
	set('epoch', '0')
	set('vid', '-')
	set('act', '0')
	set('ph', 'open') -- nothing can be decided until a member says hello
end

-- Two servers may begin a life from the same copy or the same record. A random leap gives them different incarnations.
local function leap(incs)
	return str(math.min(num(incs) + INC_STEP + num(tonumber(RND:sub(21, 24), 16)), INC_MAX))
end

-- A member's record shows another server's incarnations. That server may be giving out the next one at this moment.
local function pass(incs)
	if num(incs) > num(h.incs) then set('incs', leap(incs)) end
end

local function new_life(number)
	set('srv', L)
	set('gen', str(number + 1) .. '.' .. RND:sub(1, 16))
	set('incs', leap(h.incs))
	set('since', str(server_ms()))
	-- a rev of another life must differ from all of this one
	set('rev', str((number + 1) % 1024 * INC_STEP + num(tonumber(RND:sub(17, 20), 16))))
	drop('crbk')
	if num(h.epoch) > 0 and not active() and h.ph ~= 'closed' then drop_view() end
	count()
	tell = true
end

local function life_number(life) return num(life:match('^(%d+)%.')) end

local function pending(r) return word(g.m[num(r)], 2) == '-' end

local function admitted() -- `rank:inc,...` of the view
	local list = {}
	for _, r in ipairs(sorted(g.m)) do
		if not pending(r) then list[#list + 1] = str(r) .. ':' .. member_inc(r) end
	end
	return table.concat(list, ',')
end

local function voters_are_admitted()
	drop('ou')
	for r in pairs(g.m) do
		if not pending(r) then put('o', r, member_inc(r)) end
	end
end

local function open_for_joiners()
	if h.ph ~= 'run' then return end
	for r in pairs(g.j) do
		if may_enter(r) and not g.m[r] then return start_change() end
	end
end

-- ---- decide --------------------------------------------------------------------------------------

local function has_flag(rep, letter) return rep and rep.flags:find(letter, 1, true) ~= nil end

local function read_members()
	local mem = {}
	for r, v in pairs(g.m) do
		local inc, from, addr, host = v:match('^(%S+) (%S+) (%S+) (%S+)')
		mem[r] = { inc = inc, from = from, addr = addr, host = host }
		local i, done, ent, adm, stamp, flags = (g.r[r] or ''):match('^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
		if i == inc then
			mem[r].rep = { done = num(done), ent = num(ent), adm = num(adm), stamp = num(stamp), flags = flags }
		end
	end
	return mem
end

-- Of kept ranks that cannot reach each other, removes the one with more complaints; of equals the higher rank. Returns
-- whether there were complaints.
local function settle_complaints(mem, T)
	local bad, any = {}, false
	for a in pairs(T) do
		for r, inc in each_pair(g.b[a] or '') do
			local b = num(r)
			if a ~= b and T[b] and mem[b].inc == inc then
				bad[a], bad[b] = bad[a] or {}, bad[b] or {}
				bad[a][b], bad[b][a] = true, true
				any = true
			end
		end
	end
	while next(bad) do
		local worst, most = -1, 0
		for r, others in pairs(bad) do
			local n = 0
			for _ in pairs(others) do n = n + 1 end
			if n > most or (n == most and r > worst) then worst, most = r, n end
		end
		T[worst] = nil
		for other in pairs(bad[worst]) do
			bad[other][worst] = nil
			if not next(bad[other]) then bad[other] = nil end
		end
		bad[worst] = nil
	end
	return any
end

local function evicted(r, inc) return same_inc('e', r, inc) and word(g.e[r], 2) == 'evict' end

local function reporters_kept(mem, with_evicted)
	local T = {}
	for r, m in pairs(mem) do
		local out = evicted(r, m.inc) and not with_evicted
		if m.rep and not out and not has_flag(m.rep, 'l') and not same_inc('d', r, m.inc) then T[r] = true end
	end
	return T, settle_complaints(mem, T)
end

-- If a kept member completed the ADMIT, it admits all pending ranks. If none did, accused joiners are removed although
-- they reported, but for those that are needed.
local function admit(mem, T, with_accused)
	local a = 0
	for r in pairs(T) do a = math.max(a, mem[r].rep.adm) end
	for r, m in pairs(mem) do
		if m.from == '-' and a > 0 then
			m.from, m.came = str(a), true
			if m.rep and m.rep.adm ~= a then m.rep.done, m.rep.ent = a - 1, a - 1 end
		elseif m.from == '-' and T[r] and same_inc('x', r, m.inc) and not with_accused then
			T[r] = nil
		end
	end
end

-- Has a process that registered anew said that it gave up this incarnation? An address alone says nothing: a repeat of a
-- register may come late, and give a number to nobody.
local function given_up(rank, m)
	for _, v in pairs(g.j) do
		for r, inc in each_pair(word(v, 6) or '') do
			if num(r) == rank and inc == m.inc then return true end
		end
	end
	return false
end

-- One set of voters: nil if it agrees, else the missing voters. Half of them or fewer decide only if nobody else can have
-- decided. A rival view may have admitted members that have no vote here, so these count as voters do then.
local function missing_voters(W, mem, T)
	local size, kept, sure, need = 0, 0, true, {}
	local function meet(r, inc) -- 1: it is kept
		local here = mem[r] and mem[r].inc == inc
		if same_inc('d', r, inc) or (here and not T[r] and (has_flag(mem[r].rep, 'l') or given_up(r, mem[r]))) then return 0 end
		if g.c[r] ~= inc then sure = false end
		if here and T[r] then return 1 end
		need[r] = true
		return 0
	end
	for r, inc in pairs(W) do
		size, kept = size + 1, kept + meet(r, inc)
	end
	if 2 * kept > size then return nil end
	for r, m in pairs(mem) do
		if W[r] ~= m.inc then meet(r, m.inc) end
	end
	if (2 * kept == size and sure) or not next(need) then return nil end
	return need
end

local function no_quorum(mem, T)
	local sets = { g.o }
	if not active() then
		for _, list in pairs(g.u) do
			local W = {}
			for r, inc in each_pair(list) do W[num(r)] = inc end
			sets[#sets + 1] = W
		end
	end
	local need, short = {}, false
	for _, W in ipairs(sets) do
		local missing = missing_voters(W, mem, T)
		for r in pairs(missing or {}) do need[r] = true end
		short = short or missing ~= nil
	end
	return short and need
end

local function failed_at(mem, T, base)
	local fail
	for r in pairs(T) do
		local m = mem[r]
		if m.from ~= '-' then
			-- MISMATCH wins over LOST: it is the cause. If others are past that call, base fails with it.
			if has_flag(m.rep, 'm') then return 'MISMATCH' end
			if m.rep.ent == base and has_flag(m.rep, 's') then fail = 'LOST' end
		end
	end
	return fail
end

-- Notes that a rank left or was retired, and when. Only readers from outside use it; no decision depends on it.
local function note_left(r, inc)
	local why = same_inc('e', r, inc) and word(g.e[r], 2) == 'retire' and 'retired' or 'left'
	put('q', r, inc .. ' ' .. why .. ' ' .. str(server_ms()))
end

local function write_view(mem, T, J)
	local removed, added, other = {}, {}, {} -- other: kept, with another `from`
	for r, m in pairs(mem) do
		if not T[r] then
			removed[r] = true
			-- A vow to leave outlives the report: the member that gave it never decides again.
			if has_flag(m.rep, 'l') then
				put('d', r, m.inc .. ' ' .. str(r) .. ' left')
				note_left(r, m.inc)
			end
			put('m', r, nil)
		else
			local was = g.m[r]
			put('m', r, m.inc .. ' ' .. m.from .. ' ' .. m.addr .. ' ' .. m.host)
			if g.m[r] ~= was then other[r] = true end
			if m.came and m.from ~= '-' and g.w[r] then note('w', r, nil) end
		end
	end
	for r in pairs(J) do
		local inc, _, addr, host = g.j[r]:match('^(%S+) (%S+) (%S+) (%S+)')
		put('m', r, inc .. ' - ' .. addr .. ' ' .. host)
		note('j', r, nil)
		put('q', r, nil)
		added[r], other[r] = true, true
	end
	set('moved', str(num(h.epoch) + 1) .. ' ' .. ranks(other))
	for r in pairs(removed) do
		if g.e[r] and not same_inc('e', r, member_inc(r)) then note('e', r, nil) end
	end
	return removed, added
end

local function new_epoch(removed, added, lag)
	local epoch = num(h.epoch) + 1
	set('epoch', str(epoch))
	set('vid', RND:sub(17, 32))
	put('l', epoch, h.vid .. ' ' .. ranks(removed) .. ' ' .. ranks(added) .. ' ' .. ranks(lag))
	for e in pairs(g.l) do
		if e <= epoch - KEEP_EPOCHS then changes['l:' .. str(e)] = false end
	end
	drop('rkbx')
	count()
	set('ph', 'inst')
	tell, news = true, 'record'
end

local function commit(mem, T)
	local done, stamp, size = -1, num(h.stamp), num(h.size)
	for r in pairs(T) do
		local m = mem[r]
		stamp = math.max(stamp, m.rep.stamp)
		if m.from ~= '-' then done = math.max(done, m.rep.done) end
	end
	if done < 0 or num(h.epoch) >= EPOCH_MAX then -- nobody admitted is left, or no number for another view
		set('ph', 'closed')
		tell = true
		for r, m in pairs(mem) do
			if has_flag(m.rep, 'l') then note_left(r, m.inc) end
		end
		return 'CLOSED'
	end
	local base, lag, J = done + 1, {}, {}
	for r in pairs(T) do -- their ADMIT was not completed by anybody kept
		if mem[r].from ~= '-' and num(mem[r].from) >= base then mem[r].from = '-' end
	end
	for r in pairs(T) do
		if mem[r].from ~= '-' then
			size = math.max(size, r + 1)
			if mem[r].rep.done < base - 1 then lag[r] = true end
		end
	end
	set('size', str(size))
	for r in pairs(g.j) do
		if not T[r] and may_enter(r) and not g.o[r] then J[r] = true end -- one proof a rank: its old voter leaves first
	end
	local fail = failed_at(mem, T, base)
	set('fail', fail and str(base) .. ' ' .. fail or '0')
	set('base', str(fail and base + 1 or base))
	set('stamp', str(stamp < STAMP_MAX and stamp + STAMP_STEP or STAMP_STEP))
	local removed, added = write_view(mem, T, J)
	new_epoch(removed, added, lag)
	return 'COMMIT'
end

decide = function(force)
	if force < 2 and num(force == 0 and h.late or h.deaf) > 0 then return 'WAIT' end
	local mem, wait = read_members(), {}
	for r, m in pairs(mem) do
		if not m.rep and not same_inc('d', r, m.inc) and not (force >= 1 and same_inc('x', r, m.inc)) then
			wait[r] = true
		end
	end
	if next(wait) and force < 2 then
		count()
		return 'WAIT'
	end
	local T, complaints = reporters_kept(mem)
	-- More complaints usually follow the first. Deciding on a half-noticed partition keeps members of both halves.
	if complaints and force < 2 then return 'WAIT' end
	admit(mem, T)
	local need = no_quorum(mem, T)
	-- Others died since: evicted members stay while they are needed, and then accused joiners.
	for _, with_accused in ipairs({ false, true }) do
		local all = need and reporters_kept(mem, true)
		if all then
			admit(mem, all, with_accused)
			if not no_quorum(mem, all) then T, need = all, nil end
		end
	end
	if need then return 'NOQUORUM', 'need', ranks(need) end
	return commit(mem, T)
end

-- ---- register, ready -----------------------------------------------------------------------------

local function lists(text, w) -- is @w a word of @text?
	return text and (' ' .. text .. ' '):find(' ' .. w .. ' ', 1, true) ~= nil
end

-- Earlier groups of this name. `old`: they have ended for certain, and this group's members may tell any server so.
-- `quiet`: this server heard nothing of them.
local function is_old(gid) return lists(h.old, gid) or lists(h.quiet, gid) end

local function remember(field, gid)
	local list = {}
	for w in (h[field] or ''):gmatch('%S+') do list[#list + 1] = w end
	list[#list + 1] = gid
	set(field, table.concat(list, ' ', math.max(1, #list - OLD_LIVES + 1)))
end

local function wipe()
	erased = erased or h.gid ~= nil
	h, whole, news = {}, true, nil
	for field in pairs(changes) do changes[field] = nil end
	for p in pairs(g) do clear(p) end
end

local function create(a)
	set('proto', PROTO)
	set('gid', RND)
	set('secret', a.secret)
	set('max', str(a.max))
	set('policy', a.policy == 'manual' and 'manual' or 'auto')
	set('world', str(a.world))
	set('job', a.job)
	set('alike', #a.alike > 0 and table.concat(a.alike, ' ') or '-')
	set('incs', '0')
	set('ph', 'form')
	set('epoch', '0')
	set('vid', '-')
	set('act', '0')
	set('base', '1')
	set('fail', '0')
	set('stamp', '0')
	set('size', '0')
	L = server_name()
	new_life(0)
	set('incs', '0') -- a new group: no server can have given out any
end

-- The arguments of register: the process that asks for a rank, and its findings about processes in its way.
local function applicant()
	local a = { want = arg(1), addr = one_word(arg(2)), host = one_word(arg(3)), first = arg(4) == '1',
		    world = num(arg(5)), max = num(arg(6)), policy = arg(7), secret = arg(8), job = one_word(arg(9)),
		    age = tonumber(arg(10)), lapse = num(arg(11)), gone = arg(12), gids = arg(13), tell = arg(14) == '1',
		    alike = {} }
	for i = 15, #ARGV - COMMON do a.alike[#a.alike + 1] = one_word(arg(i)) end
	if a.lapse > 0 then a.lapse = math.max(a.lapse, FORGET_MS) end
	return a
end

-- Was rank r silent for @lapse ms? Never if @lapse is 0. Silence before this life does not count: the server was away.
local function silent(r, lapse, now)
	return lapse > 0 and now - math.max(num(word(g.t[r], 1)), num(h.since)) > lapse
end

-- rank -> inc of members, voters and joiners that may be alive.
local function living(lapse)
	local list, now = {}, server_ms()
	local function add(r, inc)
		if not same_inc('d', r, inc) and not silent(r, lapse, now) then list[r] = inc end
	end
	if num(h.epoch) == 0 and h.ph ~= 'form' then -- the view was dropped: every rank with a beat may be in it
		for r in pairs(g.t) do add(r, '?') end
	end
	for _, voters in pairs(g.u) do
		for r, inc in each_pair(voters) do add(num(r), inc) end
	end
	for r, inc in pairs(g.o) do add(r, inc) end
	for r in pairs(g.m) do add(r, member_inc(r)) end
	for r in pairs(g.j) do add(r, joiner_inc(r)) end
	return list
end

-- Makes the hash a new group. The earlier group of this name has ended: its processes are dead or have left. If they
-- are only silent, one of them may still take the name back until the new group is formed.
local function begin(a)
	if a.max < 1 or a.max > MAX_RANKS or a.world < 1 or a.world > a.max then
		return { 'ERROR', 'why', 'a new group needs 1 <= world <= max_ranks <= 4096, not ' .. arg(5) .. ' and ' .. arg(6) }
	end
	local gid, old, quiet, incs, prev = h.gid, h.old, h.quiet, h.incs, h.prev
	local unsure = gid and h.ph ~= 'closed' and h.ph ~= 'form' and next(living(0)) ~= nil
	if gid then wipe() end
	create(a)
	if not gid then return nil end
	set('incs', incs) -- a late message about an incarnation of the old group must match none of this one
	if old then set('old', old) end
	if quiet then set('quiet', quiet) end
	if unsure then
		set('prev', gid)
	else
		remember('old', gid)
		if prev then set('prev', prev) end -- never formed in between
	end
	return nil
end

-- ---- Conflicts between founders ----

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

-- A process forms a group and the name is in use: nil if it may have a rank, else the reply.
local function compete(a)
	if h.ph ~= 'form' then
		local list = living(a.lapse)
		if next(list) then return taken('run', formed_by_others(a), list) end
		return begin(a)
	end
	local kind, err, why, list = conflict(a)
	if not kind then return nil end
	local alive = living(a.lapse)
	if kind == 'rank' then
		for r in pairs(list or g.j) do
			if not alive[r] then note('j', r, nil) end
		end
		kind, err, why, list = conflict(a)
		if not kind then return nil end
	elseif not next(alive) then
		return begin(a)
	end
	if a.tell and kind ~= 'job' then return call_off(err, why) end
	return taken(kind, why, list or alive)
end

local function gids_of(a) return a.gids:gmatch('[^,]+') end

-- Was the process in this group before, and did the group lose it?
local function came_back(a)
	for gid in gids_of(a) do
		if gid == h.gid then return true end
	end
	return false
end

-- Was the process started before the fault was found? Then it is one of the founders in conflict.
local function shares_fault(a)
	local at = (h.fault or ''):match('^(%d+)')
	local now = server_ms()
	return at and a.age and now >= num(at) and now - a.age < num(at) and not other_job(a)
end

-- A process that forms no group, while one is being formed: it may only stand in for a founder that is dead.
local function stand_in(a)
	if other_job(a) then return reply('BUSY', 'why', 'job ' .. h.job .. ' is forming the group, this process is of job ' .. a.job) end
	local r = a.want ~= 'any' and num(a.want)
	if not r or not living(a.lapse)[r] then return nil end
	return taken('rank', 'rank ' .. a.want .. ' is a founder, ' .. process(a.want, word(g.j[r], 3)), { [r] = joiner_inc(r) })
end

local function enter(a) -- nil: the applicant may have a rank of the group in the hash
	if not h.gid then
		if not a.first then return { 'GONE' } end
		return begin(a)
	end
	for gid in gids_of(a) do
		if gid == h.prev and not a.first then return reply('BUSY', 'why', 'its group is silent, and another one forms under the name') end
		if is_old(gid) then
			return reply('CLOSED', 'why', 'the group that this process was to join has ended, and another one has its name now')
		end
	end
	if h.ph == 'closed' then
		if shares_fault(a) then return called_off() end
		if a.first and not came_back(a) then return begin(a) end
		return reply('CLOSED', 'why', 'the group was closed by its last member')
	end
	if a.first and (h.ph == 'form' or not came_back(a)) then return compete(a) end
	local name, theirs, ours = unlike(a)
	if name then
		return reply('REFUSED', 'err', 'INVAL', 'why', name .. ' is ' .. shown(theirs, ours) .. ' in the group and ' ..
			shown(ours, theirs) .. ' in ' .. process(a.want, a.addr) .. ': all ranks need the same')
	end
	return h.ph == 'form' and stand_in(a) or nil
end

-- ---- A rank for it ----

local function any_rank(first)
	local size, max, low, now = num(h.size), num(h.max), 0, nil
	if h.ph == 'form' then
		size = num(h.world)
		low = first and 0 or size -- the places of founders are not for joiners
	end
	local function free(r, patience)
		if g.m[r] or not g.j[r] then return not g.m[r] end
		now = now or server_ms()
		return patience and now - num(word(g.t[r], 1)) > STALE_MS
	end
	for _, patience in ipairs({ false, true }) do
		for r = low, size - 1 do
			if free(r, patience) then return r end
		end
		for _, r in ipairs(sorted(g.w)) do
			if free(r, patience) then return r end
		end
		for r = size, (h.policy == 'auto' and max or 0) - 1 do
			if free(r, patience) then return r end
		end
	end
	return nil
end

local function wanted_rank(want, first)
	if want ~= 'any' then
		local r = num(want)
		if r < 0 or r >= num(h.max) then
			return nil, reply('REFUSED', 'why', 'rank ' .. want .. ' is not below max_ranks ' .. h.max)
		end
		if g.m[r] then
			local beat = word(g.t[r], 1)
			return nil, reply('BUSY', 'why', process(want, word(g.m[r], 3)) .. ' is a member, incarnation ' .. member_inc(r) ..
				(beat and ', whose last beat is ' .. str(server_ms() - num(beat)) .. ' ms old' or ''))
		end
		return r
	end
	local r = any_rank(first)
	if not r and h.ph == 'form' then return nil, reply('BUSY', 'why', 'the group is being formed') end
	if not r then return nil, reply('FULL', 'why', 'no rank below ' .. h.max .. ' is free (policy ' .. h.policy .. ')') end
	return r
end

local function registered()
	for _, r in ipairs(sorted(g.j)) do
		if word(g.j[r], 2) == NONCE then return r end
	end
	return nil
end

script.register = function()
	local a, refusal = applicant(), nil
	local r = registered()
	local found_here = h.gid and a.gone:find(h.gid, 1, true) == 1 -- incs of another group name other processes
	for rank, inc in each_pair(found_here and a.gone or '') do bury(num(rank), inc, 'process') end
	if not r or h.ph == 'closed' then
		refusal = enter(a)
		if refusal then return refusal end
		r, refusal = wanted_rank(a.want, a.first)
		if not r then return refusal end
		if num(h.incs) >= INC_MAX then return reply('REFUSED', 'why', 'incarnation numbers have run out: form a new group') end
		set('incs', str(num(h.incs) + 1))
		note('j', r, h.incs .. ' ' .. NONCE .. ' ' .. a.addr .. ' ' .. a.host .. ' 0 ' .. one_word(found_here and a.gone:match(',(.*)$') or '-'))
		put('t', r, str(server_ms()) .. ' -')
		RANK = str(r) -- so that the key is kept alive
	end
	local inc = joiner_inc(r)
	put('c', r, inc)
	return full('OK', 'rank', str(r), 'inc', inc)
end

form = function()
	local list = {}
	for r = 0, num(h.world) - 1 do
		if num(word(g.j[r], 5)) == 0 then return end
		list[r] = true
	end
	for r in pairs(g.j) do
		local inc, nonce, addr, host = g.j[r]:match('^(%S+) (%S+) (%S+) (%S+)')
		if list[r] then
			put('m', r, inc .. ' 0 ' .. addr .. ' ' .. host)
			put('o', r, inc)
			note('j', r, nil)
		else
			note('j', r, inc .. ' ' .. nonce .. ' ' .. addr .. ' ' .. host .. ' 0 ' .. (word(g.j[r], 6) or '-'))
		end
	end
	set('stamp', str(STAMP_STEP))
	set('size', h.world)
	if h.prev then -- no process of the earlier group came back
		remember('quiet', h.prev)
		h.prev, changes.prev = nil, false
	end
	new_epoch({}, list, {})
end

-- ---- hello ---------------------------------------------------------------------------------------

local function read_record(n)
	local rec = { s = {}, m = {}, o = {}, u = {}, l = {}, e = {}, w = {} }
	for i = 1, math.min(n, #ARGV) do
		local field, value = arg(2 * i), arg(2 * i + 1)
		local p = field:sub(1, 1)
		if field:byte(2) == 58 then
			if rec[p] then rec[p][num(field:sub(3))] = value end
		else
			rec.s[field] = value
		end
	end
	rec.epoch = num(rec.s.epoch)
	rec.active = rec.s.ph == 'run' or (rec.s.act ~= nil and rec.s.act == rec.s.epoch)
	return rec
end

-- Is view (epoch, vid) the last view of @l, or an ancestor of that?
local function in_line(l, epoch, vid) return epoch > 0 and word(l[epoch], 1) == vid end

local function take(rec)
	local kin = num(h.epoch) == 0 or in_line(rec.l, num(h.epoch), h.vid)
	local incs = math.max(num(rec.s.incs), num(INC))
	drop(kin and 'moulewrkb' or 'moulewrkbc')
	for _, f in ipairs({ 'proto', 'gid', 'secret', 'max', 'policy', 'world', 'job', 'alike', 'old', 'epoch', 'vid', 'base', 'fail', 'stamp', 'size' }) do
		if rec.s[f] then set(f, rec.s[f]) end
	end
	for p in ('moulew'):gmatch('.') do
		for r, v in pairs(rec[p]) do put(p, r, v) end
	end
	for r, v in pairs(g.m) do
		incs = math.max(incs, num(word(v, 1)))
		put('j', r, nil) -- the rank is held: a process that asks for it gets BUSY
	end
	pass(incs)
	set('ph', rec.active and 'run' or 'inst')
	if rec.active then
		set('act', h.epoch)
		voters_are_admitted()
	else
		set('act', '0')
		put('u', rec.epoch, admitted())
	end
	count()
	moved = true
end

local function hello_joiner()
	if not h.gid then return { 'GONE' } end
	if h.ph == 'closed' and h.fault then return called_off() end
	if h.ph == 'form' and LIFE ~= h.gen and life_number(h.gen) <= life_number(LIFE) then new_life(life_number(LIFE)) end
	local r = num(RANK)
	local listed = GID == h.gid and member_inc(r) == INC -- by a view that it has not heard of, and that may wait for it
	if not listed and (joiner_inc(r) ~= INC or word(g.j[r], 2) ~= NONCE or g.m[r]) then return reply('GONE') end
	note_hello()
	return full('OK')
end

local function start_over(rec) -- the server was emptied, or another group took the name while this one was alive
	local number = math.max(life_number(LIFE), life_number(h.gen or '-'))
	wipe()
	L = server_name()
	new_life(number)
	take(rec)
end

-- Did the caller's group succeed the group in this hash, an older copy? `yes`, `no`, or `later`: a process of the older
-- group may still call.
local function succeeds(rec)
	if GID == h.gid or is_old(GID) or not lists(rec.s.old, h.gid) then return 'no' end
	for r, v in pairs(g.t) do -- a joiner is no sign of the older group: it asks whoever has the name
		if not g.j[r] and num(word(v, 1)) > num(h.since) then return 'no' end
	end
	return (h.ph == 'closed' or server_ms() - num(h.since) > FORGET_MS) and 'yes' or 'later'
end

script.hello = function()
	local rec = read_record(num(arg(1)))
	if rec.epoch == 0 then return hello_joiner() end
	if not lists_me(rec.m) then return reply('FENCED', 'why', 'the caller is not in its own view') end
	local takes_back = GID ~= h.gid and h.ph == 'form' and rec.active and not is_old(GID)
	local later = h.gid and not takes_back and succeeds(rec) or 'no'
	if later == 'later' then return reply('LIFE', 'why', 'the name is that of a group before, and somebody of it may speak yet') end
	if not h.gid or takes_back or later == 'yes' then
		start_over(rec)
	elseif GID ~= h.gid then
		return reply('FENCED', 'why', 'the name belongs to another group now')
	elseif LIFE ~= h.gen and life_number(h.gen) <= life_number(LIFE) then
		new_life(life_number(LIFE)) -- this server missed something
	end
	local mine, epoch = rec.active and 1 or 0, num(h.epoch)
	local held = active() and 1 or 0
	if rec.epoch == epoch and rec.s.vid == h.vid and mine > held then
		pass(rec.s.incs)
		activate()
	elseif epoch == 0 or rec.epoch > epoch or (rec.epoch == epoch and mine > held) then
		take(rec)
	elseif not in_line(g.l, rec.epoch, rec.s.vid) then
		return reply('FENCED', 'why', 'the group went on without the view that this rank has learned')
	elseif not lists_me(g.m) then
		return reply('FENCED', 'why', 'a later view is without this rank')
	end
	note_hello()
	return full(h.ph == 'closed' and 'CLOSED' or 'OK')
end

-- ---- open, report, decide, ack -------------------------------------------------------------------

-- All members have acknowledged. If a member's report says so, a change may be open: its reports are kept.
activate = function()
	voters_are_admitted()
	drop('k')
	for r, v in pairs(g.d) do
		if member_inc(r) ~= word(v, 1) then changes['d:' .. str(r)] = false end
	end
	set('act', h.epoch)
	if h.ph ~= 'inst' then return end
	set('ph', 'run')
	tell, news = true, news or 'state'
	open_for_joiners() -- those that became ready while acknowledgements were missing
end

-- ---- peek, beat ----------------------------------------------------------------------------------

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

-- ---- prove, ask ----------------------------------------------------------------------------------

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

-- ---- Checks before every call ---------------------------------------------------------------------

local function lost_life()
	if NAME == 'register' or NAME == 'hello' or NAME == 'prove' or NAME == 'ask' then return nil end
	if NAME == 'peek' and RANK == '-' then return nil end
	if not said_hello() then return reply('LIFE', 'why', 'say hello first') end
	if member_inc(RANK) ~= INC and joiner_inc(RANK) ~= INC then
		return reply('FENCED', 'why', 'incarnation ' .. INC .. ' does not hold rank ' .. RANK)
	end
	return nil
end

local function prologue()
	if h.proto ~= PROTO then
		local proto = h.proto or 'unknown'
		h = { ph = 'closed' } -- another version's hash is neither changed nor kept alive
		return { 'VERSION', 'why', 'the store holds the group in schema ' .. proto .. ', this library speaks ' .. PROTO ..
			 ': all processes of a group need the same version of covey' }
	end
	if GID ~= '-' and GID ~= h.gid and NAME ~= 'register' and NAME ~= 'hello' then
		return reply('FENCED', 'why', 'the name belongs to another group now')
	end
	if h.srv ~= L then new_life(life_number(h.gen or '-')) end
	return lost_life()
end

local function absent()
	whole = true
	h = {}
	if NAME ~= 'register' and NAME ~= 'hello' then return { 'GONE' } end
	return finish(script[NAME]())
end

local function main()
	if #ARGV < COMMON or #RND ~= 32 or RND:find('%X') then return { 'ERROR', 'why', 'rnd is 32 hexadecimal digits' } end
	if not script[NAME] then return { 'ERROR', 'why', 'unknown call ' .. tostring(NAME) } end
	if not is_hash or not rawget(h, 'proto') then
		local kind = call('TYPE', KEY)
		kind = kind.ok or kind
		if kind == 'none' then return absent() end
		if kind ~= 'hash' then return { 'ERROR', 'why', KEY .. ' is a ' .. kind .. ', not a hash' } end
	end
	local out, good = attempt(function() all() return prologue() or script[NAME]() end)
	return good and finish(out) or out
end

return guarded(main)
