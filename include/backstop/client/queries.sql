-- The producer's side, on the producer database: the stub in the business transaction, the send after it, its end.
-- Send number 1 is the application's own; every later one is Backstop's.

-- name: record: writes the stub in the business transaction and, unless Backstop is to send it, hands out number 1
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

-- name: recorded_content: whether a message that was recorded before has the same content
SELECT content = %(content)s::bytea AS same
FROM message_stub
WHERE topic = %(topic)s::text AND message_id = %(message_id)s::text;

-- name: look_before_send: which stubs are committed and still under our attempt, and for how long; not in a transaction
SELECT g.topic, g.message_id,
    s.topic IS NOT NULL AS recorded,
    coalesce(s.status = 'pending' AND s.attempt_token = g.token, false) AS ours,
    extract(epoch FROM s.attempt_deadline - clock_timestamp())::float8 AS seconds_left,
    greatest(extract(epoch FROM s.deliver_at - clock_timestamp())::float8, 0) AS early_seconds,
    pg_current_xact_id_if_assigned() IS NOT NULL AS in_transaction
FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(tokens)s::uuid[]) AS g (topic, message_id, token)
LEFT JOIN message_stub s ON s.topic = g.topic AND s.message_id = g.message_id;

-- name: settle: how each send ended, only where the attempt is still ours; stub and attempt in one transaction
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
