-- A template is what causes are grouped by; what people see of it has no words that may be names.
ALTER TABLE cause ADD COLUMN shown text;
COMMENT ON COLUMN cause.shown IS 'the template without words that may name somebody; null: the next run of triage writes it';
COMMENT ON COLUMN cause.template IS 'what texts are grouped by; it may hold names, and is for the duties alone';
-- How many bytes of dead letters' contents are kept, by group.
CREATE INDEX IF NOT EXISTS dead_letter_kept ON dead_letter (consumer_group, content_bytes) WHERE emptied_at IS NULL;

ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked', 'lease_leak', 'repeated_failure', 'dead_letters', 'queue_blocked', 'quota_full'));
ALTER TABLE watch_finding DROP CONSTRAINT watch_finding_rule_check;
ALTER TABLE watch_finding ADD CONSTRAINT watch_finding_rule_check CHECK (rule IN
    ('backlog_age', 'offsets_stopped', 'stubs_stopped', 'logging_stopped', 'group_stands', 'duty_overdue', 'heartbeat',
     'dead_letters_kept'));
