-- The messages of one ordering key, for what came before and after one of them; only topics with keys pay for it.
-- Their order is (sequence, created_at, message_id); a message without a sequence comes after those that have one.
CREATE INDEX IF NOT EXISTS message_stub_order ON message_stub
    (topic, ordering_key, coalesce(sequence, 9223372036854775807), created_at, message_id) WHERE ordering_key IS NOT NULL;
-- What of a key is still open: a key's long history is no way to the one message before.
CREATE INDEX IF NOT EXISTS message_stub_order_open ON message_stub
    (topic, ordering_key, coalesce(sequence, 9223372036854775807), created_at, message_id)
    WHERE ordering_key IS NOT NULL AND status IN ('pending', 'exhausted');
-- What was created in a window, for proofs: a few pages of index for millions of stubs.
CREATE INDEX IF NOT EXISTS message_stub_created ON message_stub USING brin (created_at) WITH (autosummarize = on);
