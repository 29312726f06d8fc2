-- Predicted loss and who watches Backstop: what the watch saw, a row a look, and what it found.

CREATE TABLE watch_topic (
    topic         text        NOT NULL,
    taken_at      timestamptz NOT NULL,
    life          text        NOT NULL,
    stored        bigint      NOT NULL,
    counted_until timestamptz NOT NULL,
    recorded      bigint,
    attempted     bigint,
    positioned    bigint,
    delayed       bigint,
    resent        bigint,
    PRIMARY KEY (topic, taken_at)
);
COMMENT ON TABLE watch_topic IS 'One look at a topic: what the broker stored in all, and what producers recorded since the look before';
COMMENT ON COLUMN watch_topic.life IS 'the epochs of its queues: offsets of two lives are never compared';
COMMENT ON COLUMN watch_topic.counted_until IS 'stubs created before it were counted, by this look or one before';
COMMENT ON COLUMN watch_topic.recorded IS 'null, like the others: a store did not answer, and the next look counts them too';

CREATE TABLE watch_group (
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    taken_at       timestamptz NOT NULL,
    life           text        NOT NULL,
    passed         bigint      NOT NULL,
    waiting        bigint      NOT NULL,
    expired        bigint      NOT NULL,
    backlog_seconds double precision NOT NULL,
    counted_until  timestamptz NOT NULL,
    logged         bigint,
    PRIMARY KEY (topic, consumer_group, taken_at)
);
COMMENT ON TABLE watch_group IS 'One look at a group: how far it got, what waits for it and since when, and what it logged since the look before';

CREATE TABLE watch_shard (
    shard         text        PRIMARY KEY,
    oldest_due_at timestamptz,
    taken_at      timestamptz NOT NULL
);
COMMENT ON COLUMN watch_shard.oldest_due_at IS 'the next_check_at of the oldest stub that is due; null: none is';

-- One row while a rule holds for a subject; its alerts are named after it.
CREATE TABLE watch_finding (
    finding_id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule           text        NOT NULL CHECK (rule IN
        ('backlog_age', 'offsets_stopped', 'stubs_stopped', 'logging_stopped', 'group_stands', 'duty_overdue', 'heartbeat')),
    topic          text        NOT NULL DEFAULT '*',
    consumer_group text        NOT NULL DEFAULT '*',
    severity       text        NOT NULL CHECK (severity IN ('warning', 'critical')),
    title          text        NOT NULL,
    body           text        NOT NULL,
    yardstick      double precision,
    began_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    over_at        timestamptz
);
COMMENT ON COLUMN watch_finding.yardstick IS 'what was usual when it began: what lasts does not become the usual';
COMMENT ON COLUMN watch_finding.topic IS 'for duty_overdue the duty';
CREATE UNIQUE INDEX watch_finding_one_open ON watch_finding (rule, topic, consumer_group) WHERE over_at IS NULL;
