-- The consumer's side, on the consumer database: the lease that lets one worker process one message, and its end.
-- Clocks are the database's. A lease exists in state CONSUMING only; every other state has lease_expires_at in the
-- past, because an empty one means "alive until somebody says otherwise".
-- `begin` waits for rows that another transaction has locked. So the statements that end work, and are committed in a round trip
-- of their own, set a limit: the server ends their transaction if its client then stands still.

-- name: begin: asks for the lease of each message given; a row comes back for each lease granted, and only for those
INSERT INTO consumer_log AS l
    (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, owner_token, fence,
     lease_expires_at, attempts, first_received_at, updated_at, payload_hash, content_version, owner_host)
SELECT %(group)s::text, g.topic, g.message_id, g.queue_id, g.queue_offset, g.queue_epoch, 'CONSUMING', g.token,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
    statement_timestamp() + %(lease_seconds)s::float8 * interval '1 second', 1,
    statement_timestamp(), statement_timestamp(), g.payload_hash, g.content_version, %(owner_host)s::text
FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(queue_ids)s::integer[], %(queue_offsets)s::bigint[],
        %(queue_epochs)s::text[], %(tokens)s::uuid[], %(payload_hashes)s::bytea[], %(content_versions)s::integer[])
    AS g (topic, message_id, queue_id, queue_offset, queue_epoch, token, payload_hash, content_version)
ORDER BY g.topic, g.message_id
ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET
    state = 'CONSUMING',
    owner_token = excluded.owner_token,
    fence = greatest(l.fence + 1, excluded.fence),
    lease_expires_at = excluded.lease_expires_at,
    attempts = l.attempts + 1,
    updated_at = excluded.updated_at,
    conflicts = l.conflicts + coalesce(l.content_version = excluded.content_version
        AND l.payload_hash <> excluded.payload_hash, false)::integer,
    payload_hash = excluded.payload_hash,
    content_version = excluded.content_version,
    owner_host = excluded.owner_host
WHERE excluded.content_version >= l.content_version
    AND (l.state IN ('FAILED', 'EXPIRED')
        OR (l.state = 'CONSUMING' AND l.lease_expires_at <= statement_timestamp()
            AND (excluded.content_version > l.content_version
                OR coalesce(l.payload_hash = excluded.payload_hash, true))))
RETURNING l.topic, l.message_id, l.owner_token::text AS token, l.fence, l.attempts,
    extract(epoch FROM l.lease_expires_at - clock_timestamp())::float8 AS seconds_left;

-- name: refused: why a lease was not granted, and the count of it; after begin, for what it left out
WITH met AS (
    SELECT l.topic, l.message_id,
        CASE WHEN l.state = 'PARKED' THEN 'PARKED'
            WHEN g.content_version < l.content_version THEN 'SUPERSEDED'
            WHEN l.payload_hash <> g.payload_hash AND (l.state = 'CONSUMED'
                OR (l.state = 'CONSUMING' AND l.content_version = g.content_version)) THEN 'CONFLICT'
            WHEN l.state = 'CONSUMED' THEN 'DONE'
            ELSE 'BUSY' END AS outcome,
        CASE WHEN isfinite(l.lease_expires_at)
            THEN extract(epoch FROM l.lease_expires_at - statement_timestamp())::float8 END AS seconds_left,
        g.payload_hash AS other_hash
    FROM consumer_log l
    JOIN unnest(%(topics)s::text[], %(message_ids)s::text[], %(payload_hashes)s::bytea[],
            %(content_versions)s::integer[])
        AS g (topic, message_id, payload_hash, content_version) USING (topic, message_id)
    WHERE l.consumer_group = %(group)s::text
    ORDER BY l.topic, l.message_id
    FOR UPDATE OF l
), counted AS (
    UPDATE consumer_log l SET
        duplicates_stopped = l.duplicates_stopped + (m.outcome IN ('DONE', 'BUSY'))::integer,
        conflicts = l.conflicts + (m.outcome = 'CONFLICT')::integer,
        last_error = CASE WHEN m.outcome = 'CONFLICT'
            THEN 'CONFLICT: received with another content, sha256 ' || encode(m.other_hash, 'hex')
            ELSE l.last_error END
    FROM met m
    WHERE l.consumer_group = %(group)s::text AND l.topic = m.topic AND l.message_id = m.message_id
        AND m.outcome IN ('DONE', 'BUSY', 'CONFLICT')
)
SELECT topic, message_id, outcome, seconds_left FROM met;

-- name: renew: prolongs leases that nobody has taken over; a row comes back for each that is still held
WITH held AS (
    SELECT l.topic, l.message_id, l.owner_token
    FROM consumer_log l
    JOIN unnest(%(topics)s::text[], %(message_ids)s::text[], %(tokens)s::uuid[]) AS g (topic, message_id, token)
        USING (topic, message_id)
    WHERE l.consumer_group = %(group)s::text AND l.owner_token = g.token AND l.state IN ('CONSUMING', 'EXPIRED')
    ORDER BY l.topic, l.message_id
    FOR UPDATE OF l
)
UPDATE consumer_log l SET
    state = 'CONSUMING',
    lease_expires_at = clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second',
    updated_at = clock_timestamp()
