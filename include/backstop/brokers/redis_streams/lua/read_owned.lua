-- Reads one queue in order for its owner: first what earlier owners left unfinished, then new entries.
-- KEYS 1 stream, 2 held, 3 fence | ARGV 1 group, 2 consumer, 3 fence, 4 at most,
--      5 the last unfinished entry that was adopted under this fence ('-': none yet; '': all are)
-- Returns { the new value of argument 5, entries {id, fields, deliveries} }, or nothing when a higher fence has read.
local fence, room, from = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local known = redis.call('GET', KEYS[3])
if known and tonumber(known) > fence then return false end
if not known or tonumber(known) < fence then redis.call('SET', KEYS[3], ARGV[3]) end
local taken = {}
while from ~= '' and #taken < room do
  local start = from
  if start ~= '-' then start = '(' .. start end
  local page = redis.call('XPENDING', KEYS[1], ARGV[1], start, '+', room - #taken)
  if #page == 0 then from = '' end
  for _, pending in ipairs(page) do
    from = pending[1]
    -- Also drops an entry that was deleted from the stream from the group's pending ones.
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, from)
    redis.call('ZREM', KEYS[2], from)
    if claimed[1] then taken[#taken + 1] = { from, claimed[1][2], pending[4] + 1 } end
  end
end
if from == '' and #taken < room then
  local read = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room - #taken, 'STREAMS', KEYS[1], '>')
  if read then
    for _, entry in ipairs(read[1][2]) do taken[#taken + 1] = { entry[1], entry[2], 1 } end
  end
end
return { from, taken }
