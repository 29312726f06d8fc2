-- What is over, by when it ended: a purge costs what it takes away, never history.
CREATE INDEX IF NOT EXISTS message_stub_over ON message_stub (topic, updated_at, message_id)
    WHERE status IN ('confirmed', 'voided', 'no_taker');
-- What a person has to decide, for the audit: few rows.
CREATE INDEX IF NOT EXISTS message_stub_exhausted ON message_stub (topic, message_id) WHERE status = 'exhausted';
-- A message whose content was erased on request: its content is empty, and this is the SHA-256
-- of what it was; null: the content is there.
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS erased_hash bytea;
