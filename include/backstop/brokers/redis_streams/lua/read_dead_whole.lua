-- Reads a page of dead letters whole, packed into one string: a reply of many small strings costs its reader more than all else.
-- KEYS 1 dead | ARGV 1 from (an id, or '(' and an id), 2 to, 3 entries at most, 4 bytes at most (one entry always comes whole)
-- Numbers are 4 bytes, big-endian; a text is its length and its bytes. A page is entries, one after the other, each
--   0, the number of its fields, their names as texts: this and the entries after it have these fields; left out where the one
--      before had the same;
--   1, the length of its id, the length of each value; then its id and its values without anything between.
local ENTRY, SHAPE = struct.pack('>I4', 1), struct.pack('>I4', 0)
-- So few at a time that large entries, which show their size only when they are here, cannot fill the server's memory.
local STEP = 4

local page, parts, size, count = {}, 0, 0, 0
local names, values, lengths, number, format = {}, {}, {}, -1, ''
local from, at_most, room = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
while count < at_most do
  local entries = redis.call('XRANGE', KEYS[1], from, ARGV[2], 'COUNT', math.min(STEP, at_most - count))
  for e = 1, #entries do
    local id, fields = entries[e][1], entries[e][2]
    local n, weight, same = #fields / 2, #id, true
    for k = 1, n do
      local value = fields[2 * k]
      if fields[2 * k - 1] ~= names[k] then same = false end
      values[k], lengths[k] = value, #value
      weight = weight + #value
    end
    if count > 0 and size + weight > room then return table.concat(page) end
    if not same or n ~= number then
      local shape = { SHAPE, struct.pack('>I4', n) }
      for k = 1, n do
        names[k] = fields[2 * k - 1]
        shape[k + 2] = struct.pack('>I4', #names[k]) .. names[k]
      end
      number, format = n, '>' .. string.rep('I4', n + 1)
      parts = parts + 1
      page[parts] = table.concat(shape)
    end
    page[parts + 1] = ENTRY
    page[parts + 2] = struct.pack(format, #id, unpack(lengths, 1, n))
    page[parts + 3] = id
    page[parts + 4] = table.concat(values, '', 1, n)
    parts, size, count, from = parts + 4, size + weight, count + 1, id
  end
  if #entries < STEP then break end
  from = '(' .. from
end
return table.concat(page)
