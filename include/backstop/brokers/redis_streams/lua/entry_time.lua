-- Shared: the server's time in microseconds, the time of the first entry at or above an id, and the last one delivered.
local LAST_ID = '18446744073709551615-18446744073709551615'

local function server_micros()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

-- What lies behind an id, for a range; there is nothing behind the last one.
local function after(id)
  return id == LAST_ID and '' or '(' .. id
end

-- `id` as a range takes it, or '' for none. '' when there is no such entry; '0' for an entry that carries no time (foreign): then nothing counts as passed by time.
local function time_from(stream, id)
  if id == '' then return '' end
  local found = redis.call('XRANGE', stream, id, '+', 'COUNT', 1)
  if not found[1] then return '' end
  local fields = found[1][2]
  for i = 1, #fields, 2 do
    if fields[i] == 'time' and string.match(fields[i + 1], '^%d+$') then return fields[i + 1] end
  end
  return '0'
end

-- The same, as the instant before which everything is passed; '0' also where the server's clock was set back: what is stored
-- further on may then carry a time that lies after its own.
local function passed_until(stream, life, id)
  local time = time_from(stream, id)
  if time == '' or time == '0' then return time end
  local untimed = redis.call('HGET', life, 'untimed_until')
  if tonumber(time) > server_micros() or (untimed and tonumber(time) <= tonumber(untimed)) then return '0' end
  return time
end

-- The id that the group got last; nil: there is no such group.
local function last_delivered(stream, wanted)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local name, delivered = nil, nil
    for i = 1, #group, 2 do
      if group[i] == 'name' then name = group[i + 1] end
      if group[i] == 'last-delivered-id' then delivered = group[i + 1] end
    end
    if name == wanted then return delivered end
  end
end
