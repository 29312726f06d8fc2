-- What retention reads and takes away in producer and consumer databases. Instants travel as text, so that also an infinite
-- one is compared as it was seen. Rows in somebody's hands are skipped, never waited for.

-- name: limits: no step of a purge waits long for anybody, nor anybody for it
SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '30s', true);

-- name: old_logs: a page of one group's logs whose keys can be read, oldest first, and which of them are older than their topic's are kept
-- What cannot be asked for has no stub that could be asked whether it is needed: it stays.
SELECT l.topic, l.message_id, l.state, l.updated_at::text,
    coalesce(l.updated_at < clock_timestamp() - k.seconds * interval '1 second', false)
        AND NOT (l.state = 'CONSUMING' AND (l.lease_expires_at IS NULL OR l.lease_expires_at > clock_timestamp())) AS is_old,
    l.first_received_at::text
FROM (
    SELECT m.topic, m.message_id, m.state, m.updated_at, m.lease_expires_at, m.first_received_at
    FROM consumer_log m
    WHERE m.consumer_group = %(group)s::text
        AND m.first_received_at < clock_timestamp() - %(least_seconds)s::float8 * interval '1 second'
        AND (m.first_received_at, m.topic, m.message_id)
            > (%(received)s::timestamptz, %(after_topic)s::text, %(after_id)s::text)
        AND {only_readable}
    ORDER BY m.first_received_at, m.topic, m.message_id
    LIMIT %(limit)s) l
LEFT JOIN unnest(%(topics)s::text[], %(seconds)s::float8[]) AS k (topic, seconds) ON k.topic = l.topic
ORDER BY l.first_received_at, l.topic, l.message_id;

-- name: hold_logs: locks those that are still as seen and that no worker holds
SELECT s.topic, s.message_id, s.updated_at::text
FROM (SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(states)s::text[], %(moved)s::text[])
        AS u (topic, message_id, state, moved) ORDER BY topic, message_id) u
CROSS JOIN LATERAL (
    SELECT m.topic, m.message_id, m.updated_at FROM consumer_log m
    WHERE m.consumer_group = %(group)s::text AND m.topic = u.topic AND m.message_id = u.message_id
        AND m.state = u.state AND m.updated_at = u.moved::timestamptz
        AND NOT (m.state = 'CONSUMING' AND (m.lease_expires_at IS NULL OR m.lease_expires_at > clock_timestamp()))
        -- What waits in a parked key is not over, however long it waits.
        AND NOT EXISTS (SELECT FROM parked_message p WHERE p.consumer_group = m.consumer_group
            AND p.topic = m.topic AND p.message_id = m.message_id)
    FOR UPDATE SKIP LOCKED) s;

-- name: raise_floor: from now on a missing log that is no newer may have been purged; never lowered
INSERT INTO consumer_log_floor (consumer_group, log_floor)
SELECT %(group)s::text, max(m.moved::timestamptz) FROM pg_catalog.unnest(%(moved)s::text[]) AS m (moved)
ON CONFLICT (consumer_group) DO UPDATE SET log_floor = greatest(consumer_log_floor.log_floor, excluded.log_floor);

-- name: delete_logs: the rows that this transaction holds
DELETE FROM consumer_log l
USING unnest(%(topics)s::text[], %(message_ids)s::text[]) AS u (topic, message_id)
WHERE l.consumer_group = %(group)s::text AND l.topic = u.topic AND l.message_id = u.message_id;

-- name: old_stubs: a page of one topic's closed stubs, by when they ended
SELECT s.topic, s.message_id, s.status, s.updated_at::text
FROM message_stub s
WHERE s.topic = %(topic)s::text AND s.status IN ('confirmed', 'voided', 'no_taker')
    AND s.updated_at < clock_timestamp() - %(kept_seconds)s::float8 * interval '1 second'
    AND (s.updated_at, s.message_id) > (%(after_moved)s::timestamptz, %(after_id)s::text)
    AND s.attempt_token IS NULL
    AND (s.status <> 'no_taker' OR greatest(s.created_at, s.deliver_at) < clock_timestamp() - %(no_taker_seconds)s::float8 * interval '1 second')
