-- Repairs or frees records of another program, each only while it is what was seen: compare-and-set.
-- KEYS records, strings without expiry: at most 1,000, so that the server is held up for some 4 ms
-- ARGV 1 'repair' or 'reclaim'
--      2 the value that a record must have; '': any (that the key is there is all that it says)
--      3 seconds for which nobody may have touched it; '': not asked, the log proves it
--      4 the value that a repair writes; '': its own stays
--      5 how long a repaired record stays (ms)
-- Returns for each key 'done', 'moved_on', or '=' and its value, which is another one than ARGV 2.
local function settle(record)
  -- Gone (-2), or given an expiry meanwhile by somebody who is at it.
  if redis.call('PTTL', record) ~= -1 then return 'moved_on' end
  if redis.call('TYPE', record).ok ~= 'string' then return 'moved_on' end
  if ARGV[3] ~= '' then
    -- Before GET, which touches. A value shared by many keys has no idle time of its own.
    local idle = redis.pcall('OBJECT', 'IDLETIME', record)
    if type(idle) ~= 'number' or idle < tonumber(ARGV[3]) then return 'moved_on' end
    if redis.call('OBJECT', 'REFCOUNT', record) ~= 1 then return 'moved_on' end
  end
  if ARGV[2] ~= '' then
    local value = redis.call('GET', record)
    if value ~= ARGV[2] then return '=' .. value end
  end
  if ARGV[1] == 'reclaim' then
    redis.call('DEL', record)
  elseif ARGV[4] ~= '' then
    redis.call('SET', record, ARGV[4], 'PX', ARGV[5])
  else
    redis.call('PEXPIRE', record, ARGV[5])
  end
  return 'done'
end

local answers = {}
for place, record in ipairs(KEYS) do answers[place] = settle(record) end
return answers
