-- The work is done: for each message whose record still has our token and is not done already.
-- KEYS[1] the bucket's index of consuming records   KEYS[2..] the messages
-- ARGV[1] how long a done record is kept, in ms   ARGV[2] the token under which all of these were granted
-- Answers the numbers of the messages that are not ours any more.
local kept, token, done = A[1], A[2], format('D%013d', (clock()))
local lost, ended, n = {}, {}, 0
local records = call('MGET', unpack(K, 2))
for i = 2, #K do
  local key, record = K[i], records[i - 1]
  -- is_ours, written out: a call of a function would be felt here.
  if record and sub(record, 35, 66) == token and (byte(record) == 67 or byte(record) == 69) then
    call('SET', key, done .. sub(record, 15), 'PX', kept)
    n = n + 1
    ended[n] = key
  else
    lost[#lost + 1] = i - 2
  end
end
if n > 0 then call('ZREM', K[1], unpack(ended)) end
return lost
