-- Which offsets of a queue its last owner had finished above the place that the group committed: written at a release, by epoch the
-- finished offsets and the message at the highest of them. A filter: the log decides.
ALTER TABLE queue_owner ADD COLUMN IF NOT EXISTS finished jsonb;
