-- What retention reads and takes away in producer and consumer databases in MariaDB. Instants travel as text, so that one is compared as it was
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

-- name: old_stubs: a page of one topic's closed stubs of one status, by when they ended
SELECT s.message_id, s.status, CAST(s.updated_at AS CHAR)
FROM message_stub s
WHERE s.topic = %(topic)s AND s.status = %(status)s
    AND s.updated_at < UTC_TIMESTAMP(6) - INTERVAL %(kept)s MICROSECOND
    AND (s.updated_at > %(after_moved)s OR s.updated_at = %(after_moved)s AND s.message_id > %(after_id)s)
    AND s.attempt_token IS NULL
    AND (s.status <> 'no_taker'
        OR GREATEST(s.created_at, COALESCE(s.deliver_at, s.created_at)) < UTC_TIMESTAMP(6) - INTERVAL %(no_taker)s MICROSECOND)
ORDER BY s.updated_at, s.message_id
LIMIT %(limit)s;

-- name: hold_stubs: of some messages of a topic those that are over, locked
SELECT s.message_id, s.status, CAST(s.updated_at AS CHAR) FROM {of_stubs}
WHERE s.status IN ('confirmed', 'voided', 'no_taker') AND s.attempt_token IS NULL
FOR UPDATE SKIP LOCKED;

-- name: delete_stubs: rows that this transaction holds; their attempts go with them
DELETE s FROM {of_stubs};

-- name: standing: a message's status, and whether a send of it is under way
SELECT s.status, s.attempt_token IS NOT NULL FROM message_stub s WHERE s.topic = %(topic)s AND s.message_id = %(message_id)s;

-- name: hold_erased: a message that is over, locked
SELECT s.ordering_key FROM message_stub s FORCE INDEX (PRIMARY)
WHERE s.topic = %(topic)s AND s.message_id = %(message_id)s
    AND s.status IN ('confirmed', 'voided', 'no_taker') AND s.attempt_token IS NULL
FOR UPDATE;

-- name: is_key_open: whether a message of an ordering key is open: then the place of the others is decided by it
SELECT EXISTS (SELECT 1 FROM message_stub s
    WHERE s.topic = %(topic)s AND s.ordering_key = %(ordering_key)s AND s.status IN ('pending', 'exhausted'));

-- name: hash_erased: the fingerprint has a salt that nobody keeps: that of a short content could be guessed
UPDATE message_stub s SET s.erased_hash = COALESCE(s.erased_hash, UNHEX(SHA2(CONCAT(%(salt)s, s.content), 256)))
WHERE s.topic = %(topic)s AND s.message_id = %(message_id)s;

-- name: erase: empties it; updated_at stays, so that it goes when it would have gone
UPDATE message_stub s SET
    s.content = '', s.headers = '{}', s.message_key = NULL, s.ordering_key = %(ordering_key)s
WHERE s.topic = %(topic)s AND s.message_id = %(message_id)s;

-- name: erase_attempts: the errors of its attempts
UPDATE send_attempt a SET a.error = NULL
WHERE a.topic = %(topic)s AND a.message_id = %(message_id)s AND a.error IS NOT NULL;
