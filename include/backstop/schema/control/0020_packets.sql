-- Staging in parts: a row costs its own write, and a task that runs again stages nothing twice.
ALTER TABLE staged_read ADD COLUMN lineage text;
COMMENT ON COLUMN staged_read.lineage IS 'of a store whose logs were scanned: its server and history before the scan';

CREATE TABLE staged_part (
    run_id bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    stage  integer NOT NULL,
    part   integer NOT NULL,
    PRIMARY KEY (run_id, stage, part)
);
COMMENT ON TABLE staged_part IS 'which parts of a judgement staged their stubs, in the same transaction as they did';

-- Looked up for each row of millions, to protect what retention takes away before its run anyway.
ALTER TABLE staged_stub DROP CONSTRAINT staged_stub_run_id_fkey;
