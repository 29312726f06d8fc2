-- Applies what a sweep decided, each only where the record is still as it was seen.
-- KEYS[1] the bucket's index of consuming records   KEYS[2..] the messages, each once
-- ARGV[1] how long a record that stays lives, in ms
-- ARGV[2] what to do, a letter for each message
--   X the record goes | E taken back, the token stays | K held for so long | R, I only the index is corrected: to the record's end, away
-- ARGV[3..] for each message the record as it was seen (empty: there was none), then for how many ms each K is held
-- Answers the numbers of the messages whose record moved on.
local now = clock()
local moved, removed, unheld, lengths = {}, {}, {}, #K + 1
local records = call('MGET', unpack(K, 2))
for i = 2, #K do
  local key, action, seen = K[i], byte(A[2], i - 1), A[i + 1]
  local record = records[i - 1] or ''
  if action == 75 then lengths = lengths + 1 end
  if record ~= seen then
    moved[#moved + 1] = i - 2
  elseif action == 75 then -- K
    local ends = now + A[lengths]
    call('SET', key, format('C%013d', ends) .. sub(record, 15), 'PX', A[1])
    call('ZADD', K[1], ends, key)
    keep_index(K[1], tonumber(A[1]))
  elseif action == 82 then -- R
    call('ZADD', K[1], ends_of(record), key)
    keep_index(K[1], tonumber(A[1]))
  else
    if action == 69 then -- E
      call('SET', key, 'E' .. sub(record, 2), 'PX', A[1])
    elseif action == 88 then -- X
      removed[#removed + 1] = key
    end
    unheld[#unheld + 1] = key
  end
end
if #removed > 0 then call('DEL', unpack(removed)) end
if #unheld > 0 then call('ZREM', K[1], unpack(unheld)) end
return moved
