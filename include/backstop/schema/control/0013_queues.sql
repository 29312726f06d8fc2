-- One queue of a group that stands while the others go on: one row for each, as the watch last saw it.

CREATE TABLE watch_queue (
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    queue_id       integer     NOT NULL,
    epoch          text        NOT NULL,
    passed         bigint      NOT NULL,
    stands_since   timestamptz NOT NULL,
    stored_then    bigint      NOT NULL,
    moved          boolean     NOT NULL,
    logged         bigint,
    taken_at       timestamptz NOT NULL,
    PRIMARY KEY (topic, consumer_group, queue_id)
);
COMMENT ON COLUMN watch_queue.stands_since IS 'the first look that saw the group at this offset';
COMMENT ON COLUMN watch_queue.stored_then IS 'the next offset of the queue at that look: what came since came while the group stood';
COMMENT ON COLUMN watch_queue.moved IS 'false: that look was the first one at all, and nobody knows how long it stood before';
COMMENT ON COLUMN watch_queue.logged IS
    'the highest offset that the group had logged when it was last asked since then (-1: none); null: it was not asked';

ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked', 'lease_leak', 'repeated_failure', 'dead_letters', 'queue_blocked'));
