-- One index by group serves the console's filter and the count of the bytes that are kept. It was two, and a dead letter is written to
-- each of its indexes when it is drained and again whenever it changes.
CREATE INDEX IF NOT EXISTS dead_letter_of_group ON dead_letter (consumer_group, dead_letter_id) INCLUDE (content_bytes, emptied_at);
DROP INDEX IF EXISTS dead_letter_kept, dead_letter_group;
