-- Shared: whether an id belongs to another entry than the one that was received. An id is given again when the topic is made
-- again, and when the server lost its newest entries (a failover, or a crash without `appendfsync always`).
-- `mark`: what was computed from the received entry, by `mark_of` in decode.py. An entry that was deleted is nobody else's.
local function is_another(stream, id, mark)
  local entry = redis.call('XRANGE', stream, id, id)
  if not entry[1] then return false end
  local found = {}
  for i = 1, #entry[1][2], 2 do found[entry[1][2][i]] = entry[1][2][i + 1] end
  local text = (found['time'] or '') .. '\n' .. (found['epoch'] or '') .. '\n' .. (found['headers'] or '')
  return string.sub(redis.sha1hex(text), 1, 16) ~= mark
end
