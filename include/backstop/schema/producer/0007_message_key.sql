-- The messages of one business key, the newest first, for who asks where they are; only topics with keys pay for it.
CREATE INDEX IF NOT EXISTS message_stub_key ON message_stub
    (topic, message_key, created_at) WHERE message_key IS NOT NULL;
