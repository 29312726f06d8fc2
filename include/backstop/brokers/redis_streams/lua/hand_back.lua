-- Gives one entry back: it stays pending (progress does not pass it) and is held until it is due.
-- (after another.lua and bury.lua) KEYS 1 stream, 2 life, 3 held, 4 dead
-- ARGV 1 group, 2 consumer, 3 id, 4 mark, 5 deliveries as received, 6 '1' if the delivery counts, 7 after (ms),
--      8 delivery limit (0: none), 9 topic, 10 queue, 11 error text
-- Returns 'held', 'dead', or 'gone' when it is no longer this consumer's delivery.
if is_another(KEYS[1], ARGV[3], ARGV[4]) then return 'gone' end
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
local deliveries, limit = tonumber(ARGV[5]), tonumber(ARGV[8])
if not pending[1] or pending[1][2] ~= ARGV[2] or pending[1][4] ~= deliveries then return 'gone' end
if ARGV[6] == '1' then
  if limit > 0 and deliveries >= limit then
    return bury(ARGV[3], deliveries, 'handler failed', ARGV[11], ARGV[9], ARGV[10]) or 'dead'
  end
else
  deliveries = deliveries - 1
end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', 0, 'RETRYCOUNT', deliveries, 'JUSTID')
redis.call('ZADD', KEYS[3], server_millis() + tonumber(ARGV[7]), ARGV[3])
return 'held'
