-- Shared: the server's time in microseconds, and the time of the first entry at or above an id.
local function server_micros()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

-- '' when there is no such entry; '0' for an entry that carries no time (foreign): then nothing counts as passed by time.
local function time_from(stream, id)
  local found = redis.call('XRANGE', stream, id, '+', 'COUNT', 1)
  if not found[1] then return '' end
  local fields = found[1][2]
  for i = 1, #fields, 2 do
    if fields[i] == 'time' and string.match(fields[i + 1], '^%d+$') then return fields[i + 1] end
  end
  return '0'
end
