-- Creates one queue, or finds it; a queue whose life record or stream is missing begins a new life.
-- KEYS 1 stream, 2 life | ARGV 1 epoch for a new life, 2 max_message_bytes (0: no limit; empty: as it is)
-- Returns the epoch.
local epoch = redis.call('HGET', KEYS[2], 'epoch')
local limit = ARGV[2] ~= '' and ARGV[2] or redis.call('HGET', KEYS[2], 'max_bytes') or '0'
local there = redis.call('EXISTS', KEYS[1]) == 1
if not epoch or not there then
  local next_offset, same = '0', nil
  if there then
    -- Entries without a life record: they stay, offsets go on above them, and the newest tells which life it is.
    local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
    local fields = newest[1] and newest[1][2] or {}
    for i = 1, #fields, 2 do
      if fields[i] == 'epoch' then same = fields[i + 1] end
    end
    local info = redis.call('XINFO', 'STREAM', KEYS[1])
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then next_offset = string.match(info[i + 1], '^%d+') end
    end
  else
    redis.call('XGROUP', 'CREATE', KEYS[1], 'backstop-creates', '$', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', KEYS[1], 'backstop-creates')
  end
  epoch = same or ARGV[1]
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'epoch', epoch, 'next', next_offset, 'last_time', '0')
end
redis.call('HSET', KEYS[2], 'max_bytes', limit)
return epoch
