-- Which checks of a suite held, as they were when it ran: a later version has others, and a team's own are in no version.
ALTER TABLE data_check ADD COLUMN IF NOT EXISTS held jsonb;
COMMENT ON COLUMN data_check.held IS 'what must hold, and did, by the name of the check; null: the row is older than this column';
