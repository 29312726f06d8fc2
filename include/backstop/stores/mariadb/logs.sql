-- Logs in a consumer database in MariaDB, read only. Keys are bytes; instants are given in microseconds since 1970.

-- name: clock: the server's own time
SELECT UTC_TIMESTAMP(6);

-- name: floor: the largest updated_at ever purged of a group; no row or NULL when nothing was
SELECT log_floor FROM consumer_log_floor WHERE consumer_group = %(group)s;

-- name: broken: how a row breaks its contract, NULL when it keeps it; other programs write these tables
-- A state is compared as bytes: every collation takes 'CONSUMED ' for 'CONSUMED', also that of the column's CHECK, and the rule does not.
CASE
    WHEN l.state IS NULL OR CAST(l.state AS BINARY) NOT IN ('CONSUMING', 'CONSUMED', 'FAILED', 'EXPIRED', 'PARKED')
        THEN CONCAT('unknown state ', QUOTE(LEFT(l.state, 40)))
    WHEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.updated_at) IS NULL THEN 'no updated_at'
    WHEN l.state = 'CONSUMED' AND TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.consumed_at) IS NULL THEN 'CONSUMED without consumed_at'
    WHEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.first_received_at) IS NULL THEN 'no first_received_at'
    WHEN l.attempts IS NULL OR l.attempts < 0 OR l.duplicates_stopped IS NULL OR l.duplicates_stopped < 0
        THEN 'no count of attempts or of duplicates'
END;

-- name: row_columns: all that is known of a row; of an error, which no one bounds, what a cause is found by
l.topic, l.message_id, l.state, l.owner_token, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.lease_expires_at) AS lease_expires_at,
l.attempts, l.duplicates_stopped, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.first_received_at) AS first_received_at,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.updated_at) AS updated_at,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.consumed_at) AS consumed_at, l.conflicts,
IF(CHAR_LENGTH(l.last_error) > 10240, CONCAT(LEFT(l.last_error, 8192), '\n', RIGHT(l.last_error, 2048)), l.last_error) AS last_error,
l.owner_host, LOWER(HEX(l.payload_hash)) AS payload_hash;

-- name: rule_columns: what the rule needs
l.topic, l.message_id, COALESCE(l.state, '') AS log_state,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.lease_expires_at) AS lease_expires_at,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.updated_at) AS log_updated_at,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.consumed_at) AS log_consumed_at;

-- name: of_keys: one group's rows of one topic by id
FROM consumer_log l
WHERE l.consumer_group = %(group)s AND l.topic = %(topic)s AND l.message_id IN %(ids)s;

-- name: made: when the table was made; no row: there is none
SELECT CREATE_TIME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'consumer_log';

-- name: unique: the columns of each index that holds each of its values once
SELECT INDEX_NAME, GROUP_CONCAT(COLUMN_NAME) FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'consumer_log' AND NON_UNIQUE = 0 AND SUB_PART IS NULL
GROUP BY INDEX_NAME;

-- name: since: for an estimate, one group's rows first received since an instant
SELECT 1 FROM consumer_log l WHERE l.consumer_group = %(group)s AND l.first_received_at >= %(since)s;

-- name: done_between: one group's CONSUMED rows first received in [start, end); final, whenever they are read
FROM consumer_log l
WHERE l.consumer_group = %(group)s AND l.state = 'CONSUMED'
    AND l.first_received_at >= %(start)s AND l.first_received_at < %(end)s
LIMIT %(most)s;

-- name: received_between: one group's rows first received in [start, end), oldest first
FROM consumer_log l
WHERE l.consumer_group = %(group)s AND l.first_received_at >= %(start)s AND l.first_received_at < %(end)s
ORDER BY l.first_received_at, l.topic, l.message_id
LIMIT %(limit)s;

-- name: count_received: by topic, one group's rows first received in [start, end)
SELECT l.topic, COUNT(*) FROM consumer_log l
WHERE l.consumer_group = %(group)s AND l.first_received_at >= %(start)s AND l.first_received_at < %(end)s
GROUP BY l.topic;

-- name: highest_logged: the highest original offset of a queue and epoch below the queue's end
-- What lies at or above the end was never stored there, whatever offset a row holds: it is not how far anybody got.
SELECT MAX(l.queue_offset) FROM consumer_log l
WHERE l.consumer_group = %(group)s AND l.topic = %(topic)s AND l.queue_id = %(queue_id)s AND l.queue_epoch = %(epoch)s
    AND l.queue_offset < %(end)s;
