-- Shared by every script of this folder: how the record of a message is written, one text a message.
--
--   state(1) ends(13) fence(16) attempts(4) token(32) | version | hash | host [| error]
--   state    C consuming, D done, F failed, E given back or reclaimed
--   ends     milliseconds since 1970 by this server's clock: the end of the lease (C), or since when it is so (D, F, E)
--   fence    grows with every grant of the message      attempts  how often it was granted
--   token    32 hex digits, new with every grant: who may renew, complete, fail; zeros of what was given back
--   hash     16 hex digits of the content's SHA-256, or -    host  who held it, percent-encoded
--
-- All keys of one call share the hash tag {prefix:group:bucket}: a script never touches two slots of a cluster.
-- Globals are slow in here, and a batch reads them for every message.
local call, sub, byte, format, K, A = redis.call, string.sub, string.byte, string.format, KEYS, ARGV
local function clock()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000000 + t[2]
end
local function ends_of(record) return tonumber(sub(record, 2, 14)) end
local function fence_of(record) return tonumber(sub(record, 15, 30)) end
local function attempts_of(record) return tonumber(sub(record, 31, 34)) end
-- Version, hash and host, without a failure's error.
local function rest_of(record)
  return string.match(record, '^(%d+)|([^|]*)|([^|]*)', 68)
end
-- Held under this token, or reclaimed since while nobody else took it: C or E.
local function is_ours(record, token)
  if not record or sub(record, 35, 66) ~= token then return false end
  local state = byte(record)
  return state == 67 or state == 69
end
-- An index lives at least as long as the longest record that it points to.
local function keep_index(index, life)
  if call('PTTL', index) < life then call('PEXPIRE', index, life) end
end
