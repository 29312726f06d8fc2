-- Prolongs leases from now on; also brings back one that was reclaimed while nobody took it.
-- KEYS[1] the bucket's index of consuming records   KEYS[2..] the messages
-- ARGV[1] lease in ms   ARGV[2] how long a record that is not done lives, in ms   ARGV[3] their token
-- Answers the numbers of the messages that are not ours any more.
local ends, life = clock() + A[1], tonumber(A[2])
local token, lost, held, n = A[3], {}, {}, 0
for i = 2, #K do
  local key, record = K[i], call('GET', K[i])
  if is_ours(record, token) then
    call('SET', key, format('C%013d', ends) .. sub(record, 15), 'PX', life)
    held[n + 1], held[n + 2] = ends, key
    n = n + 2
  else
    lost[#lost + 1] = i - 2
  end
end
if n > 0 then
  call('ZADD', K[1], unpack(held))
  keep_index(K[1], life)
end
return lost
