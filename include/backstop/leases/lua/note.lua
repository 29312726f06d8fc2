-- Notes in front of the database what it has committed; never over what a later grant has noted, nor a late renewal over
-- the end of its own lease. What stands there and is no record gives way.
-- KEYS[1] the bucket's index of consuming records   KEYS[2..] the messages
-- ARGV[1] C held | D done | E free again (the database is asked)   ARGV[2] lease in ms (C only)   ARGV[3] how long it is kept, in ms
-- ARGV[4..] for each message: fence(16)attempts(4)token|version|hash|host
-- Answers how many were noted.
local now = clock()
local state, kept = A[1], A[3]
local ends = state == 'C' and now + A[2] or now
local head = state .. format('%013d', ends)
local held, n, ended, noted = {}, 0, {}, 0
local records = call('MGET', unpack(K, 2))
for i = 2, #K do
  local key, asked, record = K[i], A[i + 2], records[i - 1]
  local stands, fence = record and fence_of(record), tonumber(sub(asked, 1, 16))
  if not stands or stands < fence or stands == fence and not (state == 'C' and byte(record) ~= 67) then
    noted = noted + 1
    call('SET', key, head .. asked, 'PX', kept)
    if state == 'C' then
      held[n + 1], held[n + 2] = ends, key
      n = n + 2
    else
      ended[#ended + 1] = key
    end
  end
end
if n > 0 then
  call('ZADD', K[1], unpack(held))
  keep_index(K[1], tonumber(kept))
end
if #ended > 0 then call('ZREM', K[1], unpack(ended)) end
return noted
