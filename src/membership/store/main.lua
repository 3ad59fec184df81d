-- SPDX-License-Identifier: Apache-2.0
-- The checks before every call, and the call.

local function lost_life()
	if NAME == 'register' or NAME == 'hello' or NAME == 'prove' or NAME == 'ask' then return nil end
	if NAME == 'peek' and RANK == '-' then return nil end
	if not said_hello() then return reply('LIFE', 'why', 'say hello first') end
	if is_me(of.members) or is_me(of.joiners) then return nil end
	return reply('FENCED', 'why', 'incarnation ' .. INC .. ' does not hold rank ' .. RANK)
end

local function prologue()
	if group.proto ~= PROTO then
		local proto = group.proto or 'unknown'
		group = { ph = 'closed' } -- another version's hash is neither changed nor kept alive
		return { 'VERSION', 'why', 'the store holds the group in schema ' .. proto .. ', this library speaks ' .. PROTO ..
			 ': all processes of a group need the same version of covey' }
	end
	if GID ~= '-' and GID ~= group.gid and NAME ~= 'register' and NAME ~= 'hello' then
		return reply('FENCED', 'why', 'the name belongs to another group now')
	end
	if group.srv ~= server then new_life(life_number(group.gen)) end
	return lost_life()
end

local function main()
	if #ARGV < COMMON or #RND ~= 32 or RND:find('%X') then return failed('rnd is 32 hexadecimal digits') end
	if not script[NAME] then return failed('unknown call ' .. tostring(NAME)) end
	if not is_hash or not rawget(group, 'proto') then
		local kind = call('TYPE', KEY)
		kind = kind.ok or kind
		if kind == 'none' then
			whole, group = true, {}
			return (NAME == 'register' or NAME == 'hello') and finish(script[NAME]()) or { 'GONE' }
		end
		if kind ~= 'hash' then return failed(KEY .. ' is a ' .. kind .. ', not a hash') end
	end
	local out, good = attempt(function() all() return prologue() or script[NAME]() end)
	return good and finish(out) or out
end

return guarded(main)
