-- Reads what was delivered to one group from one queue and not acknowledged, and how far the group is but for that.
-- (after entry_time.lua) KEYS 1 stream, 2 life | ARGV 1 group, 2 at most so many entries
-- Returns server time, epoch, the offset after the last one delivered, the time there (as in look_group), how many entries are
-- pending, and the headers of each; fewer for an entry that was deleted, none of more than ARGV 2.
-- The script sees one instant: what is delivered and not pending is nobody's any more.
local now = string.format('%.0f', server_micros())
local epoch, following = unpack(redis.call('HMGET', KEYS[2], 'epoch', 'next'))
if not epoch then return redis.error_reply('NOTOPIC the topic has no such queue') end
local last = last_delivered(KEYS[1], ARGV[1])
if not last then return redis.error_reply('NOGROUP the group does not exist in this queue') end
-- As in look_group: no offset of ours lies beyond the queue's next one.
local delivered = math.min(tonumber(string.match(last, '^%d+')), tonumber(following))
local count = redis.call('XPENDING', KEYS[1], ARGV[1])[1]
local headers = {}
if count <= tonumber(ARGV[2]) and count > 0 then
  for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', count)) do
    local found = redis.call('XRANGE', KEYS[1], pending[1], pending[1])
    local fields = found[1] and found[1][2] or {}
    if #fields > 0 then headers[#headers + 1] = '' end
    for i = 1, #fields, 2 do
      if fields[i] == 'headers' then headers[#headers] = fields[i + 1] end
    end
  end
end
local time = passed_until(KEYS[1], KEYS[2], after(last))
return { now, epoch, string.format('%.0f', delivered), time, count, headers }
