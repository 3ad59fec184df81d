-- SPDX-License-Identifier: Apache-2.0
-- The calls of members: ready, open, report, decide, ack, peek and beat. Nearly always they need few fields and none of
-- the rules of the files that follow, so this part runs first, before the rules are defined. A call that needs a rule
-- ends there and is run again with all rules: it can be repeated.

local script = {}
local MORE = {}
local rules = setmetatable({}, { __index = function() error(MORE, 0) end })

-- Decides the open change if nobody is waited for. @force: 1 does not wait for the accused, 2 for nobody.
local function decide(force)
	if force < 2 and num(force == 0 and group.late or group.deaf) > 0 then return 'WAIT' end
	return rules.settle(force)
end

-- The reply after a founder reported that settings of the founders conflict. Late founders get it, too.
local function called_off()
	local err, why = (group.fault or ''):match('^%d+ (%S+) (.*)$')
	return err and reply('REFUSED', 'err', err, 'why', why)
end

script.ready = function()
	local rank, epoch = num(RANK), arg(1)
	local inc, nonce, addr, host = first_four(of.joiners[rank] or '')
	local function note_ready(for_epoch)
		note(of.joiners, rank, join(inc, nonce, addr, host, for_epoch, word(of.joiners[rank], 6) or '-'))
	end
	if group.ph == 'closed' then return called_off() or reply('CLOSED', 'why', 'no member is left in the group') end
	if inc == INC and group.ph == 'form' then -- ready for the first view
		note_ready('1')
		rules.form()
	elseif inc == INC and is_current(epoch) then
		note_ready(epoch)
		if group.ph == 'run' and may_enter(rank) and not of.members[rank] then start_change() end
	end
	return reply('OK')
end

script.open = function()
	local epoch, reason, suspects, fields = arg(1), one_word(arg(2)), {}, {}
	if not is_current(epoch) or group.ph == 'closed' then return reply(group.ph == 'closed' and 'CLOSED' or 'OK') end
	for i = 1, math.min(num(arg(3)), #ARGV) do
		suspects[i] = num(arg(2 + 2 * i))
		add(fields, field_of(of.members, suspects[i]), field_of(of.accused, suspects[i]))
	end
	fetch(fields)
	for i, rank in ipairs(suspects) do
		local inc = arg(3 + 2 * i)
		if member_inc(rank) == inc and not same_inc(of.accused, rank, inc) then
			if awaited(rank, inc) then less('deaf') end
			put(of.accused, rank, join(inc, RANK, reason))
		end
	end
	start_change()
	return reply('OK')
end

local function proves_member(list)
	for rank, inc in each_pair(list) do
		if member_inc(rank) == inc then return true end
	end
	return false
end

script.report = function()
	local epoch, vid, flags, bad = arg(1), arg(2), arg(7), arg(9)
	local here = is_current(epoch) and vid == group.vid
	if not is_me(of.members) then return reply('ERROR', 'why', 'only a member of the view reports') end
	if here and group.act ~= epoch and flags:find('a', 1, true) then
		rules.activate() -- the members went on by themselves: votes of the removed no longer count
	end
	if here and flags:find('o', 1, true) and proves_member(arg(8)) then start_change() end
	if not here or group.ph ~= 'open' then return current(epoch) end
	not_awaited(RANK, INC)
	put(of.reports, RANK, join(INC, arg(3), arg(4), arg(5), arg(6), one_word(flags)))
	for rank, inc in each_pair(arg(8)) do
		if may_decide(rank, inc) then prove(rank, inc, RANK, 'member') end
	end
	put(of.complaints, RANK, bad ~= '-' and bad or nil)
	return decided(decide(0))
end

script.decide = function()
	if not is_current(arg(1)) or group.ph ~= 'open' then return current(arg(1)) end
	return decided(decide(num(arg(2))))
end

script.ack = function()
	local open = group.ph ~= 'inst' and group.ph ~= 'run'
	if not is_current(arg(1)) or arg(2) ~= group.vid or open then return current(arg(1)) end
	if not is_me(of.members) then return reply('ERROR', 'why', 'only a member of the view acknowledges it') end
	if group.ph == 'run' then return reply('ACTIVE') end
	if of.acks[num(RANK)] ~= INC then
		put(of.acks, RANK, INC)
		less('unack')
		if num(group.unack) > 0 then return reply('WAIT') end
	end
	local missing = rules.missing_acks() -- perhaps it was the last one; a caller that repeats its ack gets the missing ranks
	if missing then return reply('WAIT', 'wait', missing) end
	rules.activate()
	return reply('ACTIVE')
end

script.peek = function()
	if RANK == '-' then return rules.outside() end
	if group.ph == 'closed' and group.epoch == '0' and group.fault then return called_off() end
	local out, all_told = reply('OK'), false
	if group.epoch ~= arg(1) then out, all_told = add_view(out, arg(1)) end
	return group.rev ~= arg(2) and not all_told and add_news(out, arg(2)) or out
end

script.beat = function()
	local LEASES = 16 -- following ranks whose last beats the reply to a beat carries
	local out, now, fields = script.peek(), server_ms(), {}
	changes['t:' .. RANK] = str(now) .. ' ' .. one_word(arg(3))
	for i = 1, math.min(LEASES, num(group.max) - 1) do fields[i] = 't:' .. str((num(RANK) + i) % num(group.max)) end
	local values = #fields > 0 and call('HMGET', KEY, unpack(fields)) or {}
	add(out, 'now', str(now))
	for i, field in ipairs(fields) do
		if values[i] then add(out, field, word(values[i], 1)) end -- members need only the time; ep-admin reads the rest
	end
	return out
end

local function finish(out)
	if next(group) or erased then flush() end
	if group.gid then add(out, 'rev', group.rev or '0') end -- the value after this call
	return out
end

-- Returns the reply, and whether changes are written: those of a call that failed are not. A damaged hash does not
-- raise an error, which members would take for a store that cannot be reached.
local function attempt(work)
	local good, out = pcall(work)
	if good or out == MORE then return out, good end
	return denied(out) or failed(KEY .. ' cannot be understood: ' .. tostring(type(out) == 'table' and out.err or out)), false
end

local is_hash
local function at_once()
	is_hash = load_hot()
	server = server_name()
	if #ARGV < COMMON or not OWN[NAME] or #RND ~= 32 or not is_hash then return false end
	local known = group.proto == PROTO and group.gid == GID and group.srv == server and said_hello()
	if not known or not (is_me(of.members) or is_me(of.joiners)) then return false end
	local out, good = attempt(script[NAME])
	if out == MORE then return false end
	return good and finish(out) or out
end

local early = guarded(at_once)
if early then return early end
