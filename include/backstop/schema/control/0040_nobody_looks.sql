-- The watch says when nobody looks for due work.
ALTER TABLE watch_finding DROP CONSTRAINT watch_finding_rule_check;
ALTER TABLE watch_finding ADD CONSTRAINT watch_finding_rule_check CHECK (rule IN
    ('backlog_age', 'offsets_stopped', 'stubs_stopped', 'logging_stopped', 'group_stands', 'duty_overdue', 'heartbeat',
     'dead_letters_kept', 'books_differ', 'discard_without_decision', 'nobody_looks'));
