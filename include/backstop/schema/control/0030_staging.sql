-- Staged stubs without a key of their own: random ids in a unique index cost ten times the rows. A part is staged once
-- (staged_part), and the check no_stub_twice holds uniqueness.
ALTER TABLE staged_stub DROP CONSTRAINT staged_stub_pkey;
CREATE INDEX staged_stub_of_shard ON staged_stub (run_id, stage, shard);
