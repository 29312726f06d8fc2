-- Reads records.
-- KEYS[1] the bucket's index of consuming records (names the slot; not read)   KEYS[2..] the messages
-- Answers {this server's clock in ms, records or false in order}.
local now = clock()
local records = call('MGET', unpack(K, 2))
return {now, records}
