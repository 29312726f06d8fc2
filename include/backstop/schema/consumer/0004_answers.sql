-- What people discarded of parked keys, until the control database has it, and which downstreams are away.

CREATE TABLE parked_discard (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    topic          text        NOT NULL CHECK (topic <> ''),
    message_id     text        NOT NULL CHECK (message_id <> ''),
    ordering_key   text        NOT NULL,
    discarded_by   text        NOT NULL,
    why            text        NOT NULL,
    case_id        bigint,
    discarded_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, message_id)
);
COMMENT ON TABLE parked_discard IS 'Backstop: parked messages that a person discarded; the watch moves them to the control database';

CREATE TABLE downstream_away (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    topic          text        NOT NULL CHECK (topic <> ''),
    member         text        NOT NULL CHECK (member <> ''),
    error          text        NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, member)
);
COMMENT ON TABLE downstream_away IS 'Backstop: consumers that park nothing and wait, because what their handlers need is away';
