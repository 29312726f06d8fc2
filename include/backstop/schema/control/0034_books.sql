-- What the watch last saw of each consumer's books, and of who owns each queue.
CREATE TABLE watch_consumer (
    consumer_group text        NOT NULL,
    member         text        NOT NULL,
    counts         jsonb       NOT NULL,
    in_process     integer     NOT NULL,
    difference     bigint      NOT NULL,
    has_ended      boolean     NOT NULL,
    started_at     timestamptz NOT NULL,
    written_at     timestamptz NOT NULL,
    taken_at       timestamptz NOT NULL,
    PRIMARY KEY (consumer_group, member)
);
COMMENT ON COLUMN watch_consumer.difference IS 'messages that came in and are neither out nor in process; below zero: accounted for twice';
CREATE TABLE watch_owner (
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    queue_id       integer     NOT NULL,
    owner          text,
    state          text        NOT NULL,
    since          timestamptz NOT NULL,
    waiting        bigint,
    age_seconds    float8,
    taken_at       timestamptz NOT NULL,
    PRIMARY KEY (topic, consumer_group, queue_id)
);
COMMENT ON COLUMN watch_owner.since IS 'when the queue changed its owner or state last';

ALTER TABLE watch_finding DROP CONSTRAINT watch_finding_rule_check;
ALTER TABLE watch_finding ADD CONSTRAINT watch_finding_rule_check CHECK (rule IN
    ('backlog_age', 'offsets_stopped', 'stubs_stopped', 'logging_stopped', 'group_stands', 'duty_overdue', 'heartbeat',
     'dead_letters_kept', 'books_differ'));
