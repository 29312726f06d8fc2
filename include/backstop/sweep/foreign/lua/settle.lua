-- Repairs or frees one record of another program, only while it is what was seen: compare-and-set.
-- KEYS 1 the record, a string without expiry
-- ARGV 1 'repair' or 'reclaim'
--      2 the value that it must have; '': any (that the key is there is all that it says)
--      3 seconds for which nobody may have touched it; '': not asked, the log or its own time proves it
--      4 the value that a repair writes; '': its own stays
--      5 how long a repaired record stays (ms)
-- Returns {'done'}, {'moved_on'}, or {'is', value}: the value is another one than ARGV 2.
local record = KEYS[1]
-- Gone (-2), or given an expiry meanwhile by somebody who is at it.
if redis.call('PTTL', record) ~= -1 then return {'moved_on'} end
if redis.call('TYPE', record).ok ~= 'string' then return {'moved_on'} end
if ARGV[3] ~= '' then
  -- Before GET, which touches. A value shared by many keys has no idle time of its own.
  local idle = redis.pcall('OBJECT', 'IDLETIME', record)
  if type(idle) ~= 'number' or idle < tonumber(ARGV[3]) then return {'moved_on'} end
  if redis.call('OBJECT', 'REFCOUNT', record) ~= 1 then return {'moved_on'} end
end
if ARGV[2] ~= '' then
  local value = redis.call('GET', record)
  if value ~= ARGV[2] then return {'is', value} end
end
if ARGV[1] == 'reclaim' then
  redis.call('DEL', record)
elseif ARGV[4] ~= '' then
  redis.call('SET', record, ARGV[4], 'PX', ARGV[5])
else
  redis.call('PEXPIRE', record, ARGV[5])
end
return {'done'}
