-- Looks at one queue.
-- KEYS 1 stream, 2 life
-- Returns server time, epoch, next offset, id of the first entry ('' for none).
local now = redis.call('TIME')
local life = redis.call('HMGET', KEYS[2], 'epoch', 'next')
if not life[1] then return redis.error_reply('NOTOPIC the topic has no such queue') end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return redis.error_reply('NOSTREAM the stream of the queue is gone: create the topic again')
end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
return { string.format('%.0f', now[1] * 1000000 + now[2]), life[1], life[2], first[1] and first[1][1] or '' }
