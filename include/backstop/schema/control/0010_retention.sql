-- What is over is purged, one message's content is erased on request, and every day all invariants are looked at.

-- Who erased which message's contents, when and why. It keeps ids and no content: it outlives what it speaks of.
CREATE TABLE erasure (
    erasure_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic      text        NOT NULL,
    message_id text        NOT NULL,
    asked_by   text        NOT NULL,
    why        text        NOT NULL,
    begun_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at    timestamptz,
    erased     jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX erasure_message ON erasure (topic, message_id);
COMMENT ON COLUMN erasure.done_at IS 'null: begun and cut short; asked for again, it is finished';
COMMENT ON COLUMN erasure.erased IS 'place -> how many rows of the message were emptied there';

ALTER TABLE message_version ADD COLUMN emptied_at timestamptz;
COMMENT ON COLUMN message_version.emptied_at IS 'when the content was purged or erased; null: it is there';
ALTER TABLE dead_letter ADD COLUMN emptied_at timestamptz;
COMMENT ON COLUMN dead_letter.emptied_at IS 'when the content was purged, or content and headers erased; null: they are there';

-- What an audit looked at, and what it found.
CREATE TABLE audit_look (
    run_id     bigint      NOT NULL REFERENCES run ON DELETE CASCADE,
    invariant  text        NOT NULL,
    place      text        NOT NULL DEFAULT 'control',
    rows_read  bigint      CHECK (rows_read >= 0),
    breaches   bigint      NOT NULL CHECK (breaches >= 0),
    complete   boolean     NOT NULL,
    detail     text,
    looked_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, invariant, place)
);
COMMENT ON COLUMN audit_look.rows_read IS 'rows that the audit itself read; null: the database looked, and answered with breaches only';
COMMENT ON COLUMN audit_look.complete IS 'false: not everything was read (detail says why), and nothing follows from finding nothing';

CREATE TABLE audit_finding (
    run_id     bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    invariant  text    NOT NULL,
    place      text    NOT NULL DEFAULT 'control',
    subject    text    NOT NULL,
    topic      text,
    message_id text,
    consumer_group text,
    PRIMARY KEY (run_id, invariant, place, subject)
);
COMMENT ON TABLE audit_finding IS 'The first breaches of each invariant, by id: never a content';

-- A purged run is looked for in every table that points at runs.
CREATE INDEX resend_request_closed_by ON resend_request (closed_by_run) WHERE closed_by_run IS NOT NULL;
CREATE INDEX resend_request_over ON resend_request (updated_at) WHERE state NOT IN ('open', 'claimed');
CREATE INDEX anomaly_first_run ON anomaly (first_run_id);
CREATE INDEX anomaly_last_seen ON anomaly (last_seen_at);
CREATE INDEX quarantine_first_run ON quarantine (first_run_id);
CREATE INDEX quarantine_last_seen ON quarantine (last_seen_at);
CREATE INDEX case_file_opened_by ON case_file (opened_by_run) WHERE opened_by_run IS NOT NULL;
CREATE INDEX drain_batch_run ON drain_batch (run_id);
CREATE INDEX dead_letter_closed ON dead_letter (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX alert_case ON alert (case_id) WHERE case_id IS NOT NULL;
CREATE INDEX alert_delivery_message ON alert_delivery (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX run_finished ON run (finished_at) WHERE finished_at IS NOT NULL;
