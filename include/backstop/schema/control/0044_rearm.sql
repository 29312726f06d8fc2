-- Send numbers of mapped tables: what a look found in the overlay that stands beside the table, in the producer's own database.

ALTER TABLE mapped_stub
    ADD COLUMN IF NOT EXISTS send_count       integer NOT NULL DEFAULT 1 CHECK (send_count >= 1),
    ADD COLUMN IF NOT EXISTS refusals         integer NOT NULL DEFAULT 0 CHECK (refusals >= 0),
    ADD COLUMN IF NOT EXISTS max_sends        integer CHECK (max_sends >= 1),
    ADD COLUMN IF NOT EXISTS attempted_at     timestamptz,
    ADD COLUMN IF NOT EXISTS attempt_deadline timestamptz,
    ADD COLUMN IF NOT EXISTS number_version   text;
COMMENT ON COLUMN mapped_stub.send_count IS 'number 1 is the send of its own relay; it never goes back, also when the overlay does';
COMMENT ON COLUMN mapped_stub.attempted_at IS 'when the newest number was handed out, by the clock of the producer''s database';
COMMENT ON COLUMN mapped_stub.attempt_deadline IS 'null: the newest number has ended';
COMMENT ON COLUMN mapped_stub.number_version IS 'the version of the row when the newest number was handed out';

CREATE TABLE IF NOT EXISTS mapped_attempt (
    store        text        NOT NULL,
    topic        text        NOT NULL,
    message_id   text        NOT NULL,
    send_number  integer     NOT NULL CHECK (send_number >= 1),
    groups       text[],
    outcome      text        NOT NULL CHECK (outcome IN ('sent', 'refused', 'unknown')),
    broker       text,
    queue_id     integer,
    queue_offset bigint,
    queue_epoch  text,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz NOT NULL,
    PRIMARY KEY (store, topic, message_id, send_number),
    FOREIGN KEY (store, topic, message_id) REFERENCES mapped_stub (store, topic, message_id) ON DELETE CASCADE
);
COMMENT ON TABLE mapped_attempt IS 'the ended numbers of rows of mapped tables that were sent more than once, as a look found them in the overlay';
