-- Leases in a consumer database in MariaDB, for the sweep. Clocks are the database's. Only groups that are configured are touched.
-- They run where a locking read keeps the rows that it finds and no gap between them (READ COMMITTED).

-- name: count: expired leases counted no further than asked, the oldest end, those that ended long ago
SELECT COUNT(*), MIN(e.lease_expires_at), COALESCE(SUM(e.is_overdue), 0)
FROM (
    SELECT l.lease_expires_at, l.lease_expires_at <= UTC_TIMESTAMP(6) - INTERVAL %(overdue)s MICROSECOND AS is_overdue
    FROM consumer_log l
    WHERE l.state = 'CONSUMING' AND l.lease_expires_at <= UTC_TIMESTAMP(6) AND l.consumer_group IN %(groups)s
    ORDER BY l.lease_expires_at
    LIMIT %(limit)s) e;

-- name: count_endless: logs of CONSUMING whose lease has no end (none, or in the year 9000 or later) that nobody touched for the group's untouched_for
SELECT COUNT(*) FROM consumer_log l
WHERE l.state = 'CONSUMING' AND (l.lease_expires_at IS NULL OR l.lease_expires_at >= '9000-01-01') AND l.consumer_group = %(group)s
    AND l.updated_at <= UTC_TIMESTAMP(6) - INTERVAL %(untouched)s MICROSECOND;

-- name: without_time: logs received lately that are CONSUMED without a time
SELECT COUNT(*) FROM consumer_log l
WHERE l.consumer_group IN %(groups)s AND l.first_received_at > UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE
    AND l.state = 'CONSUMED' AND l.consumed_at IS NULL;

-- name: seen: what is seen of a lease; instants as the database writes them
SELECT l.consumer_group, l.topic, l.message_id, l.owner_token, CAST(l.lease_expires_at AS CHAR), CAST(l.updated_at AS CHAR),
    l.owner_host;

-- name: expired: leases to decide on, the oldest first
FROM consumer_log l
WHERE l.state = 'CONSUMING' AND l.lease_expires_at <= UTC_TIMESTAMP(6) AND l.consumer_group IN %(groups)s
ORDER BY l.lease_expires_at
LIMIT %(limit)s;

-- name: endless: the same for logs whose lease has no end
FROM consumer_log l
WHERE l.state = 'CONSUMING' AND (l.lease_expires_at IS NULL OR l.lease_expires_at >= '9000-01-01') AND l.consumer_group = %(group)s
    AND l.updated_at <= UTC_TIMESTAMP(6) - INTERVAL %(untouched)s MICROSECOND
LIMIT %(limit)s;

-- name: held: ... and holds them until the end of this transaction; those in somebody's hands are skipped
FOR UPDATE SKIP LOCKED;

-- name: reclaim: takes a lease back, only as it was seen and only when it has ended; the token stays its holder's
-- The clock is asked before the end is set to it.
UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'EXPIRED', updated_at = UTC_TIMESTAMP(6),
    lease_expires_at = LEAST(COALESCE(lease_expires_at, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6))
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s
    AND state = 'CONSUMING' AND owner_token <=> %(token)s
    AND (lease_expires_at = %(ends)s AND lease_expires_at <= UTC_TIMESTAMP(6)
        OR (lease_expires_at IS NULL OR lease_expires_at >= '9000-01-01') AND lease_expires_at <=> %(ends)s
            AND updated_at = %(touched)s);

-- name: take_back: takes back leases of a topic that ended, which this transaction holds
UPDATE {of_keys} SET l.state = 'EXPIRED', l.updated_at = UTC_TIMESTAMP(6)
WHERE l.state = 'CONSUMING' AND l.lease_expires_at <= UTC_TIMESTAMP(6);

-- name: standing: what the logs say of some messages of a topic: a state, is it alive, and for how many microseconds still
SELECT l.message_id, l.state,
    l.state = 'CONSUMING' AND COALESCE(l.lease_expires_at > UTC_TIMESTAMP(6), TRUE) AS is_alive,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.lease_expires_at) AS micros_left
FROM consumer_log l
WHERE l.consumer_group = %(group)s AND l.topic = %(topic)s AND l.message_id IN %(ids)s;

-- name: failing: of a group and topic, messages that were begun so often, are not done, and moved within so many seconds
SELECT l.message_id, l.attempts, LEFT(l.last_error, 200), l.first_received_at
FROM consumer_log l FORCE INDEX (consumer_log_failing)
WHERE l.attempts >= %(least)s AND l.state IN ('FAILED', 'CONSUMING', 'EXPIRED')
    AND l.consumer_group = %(group)s AND l.topic = %(topic)s
    AND l.updated_at > UTC_TIMESTAMP(6) - INTERVAL %(within)s MICROSECOND
ORDER BY l.first_received_at DESC
LIMIT %(limit)s;
