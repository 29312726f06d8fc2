-- The sweep of stuck leases: what each run decided, what its checks look at, and where the next one goes on.

CREATE TABLE sweep_count (
    run_id         bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    place          text    NOT NULL,
    consumer_group text    NOT NULL,
    topic          text    NOT NULL,
    owner_host     text    NOT NULL,
    decision       text    NOT NULL CHECK (decision IN ('KEEP', 'REPAIR', 'RECLAIM')),
    leases         integer NOT NULL CHECK (leases > 0),
    example        text    NOT NULL,
    swept_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, place, consumer_group, topic, owner_host, decision)
);
COMMENT ON TABLE sweep_count IS 'how many leases a run decided, by where they stood, group, topic, host and decision; example is one message id';
CREATE INDEX sweep_count_leaks ON sweep_count (swept_at) WHERE decision = 'RECLAIM';

CREATE TABLE sweep_look (
    run_id       bigint      NOT NULL REFERENCES run ON DELETE CASCADE,
    moment       text        NOT NULL CHECK (moment IN ('before', 'after')),
    place        text        NOT NULL,
    expired      bigint      NOT NULL,
    oldest_end   timestamptz,
    overdue      bigint      NOT NULL DEFAULT 0,
    without_time bigint      NOT NULL DEFAULT 0,
    looked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, moment, place)
);
COMMENT ON COLUMN sweep_look.overdue IS 'leases that ended more than two sweeps ago';
COMMENT ON COLUMN sweep_look.without_time IS 'logs that are CONSUMED and do not say when';

CREATE TABLE sweep_sample (
    run_id         bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    place          text    NOT NULL,
    consumer_group text    NOT NULL,
    topic          text    NOT NULL,
    message_id     text    NOT NULL,
    in_redis       text    NOT NULL,
    in_database    text    NOT NULL,
    repaired       boolean NOT NULL,
    PRIMARY KEY (run_id, place, consumer_group, topic, message_id)
);
COMMENT ON TABLE sweep_sample IS 'messages of a sample on which Redis and the database disagreed, and whether Redis was corrected';

CREATE TABLE sweep_place (
    place    text PRIMARY KEY,
    goes_on  text NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE sweep_place IS 'where a walk that is larger than one sweep goes on';

ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked', 'lease_leak', 'repeated_failure'));
