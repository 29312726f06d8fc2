-- As of which instant what a source gave holds: the data checks want it fresh.
ALTER TABLE staged_read ADD COLUMN read_at timestamptz;
COMMENT ON COLUMN staged_read.read_at IS 'by the source''s own clock, where that agrees with the control database''s';
