-- Acknowledges entries of one queue; an id that belongs to another entry by now is somebody else's to acknowledge.
-- (after another.lua) KEYS 1 stream, 2 held | ARGV 1 group, 2.. for each entry its id and its mark
-- Returns how many were pending.
local count = 0
for i = 2, #ARGV, 2 do
  if not is_another(KEYS[1], ARGV[i], ARGV[i + 1]) then
    count = count + redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
  end
end
return count
