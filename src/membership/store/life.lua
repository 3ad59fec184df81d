-- SPDX-License-Identifier: Apache-2.0
-- When a server begins another life, and which fields it believes in it.

local FORGET_MS = 5000    -- a group with a younger beat is not forgotten
local INC_MAX = 9007199254740991 -- the largest integer of a Lua number
local INC_STEP = 1048576  -- upper bound of incarnations given out and forgotten

local function active() return num(group.epoch) > 0 and group.act == group.epoch end
local function pending(rank) return word(of.members[num(rank)], 2) == '-' end

-- Counts the members that are waited for, so that a report or an acknowledgement need not read all fields. `late`:
-- without a report in a change. `deaf`: late and not accused. `unack`: without an acknowledgement of a view that is not
-- active. The counts only say when to look: code that finds 0, or no count, reads the fields themselves.
local function count()
	local late, deaf, unack = 0, 0, 0
	for rank in pairs(of.members) do
		local inc = member_inc(rank)
		if awaited(rank, inc) then
			late = late + 1
			if not same_inc(of.accused, rank, inc) then deaf = deaf + 1 end
		end
		if of.acks[rank] ~= inc then unack = unack + 1 end
	end
	set({ late = str(late), deaf = str(deaf), unack = str(unack) })
end

local function life_number(life) return num((life or '-'):match('^(%d+)%.')) end
local function random(from, to) return num(tonumber(RND:sub(from, to), 16)) end

-- Two servers may begin a life from the same copy or the same record. A random leap gives them different incarnations.
local function leap(incs) return str(math.min(num(incs) + INC_STEP + random(21, 24), INC_MAX)) end

-- A member's record shows another server's incarnations. That server may be giving out the next one at this moment.
local function pass(incs)
	if num(incs) > num(group.incs) then set({ incs = leap(incs) }) end
end

local function new_life(number)
	local rev = (number + 1) % 1024 * INC_STEP + random(17, 20) -- differs from all of another life
	set({ srv = server, gen = str(number + 1) .. '.' .. RND:sub(1, 16), incs = leap(group.incs), since = str(server_ms()), rev = str(rev) })
	drop(of.hellos, of.reports, of.complaints, of.acks)
	if num(group.epoch) > 0 and not active() and group.ph ~= 'closed' then
		drop(of.members, of.voters, of.doubted, of.lineage)
		set({ epoch = '0', vid = '-', act = '0', ph = 'open' }) -- nothing can be decided until a member says hello
	end
	count()
	tell = true
end

local function admitted() -- `rank:inc,...` of the view
	local list = {}
	for _, rank in ipairs(sorted(of.members)) do
		if not pending(rank) then list[#list + 1] = str(rank) .. ':' .. member_inc(rank) end
	end
	return table.concat(list, ',')
end

local function voters_are_admitted()
	drop(of.voters, of.doubted)
	for rank in pairs(of.members) do
		if not pending(rank) then put(of.voters, rank, member_inc(rank)) end
	end
end

local function open_for_joiners()
	if group.ph ~= 'run' then return end
	for rank in pairs(of.joiners) do
		if may_enter(rank) and not of.members[rank] then return start_change() end
	end
end
