-- Reads a page of dead letters without their contents.
-- KEYS 1 dead | ARGV 1 from (an id, or '(' and an id), 2 to, 3 at most
-- Returns entries {id, headers, origin-topic, origin-group}; '' where a field is missing.
local page = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])) do
  local found = {}
  for i = 1, #entry[2], 2 do found[entry[2][i]] = entry[2][i + 1] end
  page[#page + 1] = { entry[1], found['headers'] or '', found['origin-topic'] or '', found['origin-group'] or '' }
end
return page
