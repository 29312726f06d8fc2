-- The messages of one ordering key, for what came before and after one of them; only topics with keys pay for it.
CREATE INDEX message_stub_order ON message_stub (topic, ordering_key, sequence, created_at) WHERE ordering_key IS NOT NULL;
-- What was created in a window, for proofs: a few pages of index for millions of stubs.
CREATE INDEX message_stub_created ON message_stub USING brin (created_at) WITH (autosummarize = on);
