-- The contract's lengths, within which every key of Backstop's own tables fits. They hold for rows of schema_version 2 and later,
-- which is the default from now on: an older row stays as it is, and may still be changed.
-- NOT VALID: no row of before needs to be read, so that producers wait for a moment only. Before the default: where each statement
-- commits by itself, no row of version 2 comes between that is longer.
ALTER TABLE message_stub ADD CONSTRAINT message_stub_lengths CHECK (schema_version < 2 OR (
    octet_length(topic) <= 255 AND octet_length(message_id) <= 1024
    AND (ordering_key IS NULL OR octet_length(ordering_key) <= 1024))) NOT VALID;
ALTER TABLE message_stub ALTER COLUMN schema_version SET DEFAULT 2;
