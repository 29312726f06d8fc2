-- Shared: moves one entry to the group's dead letters and acknowledges it, in one step; and what "held" means.
-- `bury` returns nothing, or the error with which the server did not store it (no memory): the entry is still pending then.
-- Every script below it has KEYS 1 stream, 2 life, 3 held, 4 dead and ARGV 1 group.
local contract = { time = true, epoch = true, headers = true, content = true, tag = true, key = true }

-- The server gives a command no more than some 8,000 values of a table: of an entry with more fields those that another program added
-- become one, packed with MessagePack.
local function fitting(fields)
  if #fields <= 7800 then return fields end
  local kept, others = {}, {}
  for i = 1, #fields, 2 do
    local into = contract[fields[i]] and #kept < 100 and kept or others
    local last = #into
    into[last + 1], into[last + 2] = fields[i], fields[i + 1]
  end
  kept[#kept + 1] = 'packed-fields'
  kept[#kept + 1] = cmsgpack.pack(others)
  return kept
end

local function bury(id, deliveries, cause, problem, topic, queue)
  local entry = redis.call('XRANGE', KEYS[1], id, id)
  if entry[1] then
    local now = redis.call('TIME')
    local fields = fitting(entry[1][2])
    local origin = {
      'origin-group', ARGV[1], 'origin-topic', topic, 'origin-queue', queue,
      'origin-offset', string.format('%.0f', tonumber(string.match(id, '^%d+')) - 1),
      'origin-epoch', redis.call('HGET', KEYS[2], 'epoch') or '',
      'deliveries', string.format('%.0f', deliveries), 'cause', cause, 'error', problem,
      'died', string.format('%.0f', now[1] * 1000000 + now[2]),
    }
    for _, value in ipairs(origin) do fields[#fields + 1] = value end
    local stored = redis.pcall('XADD', KEYS[4], '*', unpack(fields))
    if type(stored) == 'table' and stored['err'] then return stored end
  end
  redis.call('XACK', KEYS[1], ARGV[1], id)
  redis.call('ZREM', KEYS[3], id)
end

local function server_millis()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
