-- Messages that no group took: a case for each topic, and what to look at again when its groups change.
ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked', 'lease_leak', 'repeated_failure', 'dead_letters', 'queue_blocked', 'quota_full',
     'key_parked', 'parking_full', 'downstream_away', 'no_taker'));
CREATE TABLE no_taker (
    topic       text        PRIMARY KEY,
    since       timestamptz NOT NULL,
    groups_hash text        NOT NULL,
    run_id      bigint      NOT NULL
);
COMMENT ON COLUMN no_taker.run_id IS 'the run that called stubs of the topic so last';
COMMENT ON COLUMN no_taker.since IS 'no stub of the topic was called no_taker before';
COMMENT ON COLUMN no_taker.groups_hash IS 'which groups took what of the topic when its stubs were looked at last';
