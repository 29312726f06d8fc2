-- Which offsets of a queue its last owner had finished above the place that the group committed.
ALTER TABLE queue_owner ADD COLUMN IF NOT EXISTS finished jsonb;
COMMENT ON COLUMN queue_owner.finished IS 'written at a release: by epoch, the finished offsets and the message at the highest of them; a filter, the log decides';