ORDER BY s.updated_at, s.message_id
LIMIT %(limit)s;

-- name: delete_stubs: those that are still as seen; their attempts go with them
WITH held AS MATERIALIZED (
    SELECT s.topic, s.message_id
    FROM (SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(statuses)s::text[], %(moved)s::text[])
            AS u (topic, message_id, status, moved) ORDER BY topic, message_id) u
    CROSS JOIN LATERAL (
        SELECT m.topic, m.message_id FROM message_stub m
        WHERE m.topic = u.topic AND m.message_id = u.message_id
            AND m.status = u.status AND m.status IN ('confirmed', 'voided', 'no_taker')
            AND m.updated_at = u.moved::timestamptz AND m.attempt_token IS NULL
        FOR UPDATE SKIP LOCKED) s
), gone AS (
    DELETE FROM message_stub m USING held h WHERE m.topic = h.topic AND m.message_id = h.message_id RETURNING 1
)
SELECT count(*) FROM gone;

-- name: erase: empties a message that is over, once; updated_at stays, so that it goes when it would have gone
-- The ordering key stays while a message of it is open: its place among the others is decided by it. The fingerprint has a salt
-- that nobody keeps: that of a short content could be guessed.
WITH erased AS (
    UPDATE message_stub m SET
        content = '', headers = '{}', message_key = NULL,
        erased_hash = coalesce(m.erased_hash, sha256(uuid_send(gen_random_uuid()) || m.content)),
        ordering_key = CASE WHEN EXISTS (
            SELECT FROM message_stub o
            WHERE o.topic = m.topic AND o.ordering_key = m.ordering_key AND o.status IN ('pending', 'exhausted'))
            THEN m.ordering_key END
    WHERE m.topic = %(topic)s::text AND m.message_id = %(message_id)s::text
        AND m.status IN ('confirmed', 'voided', 'no_taker') AND m.attempt_token IS NULL
    RETURNING m.topic, m.message_id, m.ordering_key
), attempts AS (
    UPDATE send_attempt a SET error = NULL FROM erased e
    WHERE a.topic = e.topic AND a.message_id = e.message_id AND a.error IS NOT NULL RETURNING 1
)
SELECT e.ordering_key IS NOT NULL, (SELECT count(*) FROM attempts) FROM erased e;

-- name: erase_log: what handlers said of a message, where the work is done the fingerprint of its content, and what a parked key kept
-- Whoever gets the message again must still be told apart from another content while it is not done. A key of which nothing is
-- left counts as released: its queue's owner unparks it.
WITH erased AS (
    UPDATE consumer_log l SET
        last_error = NULL, payload_hash = CASE WHEN l.state = 'CONSUMED' THEN NULL ELSE l.payload_hash END
    WHERE l.consumer_group = ANY (%(groups)s::text[]) AND l.topic = %(topic)s::text AND l.message_id = %(message_id)s::text
        AND (l.last_error IS NOT NULL OR l.state = 'CONSUMED' AND l.payload_hash IS NOT NULL)
    RETURNING 1
), kept AS (
    DELETE FROM parked_message p
    WHERE p.consumer_group = ANY (%(groups)s::text[]) AND p.topic = %(topic)s::text AND p.message_id = %(message_id)s::text
    RETURNING p.consumer_group, p.topic, p.ordering_key, octet_length(p.content) + octet_length(p.headers) AS bytes
), counted AS (
    UPDATE parked_key k SET
        messages = k.messages - 1, bytes = k.bytes - p.bytes, last_error = NULL, updated_at = clock_timestamp(),
        state = CASE WHEN k.messages = 1 THEN 'RELEASING' ELSE k.state END
    FROM kept p
    WHERE k.consumer_group = p.consumer_group AND k.topic = p.topic AND k.ordering_key = p.ordering_key
)
SELECT (SELECT count(*) FROM erased) + (SELECT count(*) FROM kept);

-- name: standing: a message's status, and whether a send of it is under way
SELECT m.status, m.attempt_token IS NOT NULL FROM message_stub m
WHERE m.topic = %(topic)s::text AND m.message_id = %(message_id)s::text;
