-- One step of SCAN over records of another program, which touches none of them: those without expiry, with how long nobody has
-- touched them. SCAN is in the script, so that keys that expire by themselves never leave the server.
-- KEYS none: what SCAN finds is not known before (one server, not a cluster)
-- ARGV 1 SCAN's cursor
--      2 its pattern
--      3 its count, at most 1,000, so that the server is held up for some 2 ms
--      4 '1' to read values too, over a connection whose reads are not counted as touches
--      5 seconds: leaves out what was touched since; 0: nothing
-- Returns the next cursor, then for each key three parts: the key, its idle time in seconds (-1: the server does not say, or a
-- value shared by many keys, which has no idle time of its own), and its value ('' when it was not asked for).
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3], 'TYPE', 'string')
local found, least = {step[1]}, tonumber(ARGV[5])
for _, record in ipairs(step[2]) do
  if redis.call('PTTL', record) == -1 then
    local idle = redis.pcall('OBJECT', 'IDLETIME', record)
    if type(idle) ~= 'number' or redis.call('OBJECT', 'REFCOUNT', record) ~= 1 then idle = -1 end
    if idle == -1 or idle >= least then
      found[#found + 1] = record
      found[#found + 1] = idle
      found[#found + 1] = ARGV[4] == '1' and redis.call('GET', record) or ''
    end
  end
end
return found
