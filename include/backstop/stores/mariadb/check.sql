-- What `backstop check` asks of a consumer database in MariaDB.

-- name: version: the revision of the schema; an error when there is none
SELECT version_num FROM backstop_consumer_version;

-- name: server: which server it is
SELECT VERSION();

-- name: settings: what it keeps in a crash, and how it locks
SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'sync_binlog', 'log_bin', 'innodb_snapshot_isolation', 'general_log');

-- name: engine: what keeps the logs: only InnoDB has transactions
SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'consumer_log';

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
