-- SPDX-License-Identifier: Apache-2.0
-- Which incarnation has a rank, and what is known of it: that it reported, is accused, is proven dead, said hello.

local EPOCH_MAX = 4294967294 -- members have 32 bits for epochs; epochs never restart

local function inc_of(kind, rank) return word(kind[num(rank)], 1) end
local function same_inc(kind, rank, inc) return inc and inc_of(kind, rank) == inc end
local function member_inc(rank) return inc_of(of.members, rank) end
local function joiner_inc(rank) return inc_of(of.joiners, rank) end
local function is_me(list) return inc_of(list, RANK) == INC end

local function less(counter)
	if group[counter] then set({ [counter] = str(num(group[counter]) - 1) }) end
end

local function awaited(rank, inc) return not same_inc(of.reports, rank, inc) and not same_inc(of.proven, rank, inc) end

-- The member has reported or is proven dead. Call this before that fact is noted.
local function not_awaited(rank, inc)
	if not awaited(rank, inc) then return end
	less('late')
	if not same_inc(of.accused, rank, inc) then less('deaf') end
end

-- A hello alone is no promise to obey this life: its reply may be lost. Whoever names this life has had a reply in it.
local function note_hello() put(of.hellos, RANK, LIFE == group.gen and INC or INC .. ' said') end

local function said_hello()
	if LIFE ~= group.gen or not is_me(of.hellos) then return false end
	note_hello()
	return true
end

local function start_change()
	if group.ph ~= 'run' and group.ph ~= 'inst' then return end
	set({ ph = 'open' }) -- there is no r: or b:; they are noted in `open` alone and dropped when that phase ends
	tell, news = true, nil
end

local function may_enter(rank) -- joiners that the next commit takes
	return num(group.epoch) > 0 and word(of.joiners[rank], 5) == group.epoch and (group.policy == 'auto' or of.invited[rank])
end

local function is_current(epoch) return group.epoch == epoch and num(epoch) > 0 end

local function decided(status, ...) -- the reply of report and decide; a function with `...` has an `arg` of its own
	if status == 'COMMIT' then return (add_view(reply(status), ARGV[COMMON + 1])) end
	if status == 'CLOSED' then
		return reply(status, 'why', num(group.epoch) >= EPOCH_MAX and 'epoch numbers have run out: form a new group' or
			'the last member has left the group')
	end
	return reply(status, ...)
end

-- The reply to a call that came too late or too early and stored nothing.
local function current(epoch)
	if group.ph == 'closed' then return decided('CLOSED') end
	return decided(num(group.epoch) > num(epoch) and 'COMMIT' or 'WAIT')
end

-- Is (rank, inc) a voter of a view that may be active elsewhere? decide counts it, although the current view lacks it.
local function in_doubt(rank, inc)
	all()
	for _, list in pairs(of.doubted) do
		for voter, voter_inc in each_pair(list) do
			if voter == rank and voter_inc == inc then return true end
		end
	end
	return false
end

local function may_decide(rank, inc) return member_inc(rank) == inc or of.voters[rank] == inc or in_doubt(rank, inc) end

-- A rank has one proof. A voter's is kept over that of a later joiner, which comes in when no view has that voter any more.
local function prove(rank, inc, by, kind)
	local old = inc_of(of.proven, rank)
	if old == inc or (old and of.voters[rank] == old) then return end
	if member_inc(rank) == inc then not_awaited(rank, inc) end
	put(of.proven, rank, join(inc, by, one_word(kind)))
end
