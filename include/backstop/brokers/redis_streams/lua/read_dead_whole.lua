-- Reads a page of dead letters whole, packed into one string: a reply of many small strings costs its reader more than all else.
-- KEYS 1 dead | ARGV 1 from (an id, or '(' and an id), 2 to, 3 entries at most, 4 bytes at most (one entry always comes whole)
-- Returns for each entry: lengths as big-endian 4-byte numbers of the id and of each field below (4294967295: it has none),
-- the number of its other fields, then these strings in that order, then name and value of each other field, a length before each.
-- A field that is there twice counts with its last value; the ones before are among the others.
local KNOWN = {
  'headers', 'content', 'tag', 'key', 'origin-group', 'origin-topic', 'origin-queue', 'origin-offset', 'origin-epoch',
  'deliveries', 'cause', 'error', 'died', 'time', 'epoch',
}
local PLACE, NONE = {}, 4294967295
for place, name in ipairs(KNOWN) do PLACE[name] = place end
local LENGTHS = '>' .. string.rep('I4', #KNOWN + 2)
-- So few at a time that large entries, which show their size only when they are here, cannot fill the server's memory.
local STEP = 4

local page, size, count = {}, 0, 0
local from, at_most, room = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
while count < at_most do
  local entries = redis.call('XRANGE', KEYS[1], from, ARGV[2], 'COUNT', math.min(STEP, at_most - count))
  for _, entry in ipairs(entries) do
    local fields, values, others, weight = entry[2], {}, {}, #entry[1]
    for i = 1, #fields, 2 do
      local place = PLACE[fields[i]]
      if place == nil or values[place] then
        local value = fields[i + 1]
        if place then value, values[place] = values[place], value end
        others[#others + 1] = struct.pack('>I4', #fields[i]) .. fields[i] .. struct.pack('>I4', #value) .. value
      else
        values[place] = fields[i + 1]
      end
      weight = weight + #fields[i] + #fields[i + 1] + 8
    end
    if count > 0 and size + weight > room then return table.concat(page) end
    local lengths = {}
    for place = 1, #KNOWN do lengths[place] = values[place] and #values[place] or NONE end
    lengths[#KNOWN + 1] = #others
    page[#page + 1] = struct.pack(LENGTHS, #entry[1], unpack(lengths))
    page[#page + 1] = entry[1]
    for place = 1, #KNOWN do
      if values[place] then page[#page + 1] = values[place] end
    end
    for _, other in ipairs(others) do page[#page + 1] = other end
    size, count, from = size + weight, count + 1, '(' .. entry[1]
  end
  if #entries < STEP then break end
end
return table.concat(page)
