-- SPDX-License-Identifier: Apache-2.0
--
-- When a server begins another life, and which of its fields it believes in it.

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
