-- Which leases ended, by the index: counts, and the oldest of them.
-- KEYS[1] the bucket's index of consuming records
-- ARGV[1] for how long, in ms, an end counts as long ago   ARGV[2] how many to skip   ARGV[3] how many keys at most
-- Answers {ended, ended long ago, keys of messages}.
local now = clock()
local names = {}
if tonumber(A[3]) > 0 then
  names = call('ZRANGEBYSCORE', K[1], '-inf', now, 'LIMIT', A[2], A[3])
end
return {call('ZCOUNT', K[1], '-inf', now), call('ZCOUNT', K[1], '-inf', now - A[1]), names}
