-- Resends in steps (a canary, then a ramp), requests that wait for their turn, and runs over a list of ids.

-- A live batch is all the held requests of its topic and those that it released; it is advanced by each resend run.
ALTER TABLE resend_batch
    ADD COLUMN state       text        NOT NULL DEFAULT 'ramping' CHECK (state IN ('ramping', 'stopped', 'done', 'given_up')),
    ADD COLUMN step        integer     NOT NULL DEFAULT 1 CHECK (step >= 1),
    ADD COLUMN step_size   integer     NOT NULL DEFAULT 0 CHECK (step_size >= 0),
    ADD COLUMN released    bigint      NOT NULL DEFAULT 0 CHECK (released >= 0),
    ADD COLUMN released_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN pardoned    integer     NOT NULL DEFAULT 0,
    ADD COLUMN case_id     bigint      REFERENCES case_file,
    ADD COLUMN ended_at    timestamptz,
    ADD CHECK ((state IN ('done', 'given_up')) = (ended_at IS NOT NULL)),
    ADD CHECK (state <> 'stopped' OR case_id IS NOT NULL);
COMMENT ON TABLE resend_batch IS 'Resends of one topic that go out in steps: a canary, then a ramp';
COMMENT ON COLUMN resend_batch.pardoned IS 'the last step whose failures a person has seen and gone on after';
-- One at a time: a second one would be a way around the first one''s canary.
CREATE UNIQUE INDEX resend_batch_one_live ON resend_batch (topic) WHERE state IN ('ramping', 'stopped');

ALTER TABLE resend_request
    ADD COLUMN held        boolean NOT NULL DEFAULT false,
    ADD COLUMN step        integer,
    ADD COLUMN given_up_by bigint  REFERENCES case_file;
COMMENT ON COLUMN resend_request.held IS 'waits until a step of its topic''s ramp releases it; nobody claims it before';
COMMENT ON COLUMN resend_request.given_up_by IS 'the case by which a person gave it up; only a person asks for it again';
DROP INDEX resend_request_due;
CREATE INDEX resend_request_due ON resend_request (not_before, request_id) WHERE state = 'open' AND NOT held;
CREATE INDEX resend_request_held ON resend_request (topic, not_before, request_id) WHERE state = 'open' AND held;
CREATE INDEX resend_request_step ON resend_request (batch_id, step) WHERE batch_id IS NOT NULL;

-- A run over a list of ids looks at nothing else.
ALTER TABLE run ADD COLUMN only_ids text[] CHECK (cardinality(only_ids) >= 1);

ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked'));
