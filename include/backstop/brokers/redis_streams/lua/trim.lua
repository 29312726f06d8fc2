-- Removes the entries of one queue that were stored before an instant; offsets and the last id stay as they are.
-- (after entry_time.lua) KEYS 1 stream, 2 life | ARGV 1 instant (microseconds)
-- Returns how many entries went. Times never go back within a queue, so the boundary is found by halving.
local before = tonumber(ARGV[1])
local low, high = 1, tonumber(redis.call('HGET', KEYS[2], 'next') or '0') + 1
while low < high do
  local middle = math.floor((low + high) / 2)
  local time = time_from(KEYS[1], string.format('%.0f-0', middle))
  -- An entry without a time ('0', foreign) stays, and what is above it.
  if time ~= '' and time ~= '0' and tonumber(time) < before then low = middle + 1 else high = middle end
end
return redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f-0', low))
