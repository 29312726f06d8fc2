-- Applies what a sweep decided, each only where the record is still as it was seen.
-- KEYS[1] the bucket's index of consuming records   KEYS[2..] the messages
-- ARGV[1] how long a record that stays lives, in ms
-- ARGV[2..] two for each message: what to do, and the record as it was seen (empty: there was none)
--   X the record goes | E taken back, the token stays | K<ms> held for so long | R, I only the index is corrected: to the record's end, away
-- Answers the numbers of the messages whose record moved on.
local now = clock()
local moved = {}
for i = 2, #K do
  local key, what, seen = K[i], A[2 * i - 2], A[2 * i - 1]
  local record, action = call('GET', key) or '', sub(what, 1, 1)
  if record ~= seen then
    moved[#moved + 1] = i - 2
  elseif action == 'K' then
    local ends = now + sub(what, 2)
    call('SET', key, format('C%013d', ends) .. sub(record, 15), 'PX', A[1])
    call('ZADD', K[1], ends, key)
    keep_index(K[1], tonumber(A[1]))
  elseif action == 'R' then
    call('ZADD', K[1], ends_of(record), key)
    keep_index(K[1], tonumber(A[1]))
  else
    if action == 'E' then
      call('SET', key, 'E' .. sub(record, 2), 'PX', A[1])
    elseif action == 'X' then
      call('DEL', key)
    end
    call('ZREM', K[1], key)
  end
end
return moved
