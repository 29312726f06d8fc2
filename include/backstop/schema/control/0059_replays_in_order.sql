-- Dead letters whose replay has ended are read page by page in the order of their numbers: by the index of their keys every page would read and
-- sort all that are replaying. `closed_at`, which the table's CHECK says of each of them, keeps this index for that query alone.
CREATE INDEX IF NOT EXISTS dead_letter_replays ON dead_letter (dead_letter_id) WHERE state = 'replaying' AND closed_at IS NULL;
