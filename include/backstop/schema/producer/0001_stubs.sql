-- The producer's side: promises to send, written in the transaction of the business change.

CREATE TABLE message_stub (
    topic              text        NOT NULL CHECK (topic <> ''),
    message_id         text        NOT NULL CHECK (message_id <> ''),
    message_key        text,
    tag                text,
    ordering_key       text,
    sequence           bigint,
    headers            jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    content            bytea       NOT NULL,
    content_type       text        NOT NULL DEFAULT 'application/octet-stream',
    content_version    integer     NOT NULL DEFAULT 1 CHECK (content_version >= 1),
    status             text        NOT NULL DEFAULT 'pending'
                       CHECK (status IN ('pending', 'confirmed', 'exhausted', 'voided', 'no_taker')),
    send_count         integer     NOT NULL DEFAULT 0 CHECK (send_count >= 0),
    refusals           integer     NOT NULL DEFAULT 0 CHECK (refusals >= 0),
    max_sends          integer     CHECK (max_sends >= 1),
    next_check_at      timestamptz NOT NULL,
    broker             text,
    queue_id           integer     CHECK (queue_id >= 0),
    queue_offset       bigint      CHECK (queue_offset >= 0),
    queue_epoch        text,
    broker_message_id  text,
    deliver_at         timestamptz,
    created_at         timestamptz NOT NULL DEFAULT now(),
    first_seen_at      timestamptz,
    judged_at          timestamptz,
    attempted_at       timestamptz,
    sent_at            timestamptz,
    attempt_token      uuid,
    attempt_deadline   timestamptz,
    attempt_groups     text[],
    attempt_requested_by text,
    updated_at         timestamptz NOT NULL DEFAULT now(),
    schema_version     smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (topic, message_id),
    CHECK (refusals <= send_count),
    CHECK (sent_at IS NULL OR send_count >= 1),
    CHECK (attempt_token IS NULL OR (send_count >= 1 AND attempt_deadline IS NOT NULL AND attempted_at IS NOT NULL)),
    CHECK (queue_offset IS NULL OR queue_id IS NOT NULL)
) WITH (fillfactor = 80);
COMMENT ON TABLE message_stub IS 'Backstop: one row for each message that must be sent';

-- What is due: the only way in for reconcile, so its cost follows what is open, never history.
CREATE INDEX message_stub_due ON message_stub (next_check_at) WHERE status = 'pending';
-- Crashed attempts, for recovery.
CREATE INDEX message_stub_under_way ON message_stub (attempt_deadline) WHERE attempt_token IS NOT NULL;

CREATE TABLE send_attempt (
    topic          text        NOT NULL,
    message_id     text        NOT NULL,
    send_number    integer     NOT NULL CHECK (send_number >= 1),
    groups         text[]      CHECK (groups IS NULL OR cardinality(groups) >= 1),
    requested_by   text        NOT NULL,
    started_at     timestamptz NOT NULL,
    finished_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome        text        NOT NULL CHECK (outcome IN ('sent', 'refused', 'unknown')),
    queue_id       integer,
    queue_offset   bigint,
    queue_epoch    text,
    broker_message_id text,
    error          text,
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (topic, message_id, send_number),
    FOREIGN KEY (topic, message_id) REFERENCES message_stub (topic, message_id) ON DELETE CASCADE,
    CHECK (outcome = 'sent' OR queue_offset IS NULL)
);
COMMENT ON TABLE send_attempt IS 'Backstop: one row for each send number that has ended; append-only';
