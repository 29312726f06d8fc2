-- How many messages of a bucket came with another content than before.
-- KEYS[1] the bucket's conflicts (hash: key of the message -> when, and what came with another content)
-- ARGV[1] how many at most
-- Answers {how many, keys and what came, in turn}.
local found, n = {}, 0
for i, part in ipairs(call('HGETALL', K[1])) do
  if i > 2 * A[1] then break end
  found[i] = part
end
return {call('HLEN', K[1]), found}
