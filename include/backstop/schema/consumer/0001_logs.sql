-- The consumer's side: what each group received and how far it got. The row is also the idempotency record.

CREATE TABLE consumer_log (
    consumer_group     text        NOT NULL CHECK (consumer_group <> ''),
    topic              text        NOT NULL CHECK (topic <> ''),
    message_id         text        NOT NULL CHECK (message_id <> ''),
    queue_id           integer,
    queue_offset       bigint,
    queue_epoch        text,
    state              text        NOT NULL
                       CHECK (state IN ('CONSUMING', 'CONSUMED', 'FAILED', 'EXPIRED', 'PARKED')),
    owner_token        uuid,
    fence              bigint      NOT NULL DEFAULT 1,
    lease_expires_at   timestamptz,
    attempts           integer     NOT NULL DEFAULT 1 CHECK (attempts >= 0),
    duplicates_stopped integer     NOT NULL DEFAULT 0 CHECK (duplicates_stopped >= 0),
    first_received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumed_at        timestamptz,
    payload_hash       bytea,
    content_version    integer     NOT NULL DEFAULT 1,
    conflicts          integer     NOT NULL DEFAULT 0,
    last_error         text,
    owner_host         text,
    schema_version     smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, message_id),
    CONSTRAINT consumer_log_consumed_has_time CHECK (state <> 'CONSUMED' OR consumed_at IS NOT NULL)
) WITH (fillfactor = 80);
COMMENT ON TABLE consumer_log IS 'Backstop: one row for each message that a consumer group received';

-- Leases to look at, for the sweep.
CREATE INDEX consumer_log_leases ON consumer_log (lease_expires_at) WHERE state = 'CONSUMING';
-- What arrived lately, for orphans, conflicts and log-derived progress.
CREATE INDEX consumer_log_received ON consumer_log (consumer_group, first_received_at);
-- The highest offset of each queue, for groups whose progress is derived from their logs: its cost follows the queues.
CREATE INDEX consumer_log_position ON consumer_log (consumer_group, topic, queue_id, queue_epoch, queue_offset)
    WHERE queue_offset IS NOT NULL;

CREATE TABLE consumer_log_floor (
    consumer_group text        PRIMARY KEY,
    log_floor      timestamptz NOT NULL DEFAULT '-infinity',
    schema_version smallint    NOT NULL DEFAULT 1
);
COMMENT ON TABLE consumer_log_floor IS
    'Backstop: the largest updated_at ever purged of a group; a group without a row has purged nothing';
