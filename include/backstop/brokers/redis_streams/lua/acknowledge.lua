-- Acknowledges entries of one life of one queue; those of an earlier life are somebody else's now.
-- (after same_life.lua) KEYS 1 stream, 2 life, 3 held | ARGV 1 group, 2 epoch, 3.. ids
-- Returns how many were pending.
local count = 0
for i = 3, #ARGV do
  if is_same(KEYS[1], KEYS[2], ARGV[i], ARGV[2]) then
    count = count + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    redis.call('ZREM', KEYS[3], ARGV[i])
  end
end
return count
