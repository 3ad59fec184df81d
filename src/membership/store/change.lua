-- SPDX-License-Identifier: Apache-2.0
--
-- The calls of members: ready, open, report, decide, ack, peek and beat. Nearly always they need few fields and none of the
-- rules of the files that follow, so this part runs first, before the rules are defined. A call that needs them sets `more`
-- and is run again: it can be repeated.

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
