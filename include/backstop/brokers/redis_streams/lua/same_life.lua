-- Shared: whether an entry is still the one that was received, and none of a later life with the same id.
-- An entry that a foreign program wrote carries another epoch than its queue's, or none: it is known by its own.
local function is_same(stream, life, id, epoch)
  if redis.call('HGET', life, 'epoch') == epoch then return true end
  local entry = redis.call('XRANGE', stream, id, id)
  local own = ''
  for i = 1, #(entry[1] and entry[1][2] or {}), 2 do
    if entry[1][2][i] == 'epoch' then own = entry[1][2][i + 1] end
  end
  return entry[1] ~= nil and own == epoch
end