FROM held h
WHERE l.consumer_group = %(group)s::text AND l.topic = h.topic AND l.message_id = h.message_id
    AND l.owner_token = h.owner_token
RETURNING l.owner_token::text AS token;

-- name: complete: the work is done; in the handler's transaction, which must roll back what no row comes back for
WITH held AS (
    SELECT l.topic, l.message_id, l.owner_token
    FROM consumer_log l
    JOIN unnest(%(topics)s::text[], %(message_ids)s::text[], %(tokens)s::uuid[]) AS g (topic, message_id, token)
        USING (topic, message_id)
    WHERE l.consumer_group = %(group)s::text AND l.owner_token = g.token AND l.state IN ('CONSUMING', 'EXPIRED')
    ORDER BY l.topic, l.message_id
    FOR UPDATE OF l
)
UPDATE consumer_log l SET
    state = 'CONSUMED',
    consumed_at = clock_timestamp(),
    updated_at = clock_timestamp(),
    lease_expires_at = clock_timestamp()
FROM held h
WHERE l.consumer_group = %(group)s::text AND l.topic = h.topic AND l.message_id = h.message_id
    AND l.owner_token = h.owner_token
RETURNING l.owner_token::text AS token, set_config('idle_in_transaction_session_timeout', '10s', true) AS limited;

-- name: fail: the handler gave up, and its transaction was rolled back: releases the lease and keeps the error
UPDATE consumer_log SET
    state = 'FAILED',
    last_error = %(error)s::text,
    updated_at = clock_timestamp(),
    lease_expires_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND owner_token = %(token)s::uuid AND state IN ('CONSUMING', 'EXPIRED')
RETURNING fence, set_config('idle_in_transaction_session_timeout', '10s', true) AS limited;

-- name: give_back: a worker that stops releases a lease, and no renewal under way finds its token: no failure; an attempt if a handler had begun
UPDATE consumer_log SET
    state = 'EXPIRED',
    owner_token = NULL,
    attempts = greatest(attempts - (NOT %(was_entered)s::boolean)::integer, 0),
    updated_at = clock_timestamp(),
    lease_expires_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND owner_token = %(token)s::uuid AND state IN ('CONSUMING', 'EXPIRED')
RETURNING fence, set_config('idle_in_transaction_session_timeout', '10s', true) AS limited;


-- name: record_done: the work was found done, or was done, in this transaction under a business row's lock, without a lease; no row: look why
INSERT INTO consumer_log AS l
    (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, lease_expires_at, attempts,
     first_received_at, updated_at, consumed_at, payload_hash, content_version, owner_host)
VALUES (%(group)s::text, %(topic)s::text, %(message_id)s::text, %(queue_id)s::integer, %(queue_offset)s::bigint,
    %(queue_epoch)s::text, 'CONSUMED', clock_timestamp(), 1, statement_timestamp(), clock_timestamp(), clock_timestamp(),
    %(payload_hash)s::bytea, %(content_version)s::integer, %(owner_host)s::text)
ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET
    state = 'CONSUMED',
    fence = l.fence + 1,
    lease_expires_at = excluded.lease_expires_at,
    attempts = l.attempts + 1,
    updated_at = excluded.updated_at,
    consumed_at = excluded.consumed_at,
    payload_hash = excluded.payload_hash,
    content_version = excluded.content_version,
    owner_host = excluded.owner_host
WHERE excluded.content_version >= l.content_version
    AND (l.state IN ('FAILED', 'EXPIRED')
        OR (l.state = 'CONSUMING' AND l.lease_expires_at <= statement_timestamp()
            AND (excluded.content_version > l.content_version
                OR coalesce(l.payload_hash = excluded.payload_hash, true))))
RETURNING l.fence, set_config('idle_in_transaction_session_timeout', '10s', true) AS limited;

-- name: record_failure: the handler failed under its row's lock and was rolled back; no row: the message ended meanwhile, or is held
INSERT INTO consumer_log AS l
    (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, lease_expires_at, attempts,
     first_received_at, updated_at, payload_hash, content_version, owner_host, last_error)
VALUES (%(group)s::text, %(topic)s::text, %(message_id)s::text, %(queue_id)s::integer, %(queue_offset)s::bigint,
    %(queue_epoch)s::text, 'FAILED', clock_timestamp(), 1, statement_timestamp(), clock_timestamp(),
    %(payload_hash)s::bytea, %(content_version)s::integer, %(owner_host)s::text, %(error)s::text)
ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET
    state = 'FAILED',
    lease_expires_at = excluded.lease_expires_at,
    attempts = l.attempts + 1,
    updated_at = excluded.updated_at,
    payload_hash = CASE WHEN excluded.content_version > l.content_version THEN excluded.payload_hash ELSE l.payload_hash END,
    content_version = excluded.content_version,
    owner_host = excluded.owner_host,
    last_error = excluded.last_error
WHERE excluded.content_version >= l.content_version
    AND (l.state IN ('FAILED', 'EXPIRED') OR (l.state = 'CONSUMING' AND l.lease_expires_at <= statement_timestamp()))
RETURNING l.fence, set_config('idle_in_transaction_session_timeout', '10s', true) AS limited;
