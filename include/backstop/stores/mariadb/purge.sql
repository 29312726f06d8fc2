-- What retention reads and takes away in a consumer database in MariaDB. Instants travel as text, so that one is compared as it was
-- seen. Rows in somebody's hands are skipped, never waited for.

-- name: limits: no step of a purge waits long for anybody
SET SESSION innodb_lock_wait_timeout = 2;

-- name: old_logs: a page of one group's logs, oldest first, and since when each did not move
SELECT l.topic, l.message_id, l.state, CAST(l.updated_at AS CHAR), TIMESTAMPDIFF(MICROSECOND, l.updated_at, UTC_TIMESTAMP(6)),
    l.state = 'CONSUMING' AND (l.lease_expires_at IS NULL OR l.lease_expires_at > UTC_TIMESTAMP(6)),
    CAST(l.first_received_at AS CHAR)
FROM consumer_log l
WHERE l.consumer_group = %(group)s
    AND l.first_received_at < UTC_TIMESTAMP(6) - INTERVAL %(least)s MICROSECOND
    AND (l.first_received_at > %(received)s OR l.first_received_at = %(received)s
        AND (l.topic > %(after_topic)s OR l.topic = %(after_topic)s AND l.message_id > %(after_id)s))
ORDER BY l.first_received_at, l.topic, l.message_id
LIMIT %(limit)s;

-- name: hold_logs: of some messages of a topic those that no worker holds, locked
SELECT l.message_id, l.state, CAST(l.updated_at AS CHAR) FROM {of_keys}
WHERE l.state <> 'CONSUMING' OR l.lease_expires_at <= UTC_TIMESTAMP(6)
FOR UPDATE SKIP LOCKED;

-- name: raise_floor: from now on a missing log that is no newer may have been purged; never lowered
INSERT INTO consumer_log_floor (consumer_group, log_floor) VALUES (%(group)s, %(moved)s)
ON DUPLICATE KEY UPDATE log_floor = GREATEST(COALESCE(log_floor, VALUES(log_floor)), VALUES(log_floor));

-- name: delete_logs: rows that this transaction holds
DELETE l FROM {of_keys};

-- name: erase_log: what handlers said of a message, and where the work is done the fingerprint of its content
-- Whoever gets the message again must still be told apart from another content while it is not done.
UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    last_error = NULL, payload_hash = IF(state = 'CONSUMED', NULL, payload_hash)
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s
    AND (last_error IS NOT NULL OR state = 'CONSUMED' AND payload_hash IS NOT NULL);
