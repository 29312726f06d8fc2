-- Removes the entries of one queue that were stored before an instant and that every group has passed; offsets and the last id
-- stay as they are.
-- (after entry_time.lua) KEYS 1 stream, 2 life | ARGV 1 instant (microseconds), 2 epoch, 3 the first offset to stay
-- Returns how many entries went. Times never go back within a queue, so the boundary is found by halving.
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[2] or redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
-- Entry n is offset n - 1: `stays` is the first entry that stays.
local stays = tonumber(ARGV[3]) + 1
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local its = {}
  for i = 1, #group, 2 do its[group[i]] = group[i + 1] end
  stays = math.min(stays, tonumber(string.match(its['last-delivered-id'], '^%d+')) + 1)
  local pending = redis.call('XPENDING', KEYS[1], its['name'])
  if pending[1] > 0 then stays = math.min(stays, tonumber(string.match(pending[2], '^%d+'))) end
end
local before = tonumber(ARGV[1])
local low, high = 1, stays
while low < high do
  local middle = math.floor((low + high) / 2)
  local time = time_from(KEYS[1], string.format('%.0f-0', middle))
  -- An entry without a time ('0', foreign) stays, and what is above it.
  if time ~= '' and time ~= '0' and tonumber(time) < before then low = middle + 1 else high = middle end
end
return redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f-0', low))
