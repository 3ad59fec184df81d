-- SPDX-License-Identifier: Apache-2.0
--
-- Which incarnation has a rank, and what is known of it: that it reported, is accused, is proven dead, said hello.

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
