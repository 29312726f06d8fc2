-- Asks for the lease of each message: its record is written only when nobody else's work stands in it.
-- KEYS[1] the bucket's index of consuming records (sorted set: key of the message -> end of its lease)
-- KEYS[2] the bucket's conflicts (hash: key of the message -> when, and what came with another content)
-- KEYS[3..] the messages
-- ARGV[1] lease in ms   ARGV[2] how long a record that is not done lives, in ms   ARGV[3] how long a conflict is kept, in ms
-- ARGV[4] token of this call's grants   ARGV[5..] for each message: version|hash|host
-- Answers {fence of every fresh grant, then for each message that is no fresh grant: {its number, outcome, a, b}}:
--   A fence, attempts: taken over | B ms left | D done | S superseded | X conflict
local now, fence = clock()
local ends, life, try = now + A[1], tonumber(A[2]), redis.pcall
local fresh = format('C%013d%016d0001%s|', ends, fence, A[4])
local answer, held, n = {fence}, {}, 0
for i = 3, #K do
  local key, asked = K[i], A[i + 2]
  local old = try('SET', key, fresh .. asked, 'NX', 'GET', 'PX', life)
  local outcome, a, b = 'A', fence, 1
  if old and (type(old) == 'table' or not rest_of(old)) then
    -- A server that may not write (READONLY, OOM, NOREPLICAS, MISCONF) says so at a script's first write: nothing was granted, and its
    -- error is the answer to the whole call. Whoever sees READONLY leaves the connection.
    if type(old) == 'table' and sub(old.err, 1, 9) ~= 'WRONGTYPE' then return old end
    -- Another program's key stands in the place: nobody can say what it means, and the rest of the batch goes on.
    outcome, a = 'B', life
    answer[#answer + 1] = {i - 3, outcome, a, 0}
  elseif old then
    local state, version, hash = sub(old, 1, 1), string.match(asked, '^(%d+)|([^|]*)')
    local old_version, old_hash = rest_of(old)
    version, old_version = tonumber(version), tonumber(old_version)
    local differs = hash ~= '-' and old_hash ~= '-' and hash ~= old_hash
    local left = state == 'C' and ends_of(old) - now or 0
    if version < old_version then
      outcome = 'S'
    elseif differs and (state == 'D' or state == 'C' and version == old_version) then
      outcome = 'X'
      call('HSET', K[2], key, format('%013d|', now) .. asked)
      keep_index(K[2], tonumber(A[3]))
    elseif state == 'D' then
      outcome = 'D'
    elseif left > 0 then
      outcome, a = 'B', left
    else
      a, b = math.max(fence, fence_of(old) + 1), math.min(attempts_of(old) + 1, 9999)
      call('SET', key, format('C%013d%016d%04d%s|', ends, a, b, A[4]) .. asked, 'PX', life)
    end
    answer[#answer + 1] = {i - 3, outcome, a, b}
  end
  if outcome == 'A' then
    held[n + 1], held[n + 2] = ends, key
    n = n + 2
  end
end
if n > 0 then
  call('ZADD', K[1], unpack(held))
  keep_index(K[1], life)
end
return answer
