-- What `backstop check` asks of a producer or consumer database in MariaDB.

-- name: server: which server it is
SELECT VERSION();

-- name: settings: what it keeps in a crash, and how it locks
SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'sync_binlog', 'log_bin', 'innodb_snapshot_isolation', 'general_log',
     'binlog_format');

-- name: engine: what keeps a table: only InnoDB has transactions
SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %(table)s;

-- name: may_read: a statement that takes what the duties read with
EXPLAIN SELECT l.state FROM consumer_log l, consumer_log_floor f, consumer_books b;

-- name: may_sweep: a statement that takes what the sweep and an erasure change
EXPLAIN UPDATE consumer_log SET
    state = state, updated_at = updated_at, lease_expires_at = lease_expires_at, last_error = last_error,
    payload_hash = payload_hash
WHERE consumer_group = '';

-- name: may_purge: a statement that takes what retention deletes
EXPLAIN DELETE FROM consumer_log WHERE consumer_group = '';

-- name: may_raise: a statement that takes what retention writes first
EXPLAIN INSERT INTO consumer_log_floor (consumer_group, log_floor) VALUES ('', NULL)
ON DUPLICATE KEY UPDATE log_floor = VALUES(log_floor);

-- name: may_read_stubs: a statement that takes what the duties read with
EXPLAIN SELECT s.status FROM message_stub s, send_attempt a;

-- name: may_change_stubs: a statement that takes what the duties and an erasure change
EXPLAIN UPDATE message_stub SET
    status = status, send_count = send_count, refusals = refusals, max_sends = max_sends, next_check_at = next_check_at,
    broker = broker, queue_id = queue_id, queue_offset = queue_offset, queue_epoch = queue_epoch,
    broker_message_id = broker_message_id, first_seen_at = first_seen_at, judged_at = judged_at, attempted_at = attempted_at,
    sent_at = sent_at, attempt_token = attempt_token, attempt_deadline = attempt_deadline, attempt_groups = attempt_groups,
    attempt_requested_by = attempt_requested_by, first_broker = first_broker, first_queue_id = first_queue_id,
    first_queue_offset = first_queue_offset, first_queue_epoch = first_queue_epoch, first_groups = first_groups,
    content = content, content_version = content_version, updated_at = updated_at, headers = headers,
    message_key = message_key, ordering_key = ordering_key, erased_hash = erased_hash
WHERE topic = '';

-- name: may_record_attempts: a statement that takes what a settlement writes
EXPLAIN INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, finished_at, outcome)
VALUES ('', '', 1, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'unknown');

-- name: may_empty_attempts: a statement that takes what an erasure empties
EXPLAIN UPDATE send_attempt SET error = NULL WHERE topic = '';

-- name: may_purge_stubs: a statement that takes what retention deletes
EXPLAIN DELETE FROM message_stub WHERE topic = '';
