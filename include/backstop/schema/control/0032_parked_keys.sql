-- Cases of ordered consumption: a parked ordering key, a queue that a limit of parking stopped, a downstream that is away.
ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked', 'lease_leak', 'repeated_failure', 'dead_letters', 'queue_blocked', 'quota_full',
     'key_parked', 'parking_full', 'downstream_away'));
