-- What runs remember of message tables that other programs keep, and in which nothing is ever written.

CREATE TABLE mapped_look (
    store       text        NOT NULL PRIMARY KEY,
    mapping     text        NOT NULL,
    mapped_at   timestamptz NOT NULL,
    server      text        NOT NULL,
    began_at    timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    window_from timestamptz NOT NULL,
    newest_at   timestamptz,
    rows_read   bigint      NOT NULL CHECK (rows_read >= 0),
    left_out    bigint      NOT NULL CHECK (left_out >= 0),
    run_id      bigint      NOT NULL,
    CHECK (began_at <= ended_at)
);
COMMENT ON TABLE mapped_look IS 'the newest complete look at each mapped table of a producer';
COMMENT ON COLUMN mapped_look.mapping IS 'what was mapped how; another mapping proves nothing of earlier looks';
COMMENT ON COLUMN mapped_look.mapped_at IS 'when the first look by this mapping began';
COMMENT ON COLUMN mapped_look.server IS 'the table and the start of its server: after a restart nothing is known of what came in between';
COMMENT ON COLUMN mapped_look.window_from IS 'rows created earlier, by the table''s own times, were not read';
COMMENT ON COLUMN mapped_look.left_out IS 'rows whose topic or id is longer than the contract allows';

CREATE TABLE mapped_stub (
    store           text        NOT NULL,
    topic           text        NOT NULL,
    message_id      text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('unsent', 'sent', 'gone_unsent', 'gone_sent', 'unknown_state', 'not_unique')),
    row_version     text        NOT NULL,
    created_at      timestamptz NOT NULL,
    committed_after timestamptz,
    first_seen_at   timestamptz NOT NULL,
    state_seen_at   timestamptz NOT NULL,
    last_seen_at    timestamptz NOT NULL,
    status          text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'confirmed', 'exhausted', 'voided', 'no_taker')),
    next_check_at   timestamptz NOT NULL,
    judged_at       timestamptz,
    met_at_wal      pg_lsn,
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store, topic, message_id)
);
COMMENT ON TABLE mapped_stub IS 'each row of a mapped table that a look has met; every instant but created_at is the control database''s own';
COMMENT ON COLUMN mapped_stub.created_at IS 'by the table''s own time, and no later than the row was first seen';
COMMENT ON COLUMN mapped_stub.committed_after IS 'a complete look that began then would have met the row, and did not; null: it may be of any age';
COMMENT ON COLUMN mapped_stub.state_seen_at IS 'the end of the look that first met this version of the row';
COMMENT ON COLUMN mapped_stub.met_at_wal IS 'the end of the server''s log when a look first met the row: a relay that reads the log sent it once it is past that';
CREATE INDEX mapped_stub_due ON mapped_stub (store, next_check_at) WHERE status = 'pending';
CREATE INDEX mapped_stub_exhausted ON mapped_stub (store, topic, message_id) WHERE status = 'exhausted';
CREATE INDEX mapped_stub_created ON mapped_stub (store, created_at);

CREATE TABLE mapped_log_proof (
    store          text        NOT NULL,
    mapping        text        NOT NULL,
    consumer_group text        NOT NULL,
    topic          text        NOT NULL,
    proven_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store, mapping, consumer_group, topic)
);
COMMENT ON TABLE mapped_log_proof IS 'mapped logs in which a message of the topic was found done: until then, absence there proves nothing';
