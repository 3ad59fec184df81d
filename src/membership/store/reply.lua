-- SPDX-License-Identifier: Apache-2.0
--
-- What a reply tells its caller: the record of the group, or only what changed since the view and revision that the caller
-- knows.

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
