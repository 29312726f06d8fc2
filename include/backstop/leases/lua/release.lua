-- Releases leases without the work being done: failed (with its error), or given back by a worker that stops.
-- KEYS[1] the bucket's index of consuming records   KEYS[2..] the messages
-- ARGV[1] F failed | E given back | G given back before a handler began: no attempt   ARGV[2] how long the record lives, in ms   ARGV[3] their token
-- ARGV[4] F: the error
-- What is given back has nobody's token: a renewal that is under way brings nothing back.
-- Answers the numbers of the messages that are not ours any more.
local now = clock()
local token, lost, ended, n = A[3], {}, {}, 0
local left = A[1] == 'F' and token or string.rep('0', 32)
for i = 2, #K do
  local key, record = K[i], call('GET', K[i])
  if is_ours(record, token) then
    local version, hash, host = rest_of(record)
    local attempts = attempts_of(record)
    if A[1] == 'G' then attempts = math.max(attempts - 1, 0) end
    local released = format('%s%013d%016d%04d%s|%s|%s|%s', A[1] == 'F' and 'F' or 'E', now, fence_of(record), attempts, left, version, hash, host)
    call('SET', key, A[1] == 'F' and released .. '|' .. A[4] or released, 'PX', A[2])
    n = n + 1
    ended[n] = key
  else
    lost[#lost + 1] = i - 2
  end
end
if n > 0 then call('ZREM', K[1], unpack(ended)) end
return lost
