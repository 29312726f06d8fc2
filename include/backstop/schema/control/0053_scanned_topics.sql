-- Which topics rest on a scan: a promotion that finds the store changed leaves them, whatever the settings say by then.
ALTER TABLE staged_read ADD COLUMN IF NOT EXISTS topics text[];
COMMENT ON COLUMN staged_read.topics IS 'of a store whose logs were scanned: what a group of it owed when it was scanned';
