-- SPDX-License-Identifier: Apache-2.0
-- Words of a text, and lists as texts.

local function word(text, i)
	if i == 1 then return text and text:match('%S+') or nil end
	return text and text:match('^%s*' .. ('%S+%s+'):rep(i - 1) .. '(%S+)') or nil
end
local function words(text, pattern) -- as a list
	local list = {}
	for w in (text or ''):gmatch(pattern or '%S+') do list[#list + 1] = w end
	return list
end
local function first_four(text) return text:match('^(%S+) (%S+) (%S+) (%S+)') end
local function join(...) return table.concat({ ... }, ' ') end
local function or_dash(text) return text == '' and '-' or text end
local function one_word(text) return or_dash((text:gsub('%s', '_'))) end -- the value without spaces

local function sorted(t)
	local list = {}
	for key in pairs(t) do list[#list + 1] = key end
	table.sort(list)
	return list
end

local function size_of(t)
	local size = 0
	for _ in pairs(t) do size = size + 1 end
	return size
end

local function ranks(t) return or_dash(table.concat(sorted(t), ',')) end
