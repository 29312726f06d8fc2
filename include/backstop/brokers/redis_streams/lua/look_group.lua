-- Looks at how far one group is in one queue: the lowest pending entry, else the last one delivered.
-- (after entry_time.lua) KEYS 1 stream, 2 life | ARGV 1 group
-- Returns server time, epoch, next offset of the group, time of the first entry there ('' for none, '0': nothing counts as
-- passed by time), pending entries.
-- The script sees one instant: no message can be stored between the reading of the time and of the position.
local now = string.format('%.0f', server_micros())
local epoch, following = unpack(redis.call('HMGET', KEYS[2], 'epoch', 'next'))
if not epoch then return redis.error_reply('NOTOPIC the topic has no such queue') end
local last = last_delivered(KEYS[1], ARGV[1])
if not last then return redis.error_reply('NOGROUP the group does not exist in this queue') end
-- Entry n is offset n - 1: the last delivered id is the next offset as it stands. A foreign entry may have an id beyond all of
-- ours, which is no offset.
local passed, from = tonumber(string.match(last, '^%d+')), after(last)
local pending = redis.call('XPENDING', KEYS[1], ARGV[1])
if pending[1] > 0 then
  passed, from = math.min(passed, tonumber(string.match(pending[2], '^%d+')) - 1), pending[2]
end
passed = math.min(passed, tonumber(following))
local time = passed_until(KEYS[1], KEYS[2], from)
return { now, epoch, string.format('%.0f', passed), time, pending[1] }
