-- Acknowledges entries of one life of one queue; those of an earlier life are somebody else's now.
-- KEYS 1 stream, 2 life, 3 held | ARGV 1 group, 2 epoch, 3.. ids
-- Returns how many were pending.
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[2] then return 0 end
local count = 0
for i = 3, #ARGV do
  count = count + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  redis.call('ZREM', KEYS[3], ARGV[i])
end
return count
