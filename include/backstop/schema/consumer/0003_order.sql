-- Owned queues and parked ordering keys (docs/how-to/ordered-consumption.md). A group that does not use them leaves them empty.

CREATE TABLE queue_owner (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    topic          text        NOT NULL CHECK (topic <> ''),
    queue_id       integer     NOT NULL CHECK (queue_id >= 0),
    owner          text,
    fence          bigint      NOT NULL DEFAULT 0,
    state          text        NOT NULL DEFAULT 'FREE' CHECK (state IN ('OWNED', 'DRAINING', 'FREE')),
    expires_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, queue_id),
    -- A new fence changes a key column, so it waits for every transaction that holds the row FOR KEY SHARE (those that have
    -- compared the fence), and a renewal, which changes no key, waits for none. Without this constraint a takeover
    -- would not wait.
    CONSTRAINT queue_owner_fence UNIQUE (consumer_group, topic, queue_id, fence),
    CONSTRAINT queue_owner_free_has_no_owner CHECK ((state = 'FREE') = (owner IS NULL))
);
COMMENT ON TABLE queue_owner IS 'Backstop: which consumer of a group owns each queue; a row stays for the life of the group';

CREATE TABLE group_member (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    topic          text        NOT NULL CHECK (topic <> ''),
    member         text        NOT NULL CHECK (member <> ''),
    expires_at     timestamptz NOT NULL,
    joined_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, member)
);
COMMENT ON TABLE group_member IS 'Backstop: the consumers of a group that share its queues now';

CREATE TABLE parked_key (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    topic          text        NOT NULL CHECK (topic <> ''),
    ordering_key   text        NOT NULL,
    queue_id       integer     NOT NULL,
    state          text        NOT NULL CHECK (state IN ('PARKED', 'RELEASING')),
    messages       integer     NOT NULL CHECK (messages >= 0),
    bytes          bigint      NOT NULL CHECK (bytes >= 0),
    times_parked   integer     NOT NULL DEFAULT 1,
    last_error     text,
    parked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    answered_by    text,
    answered_at    timestamptz,
    answer         text,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, ordering_key)
);
COMMENT ON TABLE parked_key IS 'Backstop: ordering keys that wait for a person, or whose messages are being released';
CREATE INDEX parked_key_releasing ON parked_key (consumer_group, topic, queue_id) WHERE state = 'RELEASING';

CREATE TABLE parked_message (
    consumer_group  text        NOT NULL,
    topic           text        NOT NULL,
    message_id      text        NOT NULL CHECK (message_id <> ''),
    ordering_key    text        NOT NULL,
    number          bigint      GENERATED ALWAYS AS IDENTITY,
    content         bytea       NOT NULL,
    headers         text        NOT NULL DEFAULT '{}',
    tag             text,
    content_version integer     NOT NULL DEFAULT 1,
    queue_id        integer     NOT NULL,
    queue_offset    bigint,
    queue_epoch     text,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version  smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, message_id),
    -- A key is unparked only when its list is empty.
    CONSTRAINT parked_message_has_key FOREIGN KEY (consumer_group, topic, ordering_key) REFERENCES parked_key
);
COMMENT ON TABLE parked_message IS 'Backstop: the kept contents of a parked ordering key, in the order of their release';
CREATE INDEX parked_message_order ON parked_message (consumer_group, topic, ordering_key, number);

CREATE TABLE parking_full (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    topic          text        NOT NULL CHECK (topic <> ''),
    queue_id       integer     NOT NULL,
    ordering_key   text        NOT NULL,
    reached        text        NOT NULL CHECK (reached IN ('keys', 'messages', 'bytes')),
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, queue_id)
);
COMMENT ON TABLE parking_full IS 'Backstop: queues that stopped because a limit of parking was reached; nothing was dropped';
