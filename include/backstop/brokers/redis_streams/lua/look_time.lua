-- The time of the first message at or above an id.
-- (after entry_time.lua) KEYS 1 stream, 2 life | ARGV 1 id
-- Returns server time, that time ('' for none, '0': nothing counts as passed by time).
local now = string.format('%.0f', server_micros())
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.error_reply('NOTOPIC the topic has no such queue') end
return { now, passed_until(KEYS[1], KEYS[2], ARGV[1]) }
