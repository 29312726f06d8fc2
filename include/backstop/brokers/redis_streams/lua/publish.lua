-- Stores messages of one queue with dense offsets: entry <n+1>-0 is offset n.
-- Each message is stored or not, and answered for itself.
-- KEYS 1 stream, 2 life
-- ARGV 1 deadline (server microseconds): later than this nothing is stored, however long the command lay in a buffer
--      2.. four for each message: content, headers (JSON), tag, partition key (the last two: '' for none, else '=' and the text)
-- Returns the epoch, then for each message its offset, or the text of why it was not stored.
local now = redis.call('TIME')
local micros = now[1] * 1000000 + now[2]
if micros > tonumber(ARGV[1]) then
  return redis.error_reply('LATE the command reached the server after the time for sending')
end
local life = redis.call('HMGET', KEYS[2], 'epoch', 'next', 'last_time', 'max_bytes')
if not life[1] then return redis.error_reply('NOTOPIC the topic has no such queue') end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return redis.error_reply('NOSTREAM the stream of the queue is gone: create the topic again')
end
local next_offset, limit, last_time = tonumber(life[2]), tonumber(life[4]), tonumber(life[3])
-- Times never go back within a queue, whatever the clock does: the time at an offset is searched by order.
local time = string.format('%.0f', math.max(micros, last_time))
local answer, stored = { life[1] }, false
for i = 2, #ARGV, 4 do
  local size = #ARGV[i] + #ARGV[i + 1]
  if limit > 0 and size > limit then
    answer[#answer + 1] = 'TOOLARGE ' .. size .. ' bytes with headers; the topic takes ' .. limit
  else
    local entry = { 'time', time, 'epoch', life[1], 'headers', ARGV[i + 1], 'content', ARGV[i] }
    if ARGV[i + 2] ~= '' then
      entry[#entry + 1] = 'tag'
      entry[#entry + 1] = string.sub(ARGV[i + 2], 2)
    end
    if ARGV[i + 3] ~= '' then
      entry[#entry + 1] = 'key'
      entry[#entry + 1] = string.sub(ARGV[i + 3], 2)
    end
    local id = redis.pcall('XADD', KEYS[1], string.format('%.0f-0', next_offset + 1), unpack(entry))
    if type(id) == 'table' and id['err'] then
      -- Of a replica it is the answer to the whole call: whoever sees it leaves the connection.
      if string.sub(id['err'], 1, 8) == 'READONLY' then return id end
      answer[#answer + 1] = id['err']
    else
      answer[#answer + 1] = next_offset
      next_offset, stored = next_offset + 1, true
    end
  end
end
if stored then
  redis.call('HSET', KEYS[2], 'next', string.format('%.0f', next_offset), 'last_time', time)
  -- The clock was set back: entries up to this time say nothing about when they, or those after them, were stored.
  if micros < last_time then redis.call('HSET', KEYS[2], 'untimed_until', time) end
end
return answer
