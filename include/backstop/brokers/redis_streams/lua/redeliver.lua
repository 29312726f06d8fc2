-- Takes over what may be delivered again in one queue: what was handed back and is due, and what lay idle too long.
-- (after bury.lua) KEYS 1 stream, 2 life, 3 held, 4 dead
-- ARGV 1 group, 2 consumer, 3 at most, 4 visibility (ms), 5 delivery limit (0: none), 6 topic, 7 queue,
--      8 '1' to look for idle entries too (costs the group's pending entries, not only those due)
-- Returns entries {id, fields, deliveries}; what has used its deliveries goes to the dead letters instead.
local room, limit = tonumber(ARGV[3]), tonumber(ARGV[5])
local taken, is_refused = {}, false

local function take(id, deliveries)
  if limit > 0 and deliveries >= limit then
    -- After a script's first write a full server refuses nothing more: it is not asked again.
    is_refused = is_refused or bury(id, deliveries, 'delivery limit', '', ARGV[6], ARGV[7]) ~= nil
    if is_refused then
      -- It is tried again when it lay idle for as long again, and keeps nothing else back until then.
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'IDLE', 0, 'RETRYCOUNT', deliveries, 'JUSTID')
      redis.call('ZREM', KEYS[3], id)
    end
    return
  end
  -- Also drops an entry that was deleted from the stream from the group's pending ones.
  local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)
  redis.call('ZREM', KEYS[3], id)
  if claimed[1] then taken[#taken + 1] = { id, claimed[1][2], deliveries + 1 } end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', server_millis(), 'LIMIT', 0, room)) do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if pending[1] then take(id, pending[1][4]) else redis.call('ZREM', KEYS[3], id) end
end

if ARGV[8] == '1' then
  local start = '-'
  for _ = 1, 100 do  -- a bound on the time that one call may hold the server
    if #taken >= room then break end
    local page = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[4], start, '+', 100)
    for _, pending in ipairs(page) do
      -- An entry that is held comes when it is due, however long it lay idle.
      if #taken < room and not redis.call('ZSCORE', KEYS[3], pending[1]) then take(pending[1], pending[4]) end
      start = '(' .. pending[1]
    end
    if #page < 100 then break end
  end
end
return taken
