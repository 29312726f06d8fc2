-- Reads one queue in order for its owner: first what earlier owners left unfinished, then new entries.
-- KEYS 1 stream, 2 held, 3 fence | ARGV 1 group, 2 consumer, 3 fence, 4 entries at most,
--      5 the last unfinished entry that was adopted under this fence ('-': none yet; '': all are),
--      6 bytes at most (one entry always comes whole)
-- Returns { the new value of argument 5, entries {id, fields, deliveries}, how many entries the group has pending }, or nothing when
-- a higher fence has read.
-- So few at a time that large entries, which show their size only when they are here, cannot fill the server's memory.
local STEP = 4
local fence, room, from, bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local known = redis.call('GET', KEYS[3])
if known and tonumber(known) > fence then return false end
if not known or tonumber(known) < fence then
  -- A full server refuses what takes memory as a script's first write only, and this one takes none: else nobody could empty it.
  redis.call('ZREM', KEYS[2], '')
  redis.call('SET', KEYS[3], ARGV[3])
end
local taken, size = {}, 0

local function is_full() return #taken >= room or size >= bytes end

local function take(id, fields, deliveries)
  for i = 1, #fields do size = size + #fields[i] end
  taken[#taken + 1] = { id, fields, deliveries }
end

while from ~= '' and not is_full() do
  local start = from
  if start ~= '-' then start = '(' .. start end
  local page = redis.call('XPENDING', KEYS[1], ARGV[1], start, '+', room - #taken)
  if #page == 0 then from = '' end
  for _, pending in ipairs(page) do
    if is_full() then break end
    from = pending[1]
    -- Also drops an entry that was deleted from the stream from the group's pending ones.
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, from)
    redis.call('ZREM', KEYS[2], from)
    if claimed[1] then take(from, claimed[1][2], pending[4] + 1) end
  end
end
while from == '' and not is_full() do
  -- The first one comes alone: it may be all that fits.
  local count = math.min(room - #taken, #taken + 1, STEP)
  local read = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', count, 'STREAMS', KEYS[1], '>')
  local entries = read and read[1][2] or {}
  for _, entry in ipairs(entries) do take(entry[1], entry[2], 1) end
  if #entries < count then break end
end
return { from, taken, redis.call('XPENDING', KEYS[1], ARGV[1])[1] }
