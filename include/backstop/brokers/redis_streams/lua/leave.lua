-- Removes a consumer that has nothing pending; one that has keeps its entries, which are delivered again.
-- KEYS 1 stream | ARGV 1 group, 2 consumer
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local there = false
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  for i = 1, #group, 2 do
    if group[i] == 'name' and group[i + 1] == ARGV[1] then there = true end
  end
end
if not there then return 0 end
if redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])[1] then return 0 end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
