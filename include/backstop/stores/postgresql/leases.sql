-- Leases in a consumer database, for the sweep. Clocks are the database's. Only groups that are configured are touched.

-- name: count: expired leases counted no further than asked, the oldest end, those that ended long ago
WITH ended AS (
    SELECT l.lease_expires_at
    FROM consumer_log l
    WHERE l.state = 'CONSUMING' AND l.lease_expires_at <= clock_timestamp() AND l.consumer_group = ANY(%(groups)s::text[])
    ORDER BY l.lease_expires_at
    LIMIT %(limit)s::integer
)
SELECT count(*), min(lease_expires_at),
    count(*) FILTER (WHERE lease_expires_at <= clock_timestamp() - %(overdue_seconds)s::float8 * interval '1 second')
FROM ended;

-- name: count_endless: logs of CONSUMING whose lease has no end (none, or in the year 9000 or later) that nobody touched for the group's untouched_for
SELECT count(*)
FROM consumer_log l
JOIN unnest(%(groups)s::text[], %(untouched_seconds)s::float8[]) AS g (consumer_group, seconds) USING (consumer_group)
WHERE l.state = 'CONSUMING' AND (l.lease_expires_at IS NULL OR l.lease_expires_at >= timestamptz '9000-01-01Z')
    AND l.updated_at <= clock_timestamp() - g.seconds * interval '1 second';

-- name: count_without_time: logs received lately that are CONSUMED without a time; none are looked for where the table forbids it
SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_constraint WHERE conrelid = 'consumer_log'::regclass
        AND conname = 'consumer_log_consumed_has_time' AND convalidated) THEN 0
    ELSE (SELECT count(*) FROM consumer_log l
        WHERE l.consumer_group = ANY(%(groups)s::text[]) AND l.first_received_at > clock_timestamp() - interval '10 minutes'
            AND l.state = 'CONSUMED' AND l.consumed_at IS NULL)
    END;

-- name: expired: leases to decide on whose keys can be read, the oldest first
SELECT l.consumer_group, l.topic, l.message_id, l.owner_token::text, l.lease_expires_at::text, l.updated_at::text, l.owner_host,
    l.lease_expires_at <= clock_timestamp() AS is_expired
FROM consumer_log l
WHERE l.state = 'CONSUMING' AND l.lease_expires_at <= clock_timestamp() AND l.consumer_group = ANY(%(groups)s::text[])
    AND {only_readable}
ORDER BY l.lease_expires_at
LIMIT %(limit)s::integer;

-- name: endless: the same for logs whose lease has no end
SELECT l.consumer_group, l.topic, l.message_id, l.owner_token::text, l.lease_expires_at::text, l.updated_at::text, l.owner_host,
    l.updated_at <= clock_timestamp() - g.seconds * interval '1 second' AS is_expired
FROM consumer_log l
JOIN unnest(%(groups)s::text[], %(untouched_seconds)s::float8[]) AS g (consumer_group, seconds) USING (consumer_group)
WHERE l.state = 'CONSUMING' AND (l.lease_expires_at IS NULL OR l.lease_expires_at >= timestamptz '9000-01-01Z')
    AND l.updated_at <= clock_timestamp() - g.seconds * interval '1 second' AND {only_readable}
LIMIT %(limit)s::integer;

-- name: held: ... and holds them until the end of this transaction; those in somebody's hands are skipped
FOR UPDATE OF l SKIP LOCKED;

-- name: reclaim: takes leases back, each only as it was seen and only when it has ended; the token stays its holder's
UPDATE consumer_log l SET state = 'EXPIRED', updated_at = clock_timestamp(),
    lease_expires_at = least(l.lease_expires_at, clock_timestamp())
FROM unnest(%(groups)s::text[], %(topics)s::text[], %(message_ids)s::text[], %(tokens)s::uuid[], %(ends)s::timestamptz[],
        %(touched)s::timestamptz[])
    AS g (consumer_group, topic, message_id, token, ends, touched)
WHERE l.consumer_group = g.consumer_group AND l.topic = g.topic AND l.message_id = g.message_id
    AND l.state = 'CONSUMING' AND l.owner_token IS NOT DISTINCT FROM g.token
    AND (l.lease_expires_at = g.ends AND l.lease_expires_at <= clock_timestamp()
        OR coalesce(l.lease_expires_at, 'infinity') >= timestamptz '9000-01-01Z'
            AND l.lease_expires_at IS NOT DISTINCT FROM g.ends AND l.updated_at = g.touched)
RETURNING l.consumer_group, l.topic, l.message_id;

-- name: take_back: takes back the oldest leases that ended, in one statement; how many of each group, topic and host, and one of each
-- Rows are found again by their address: they are locked, so that it cannot change, and a row that moved before is not taken.
WITH ended AS MATERIALIZED (
    SELECT l.ctid, l.owner_token
    FROM consumer_log l
    WHERE l.state = 'CONSUMING' AND l.lease_expires_at <= clock_timestamp() AND l.consumer_group = ANY(%(groups)s::text[])
    ORDER BY l.lease_expires_at
    LIMIT %(limit)s::integer
    FOR UPDATE OF l SKIP LOCKED
), taken AS (
    UPDATE consumer_log l SET state = 'EXPIRED', updated_at = clock_timestamp()
    FROM ended e
    WHERE l.ctid = e.ctid AND l.state = 'CONSUMING' AND l.owner_token IS NOT DISTINCT FROM e.owner_token
        AND l.lease_expires_at <= clock_timestamp() AND l.consumer_group = ANY(%(groups)s::text[])
    RETURNING l.consumer_group, l.topic, l.owner_host, l.message_id
);

-- name: taken: ... which were taken
SELECT consumer_group, topic, owner_host, count(*) AS leases, min(message_id) AS message_id
FROM taken GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: standing: what the logs say of the messages asked for: a state, is it alive and for how many seconds still, and the numbers
-- (from 1) of the messages of which that is so; without a log a message has no number
SELECT f.state, f.is_alive, f.seconds_left, pg_catalog.array_agg(f.number)
FROM (
    SELECT k.number, l.state, l.is_alive,
        CASE WHEN l.is_alive AND isfinite(l.lease_expires_at)
            THEN extract(epoch FROM l.lease_expires_at - clock_timestamp())::float8 END AS seconds_left
    FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) WITH ORDINALITY AS k (topic, message_id, number)
    CROSS JOIN LATERAL (
        SELECT m.state, m.lease_expires_at,
            m.state = 'CONSUMING' AND coalesce(m.lease_expires_at > clock_timestamp(), true) AS is_alive
        FROM consumer_log m
        WHERE m.consumer_group = %(group)s::text AND m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) l
) f
GROUP BY f.state, f.is_alive, f.seconds_left;

-- name: failing: of each group and topic, messages that were begun so often, are not done, and moved within so many seconds
SELECT l.consumer_group, l.topic, l.message_id, l.attempts, left(l.last_error, 200) AS last_error, l.first_received_at
FROM unnest(%(groups)s::text[], %(topics)s::text[], %(attempts)s::integer[], %(seconds)s::float8[])
    AS g (consumer_group, topic, least, seconds)
CROSS JOIN LATERAL (
    SELECT * FROM consumer_log m
    WHERE m.attempts >= 3 AND m.state IN ('FAILED', 'CONSUMING', 'EXPIRED') AND m.attempts >= g.least
        AND m.consumer_group = g.consumer_group AND m.topic = g.topic
        AND m.updated_at > clock_timestamp() - g.seconds * interval '1 second' AND {only_readable}
    ORDER BY m.first_received_at DESC
    LIMIT %(limit)s::integer) l;
