-- Copied word for word from docs/wire-contract.md; a test holds the two together.

-- name: record: a stub, in the transaction of the business change
INSERT INTO message_stub
    (topic, message_id, message_key, tag, ordering_key, sequence, headers, content, content_type, deliver_at,
     created_at, updated_at, next_check_at, send_count, attempted_at, attempt_token, attempt_deadline,
     attempt_requested_by)
SELECT g.topic, g.message_id, g.message_key, g.tag, g.ordering_key, g.sequence, g.headers, g.content, g.content_type,
    g.deliver_at, t.now, t.now,
    greatest(t.now, g.deliver_at) + %(first_check_seconds)s::float8 * interval '1 second',
    CASE WHEN g.token IS NULL THEN 0 ELSE 1 END,
    CASE WHEN g.token IS NOT NULL THEN t.now END,
    g.token,
    CASE WHEN g.token IS NOT NULL
        THEN t.now + %(attempt_timeout_seconds)s::float8 * interval '1 second' END,
    CASE WHEN g.token IS NOT NULL THEN 'producer' END
FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(message_keys)s::text[], %(tags)s::text[],
        %(ordering_keys)s::text[], %(sequences)s::bigint[], %(headers)s::jsonb[], %(contents)s::bytea[],
        %(content_types)s::text[], %(deliver_at)s::timestamptz[], %(tokens)s::uuid[])
    AS g (topic, message_id, message_key, tag, ordering_key, sequence, headers, content, content_type, deliver_at,
          token)
CROSS JOIN (SELECT clock_timestamp() AS now) t
ON CONFLICT (topic, message_id) DO NOTHING
RETURNING topic, message_id;

-- name: look_before_send: whether it may be published
SELECT g.topic, g.message_id,
    s.topic IS NOT NULL AS recorded,
    coalesce(s.status = 'pending' AND s.attempt_token = g.token, false) AS ours,
    extract(epoch FROM s.attempt_deadline - clock_timestamp())::float8 AS seconds_left,
    greatest(extract(epoch FROM s.deliver_at - clock_timestamp())::float8, 0) AS early_seconds,
    pg_current_xact_id_if_assigned() IS NOT NULL AS in_transaction
FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(tokens)s::uuid[]) AS g (topic, message_id, token)
LEFT JOIN message_stub s ON s.topic = g.topic AND s.message_id = g.message_id;

-- name: settle: how the send ended
-- The token is compared so that only the key finds the row: by `=` the planner takes the small index of attempts under way
-- and reads all of it for each key, the square of the batch. A given token is never null, and a null one matches nothing.
WITH given AS (
    SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(tokens)s::uuid[], %(outcomes)s::text[],
            %(queue_ids)s::integer[], %(queue_offsets)s::bigint[], %(queue_epochs)s::text[],
            %(broker_message_ids)s::text[], %(errors)s::text[], %(max_send_seconds)s::float8[])
        AS g (topic, message_id, token, outcome, queue_id, queue_offset, queue_epoch, broker_message_id, error,
              max_send_seconds)
), held AS MATERIALIZED (
    SELECT s.topic, s.message_id
    FROM (SELECT * FROM given ORDER BY topic, message_id) g
    CROSS JOIN LATERAL (
        SELECT m.topic, m.message_id FROM message_stub m
        WHERE m.topic = g.topic AND m.message_id = g.message_id AND g.token IS NOT NULL
            AND m.attempt_token IS NOT DISTINCT FROM g.token
        FOR UPDATE) s
), settled AS (
    UPDATE message_stub s SET
        attempt_token = NULL,
        attempt_requested_by = NULL,
        sent_at = CASE WHEN g.outcome = 'sent' THEN clock_timestamp() END,
        -- A send that began late may be stored until now: the rule adds max_send_duration to attempted_at.
        attempted_at = greatest(s.attempted_at, clock_timestamp() - g.max_send_seconds * interval '1 second'),
        refusals = s.refusals + (g.outcome = 'refused')::integer,
        broker = coalesce(%(broker)s::text, s.broker),
        queue_id = g.queue_id,
        queue_offset = g.queue_offset,
        queue_epoch = g.queue_epoch,
        broker_message_id = g.broker_message_id,
        updated_at = clock_timestamp()
    FROM held h
    JOIN given g ON g.topic = h.topic AND g.message_id = h.message_id
    WHERE s.topic = h.topic AND s.message_id = h.message_id
        AND g.token IS NOT NULL AND s.attempt_token IS NOT DISTINCT FROM g.token AND s.send_count = 1
    RETURNING s.topic, s.message_id, s.attempted_at
)
INSERT INTO send_attempt
    (topic, message_id, send_number, requested_by, started_at, outcome, queue_id, queue_offset, queue_epoch,
     broker_message_id, error)
SELECT g.topic, g.message_id, 1, 'producer', s.attempted_at, g.outcome, g.queue_id, g.queue_offset, g.queue_epoch,
    g.broker_message_id, g.error
FROM settled s
JOIN given g ON g.topic = s.topic AND g.message_id = s.message_id
RETURNING topic, message_id;

-- name: begin: the log at first receipt, with a lease
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

-- name: refused: why begin gave no row
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

-- name: complete: the work is done, in its transaction
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

-- name: fail: the work was rolled back
UPDATE consumer_log SET
    state = 'FAILED',
    last_error = %(error)s::text,
    updated_at = clock_timestamp(),
    lease_expires_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND owner_token = %(token)s::uuid AND state IN ('CONSUMING', 'EXPIRED')
RETURNING fence, set_config('idle_in_transaction_session_timeout', '10s', true) AS limited;
