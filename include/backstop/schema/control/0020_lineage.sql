-- Whose history a bulk read saw: what a failed-over server showed to be done may have been lost with it.
ALTER TABLE staged_read ADD COLUMN lineage text;
COMMENT ON COLUMN staged_read.lineage IS 'of a store whose logs were scanned: its server and history before the scan';
