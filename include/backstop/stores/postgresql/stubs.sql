-- Stubs and attempts in a producer database. Instants as parameters are timestamptz; keys are parallel arrays.
-- Rows are locked in key order everywhere, so that two workers with overlapping batches cannot deadlock. Keys are looked
-- up one by one through the primary key (LATERAL with OFFSET 0 or FOR UPDATE, which no plan can turn into a scan of
-- history): a table that was never analysed makes the planner guess wrong.

-- name: clock: the store's own time
SELECT clock_timestamp();

-- name: tables: which server, since when, which database, which table; no privilege is needed for it
SELECT concat_ws(' ', 'postgresql', extract(epoch FROM pg_postmaster_start_time()), d.oid, t.oid)
FROM pg_database d CROSS JOIN to_regclass('message_stub') AS t (oid)
WHERE d.datname = current_database() AND t.oid IS NOT NULL;

-- name: count_due: how many stubs are due, counted up to a limit; null topics or instants mean no bound
SELECT count(*) FROM (
    SELECT 1 FROM message_stub s
    WHERE s.status = 'pending' AND s.next_check_at <= %(as_of)s::timestamptz
        AND (%(topics)s::text[] IS NULL OR s.topic = ANY (%(topics)s::text[]))
        AND (%(created_from)s::timestamptz IS NULL OR s.created_at >= %(created_from)s::timestamptz)
        AND (%(created_to)s::timestamptz IS NULL OR s.created_at < %(created_to)s::timestamptz)
    LIMIT %(limit)s
) due;

-- name: bounds: how many stubs are due, and the instants (as text) that cut them into ranges of equal size, over the due index
SELECT count(*), (percentile_disc(%(fractions)s::float8[]) WITHIN GROUP (ORDER BY s.next_check_at))::text[]
FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at <= %(as_of)s::timestamptz
    AND (%(topics)s::text[] IS NULL OR s.topic = ANY (%(topics)s::text[]))
    AND (%(created_from)s::timestamptz IS NULL OR s.created_at >= %(created_from)s::timestamptz)
    AND (%(created_to)s::timestamptz IS NULL OR s.created_at < %(created_to)s::timestamptz);

-- name: stub_columns: begins a table for the rule: the columns of STUB_COLUMNS; instants by doubles where those are exact (ADR 41)
SELECT %(shard)s::text AS shard, s.topic, s.message_id, s.tag, s.status, s.send_count, s.refusals, s.max_sends,
    CASE WHEN s.next_check_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.next_check_at) * 1000000)::bigint
        WHEN s.next_check_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.next_check_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS next_check_at,
    CASE WHEN s.created_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.created_at) * 1000000)::bigint
        WHEN s.created_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.created_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS created_at,
    CASE WHEN s.first_seen_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.first_seen_at) * 1000000)::bigint
        WHEN s.first_seen_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.first_seen_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS first_seen_at,
    CASE WHEN s.judged_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.judged_at) * 1000000)::bigint
        WHEN s.judged_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.judged_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS judged_at,
    CASE WHEN s.deliver_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.deliver_at) * 1000000)::bigint
        WHEN s.deliver_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.deliver_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS deliver_at,
    CASE WHEN s.attempted_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.attempted_at) * 1000000)::bigint
        WHEN s.attempted_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.attempted_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS attempted_at,
    CASE WHEN s.sent_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.sent_at) * 1000000)::bigint
        WHEN s.sent_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.sent_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS sent_at,
    CASE WHEN s.attempt_deadline BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', s.attempt_deadline) * 1000000)::bigint
        WHEN s.attempt_deadline IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(s.attempt_deadline, timestamptz '9000-01-01Z'))) * 1000000)::bigint END
        AS attempt_deadline,
    s.attempt_token IS NULL AS settled, s.broker, s.queue_id, s.queue_offset, s.queue_epoch,
    CASE WHEN s.send_count <= 1 THEN s.broker ELSE s.first_broker END AS first_broker,
    CASE WHEN s.send_count <= 1 THEN s.queue_id ELSE s.first_queue_id END AS first_queue_id,
    CASE WHEN s.send_count <= 1 THEN s.queue_offset ELSE s.first_queue_offset END AS first_queue_offset,
    CASE WHEN s.send_count <= 1 THEN s.queue_epoch ELSE s.first_queue_epoch END AS first_queue_epoch,
    s.first_groups IS NULL AS first_to_all, NULL::bigint AS created_latest;

-- name: of_due: ... of the stubs that are due, then cut_at, by which the scan is cut
, s.next_check_at AS cut_at
FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at <= %(as_of)s::timestamptz
    AND (%(topics)s::text[] IS NULL OR s.topic = ANY (%(topics)s::text[]))
    AND (%(created_from)s::timestamptz IS NULL OR s.created_at >= %(created_from)s::timestamptz)
    AND (%(created_to)s::timestamptz IS NULL OR s.created_at < %(created_to)s::timestamptz);

-- name: of_window: ... of one topic's stubs created in a window, whatever became of them
, s.created_at AS cut_at
FROM message_stub s
WHERE s.topic = %(topic)s::text AND s.created_at >= %(created_from)s::timestamptz AND s.created_at < %(created_to)s::timestamptz;

-- name: window_estimate: for an estimate, one topic's stubs created in a window
SELECT 1 FROM message_stub s
WHERE s.topic = %(topic)s::text AND s.created_at >= %(created_from)s::timestamptz AND s.created_at < %(created_to)s::timestamptz;

-- name: window_bounds: that it is not known how many stubs it holds, and the instants (as text) that cut it into ranges of equal length
SELECT NULL::bigint, pg_catalog.array_agg((%(created_from)s::timestamptz + (%(created_to)s::timestamptz - %(created_from)s::timestamptz) * f)::text
        ORDER BY f)
FROM pg_catalog.unnest(%(fractions)s::float8[]) AS f;

-- name: of_keys: ... of the stubs asked for
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM message_stub m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s;

-- name: attempt_columns: begins a table for the rule: the columns of ATTEMPT_COLUMNS, one row an addressed group
-- A producer's own number 1 names its broker in the stub: a client must settle on a database that was not migrated yet.
SELECT a.topic, a.message_id, a.send_number, g.consumer_group, a.outcome,
    coalesce(a.broker, CASE WHEN a.send_number > 1 THEN NULL WHEN s.send_count > 1 THEN s.first_broker ELSE s.broker END) AS broker,
    a.queue_id, a.queue_offset, a.queue_epoch,
    CASE WHEN a.started_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', a.started_at) * 1000000)::bigint
        WHEN a.started_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(a.started_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS started_at,
    CASE WHEN a.finished_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
        THEN (date_part('epoch', a.finished_at) * 1000000)::bigint
        WHEN a.finished_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
            least(a.finished_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS finished_at;

-- name: attempts_of_due: ... of due stubs that were sent more than once, or first to some groups alone
, s.next_check_at AS cut_at
FROM message_stub s
JOIN send_attempt a ON a.topic = s.topic AND a.message_id = s.message_id
LEFT JOIN LATERAL pg_catalog.unnest(a.groups) AS g (consumer_group) ON true
WHERE s.status = 'pending' AND s.next_check_at <= %(as_of)s::timestamptz
    AND (s.send_count > 1 OR s.first_groups IS NOT NULL)
    AND (%(topics)s::text[] IS NULL OR s.topic = ANY (%(topics)s::text[]))
    AND (%(created_from)s::timestamptz IS NULL OR s.created_at >= %(created_from)s::timestamptz)
    AND (%(created_to)s::timestamptz IS NULL OR s.created_at < %(created_to)s::timestamptz);

-- name: attempts_of_window: ... of one topic's stubs created in a window that were sent more than once, or first to some groups alone
, s.created_at AS cut_at
FROM message_stub s
JOIN send_attempt a ON a.topic = s.topic AND a.message_id = s.message_id
LEFT JOIN LATERAL pg_catalog.unnest(a.groups) AS g (consumer_group) ON true
WHERE s.topic = %(topic)s::text AND s.created_at >= %(created_from)s::timestamptz
    AND s.created_at < %(created_to)s::timestamptz AND (s.send_count > 1 OR s.first_groups IS NOT NULL);

-- name: attempts_of_keys: ... of the stubs asked for that were sent more than once, or first to some groups alone
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT m.next_check_at, m.send_count, m.first_groups, m.first_broker, m.broker FROM message_stub m
    WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s
CROSS JOIN LATERAL (
    SELECT * FROM send_attempt m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) a
LEFT JOIN LATERAL pg_catalog.unnest(a.groups) AS g (consumer_group) ON true
WHERE s.send_count > 1 OR s.first_groups IS NOT NULL;

-- name: range: the predicate of one part of a scan; -infinity and infinity are open ends
cut_at >= %(start)s::timestamptz AND cut_at < %(end)s::timestamptz;

-- name: share: ... of one share of such a range
(hashtext(message_id)::bigint & 2147483647) %% %(shares)s::bigint = %(share)s::bigint;

-- name: stubs: by key, without their payload
SELECT s.topic, s.message_id, s.status, s.send_count, s.refusals, s.max_sends, s.next_check_at, s.created_at, s.tag,
    s.ordering_key, s.broker, s.queue_id, s.queue_offset, s.queue_epoch, s.deliver_at, s.first_seen_at, s.attempted_at,
    s.sent_at, s.attempt_token::text, s.attempt_deadline, s.judged_at,
    CASE WHEN s.send_count <= 1 THEN s.queue_id ELSE s.first_queue_id END,
    CASE WHEN s.send_count <= 1 THEN s.queue_offset ELSE s.first_queue_offset END,
    CASE WHEN s.send_count <= 1 THEN s.queue_epoch ELSE s.first_queue_epoch END,
    s.first_groups, CASE WHEN s.send_count <= 1 THEN s.broker ELSE s.first_broker END
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM message_stub m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s;

-- name: attempts: by key, every number that has ended, ascending
SELECT a.topic, a.message_id, a.send_number, a.groups, a.requested_by, a.started_at, a.finished_at, a.outcome,
    a.queue_id, a.queue_offset, a.queue_epoch, a.error
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM send_attempt m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) a
ORDER BY a.topic, a.message_id, a.send_number;

-- name: oldest_due: since when the oldest due stub is due; no row: none is
SELECT s.next_check_at FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at <= clock_timestamp() AND isfinite(s.next_check_at)
ORDER BY s.next_check_at
LIMIT 1;

-- name: recorded_between: by topic, what was recorded in a window and how much of it has an offset
SELECT s.topic, count(*),
    count(*) FILTER (WHERE s.deliver_at IS NULL AND s.send_count > s.refusals),
    count(*) FILTER (WHERE s.deliver_at IS NULL AND s.send_count > s.refusals AND s.queue_offset IS NOT NULL),
    count(*) FILTER (WHERE s.deliver_at IS NOT NULL)
FROM message_stub s
WHERE s.created_at >= %(start)s::timestamptz AND s.created_at < %(end)s::timestamptz
GROUP BY s.topic;

-- name: lives: by topic, at which broker, in which life of which queue the copies of pending stubs were stored, as recorded
SELECT s.topic, s.broker, s.queue_id, s.queue_epoch
FROM message_stub s
WHERE s.status = 'pending' AND s.topic = ANY (%(topics)s::text[]) AND s.send_count > 0
    AND (s.queue_epoch IS NOT NULL OR s.broker IS NOT NULL)
UNION
SELECT s.topic, a.broker, a.queue_id, a.queue_epoch
FROM message_stub s
CROSS JOIN LATERAL (
    SELECT * FROM send_attempt m WHERE m.topic = s.topic AND m.message_id = s.message_id OFFSET 0) a
WHERE s.status = 'pending' AND s.topic = ANY (%(topics)s::text[]) AND s.send_count > 1
    AND (a.queue_epoch IS NOT NULL OR a.broker IS NOT NULL);

-- name: neighbours: by key, the first open message before and the first later one that may have been sent, of one ordering key
-- The first lines ask whether a topic has ordering keys at all (sorted, so that the index answers even without statistics).
SELECT s.topic, s.message_id, s.ordering_key, b.message_id, a.message_id
FROM (
    SELECT t.topic
    FROM (SELECT DISTINCT u.topic FROM pg_catalog.unnest(%(topics)s::text[]) AS u (topic)) t
    CROSS JOIN LATERAL (
        SELECT 1 FROM message_stub m WHERE m.topic = t.topic AND m.ordering_key IS NOT NULL
        ORDER BY m.topic, m.ordering_key, coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id LIMIT 1) o
    OFFSET 0) ordered
JOIN unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id) ON k.topic = ordered.topic
CROSS JOIN LATERAL (
    SELECT m.topic, m.message_id, m.ordering_key, coalesce(m.sequence, 9223372036854775807) AS place, m.created_at
    FROM message_stub m
    WHERE m.topic = k.topic AND m.message_id = k.message_id AND m.ordering_key IS NOT NULL OFFSET 0) s
LEFT JOIN LATERAL (
    SELECT m.message_id FROM message_stub m
    WHERE m.topic = s.topic AND m.ordering_key = s.ordering_key AND m.status IN ('pending', 'exhausted')
        AND (coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id) < (s.place, s.created_at, s.message_id)
    ORDER BY coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id
    LIMIT 1) b ON true
LEFT JOIN LATERAL (
    SELECT m.message_id FROM message_stub m
    WHERE m.topic = s.topic AND m.ordering_key = s.ordering_key AND m.send_count > m.refusals
        AND (coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id) > (s.place, s.created_at, s.message_id)
    ORDER BY coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id
    LIMIT 1) a ON true;

-- name: open_in_line: the open messages of one ordering key, in sequence, after one of them (null: from the first)
SELECT m.message_id FROM message_stub m
WHERE m.topic = %(topic)s::text AND m.ordering_key = %(ordering_key)s::text AND m.status IN ('pending', 'exhausted')
    AND (%(after)s::text IS NULL OR (coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id) > (
        SELECT coalesce(a.sequence, 9223372036854775807), a.created_at, a.message_id FROM message_stub a
        WHERE a.topic = %(topic)s::text AND a.message_id = %(after)s::text))
ORDER BY coalesce(m.sequence, 9223372036854775807), m.created_at, m.message_id
LIMIT %(limit)s;

-- name: named: messages of these topics that a text names by their id, their own key or their ordering key, the newest first; by index
SELECT t.topic, f.message_id, f.named_by
FROM pg_catalog.unnest(%(topics)s::text[]) AS t (topic)
CROSS JOIN LATERAL (
    (SELECT m.message_id, 'id' AS named_by, m.created_at FROM message_stub m
    WHERE m.topic = t.topic AND m.message_id = %(text)s::text)
    UNION ALL
    (SELECT m.message_id, 'message key', m.created_at FROM message_stub m
    WHERE m.topic = t.topic AND m.message_key = %(text)s::text
    ORDER BY m.created_at DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT m.message_id, 'ordering key', m.created_at FROM message_stub m
    WHERE m.topic = t.topic AND m.ordering_key = %(text)s::text
    ORDER BY coalesce(m.sequence, 9223372036854775807) DESC, m.created_at DESC, m.message_id DESC LIMIT %(limit)s)
) f
ORDER BY f.named_by <> 'id', f.created_at DESC, t.topic, f.message_id
LIMIT %(limit)s;

-- name: sent_as: messages of these topics whose newest copy has this id at the broker, of those created since an instant
SELECT m.topic, m.message_id, 'broker id'
FROM message_stub m
WHERE m.created_at >= %(created_from)s AND m.topic = ANY (%(topics)s::text[]) AND m.broker_message_id = %(text)s::text
ORDER BY m.created_at DESC, m.topic, m.message_id
LIMIT %(limit)s;

-- name: contents_beside: contents of messages of the same topic and tag whose ids come just before or after this one's, confirmed ones first
SELECT b.content FROM (
    (SELECT m.content, m.status, m.tag FROM message_stub m
    WHERE m.topic = %(topic)s::text AND m.message_id < %(message_id)s::text ORDER BY m.message_id DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT m.content, m.status, m.tag FROM message_stub m
    WHERE m.topic = %(topic)s::text AND m.message_id > %(message_id)s::text ORDER BY m.message_id LIMIT %(limit)s)
) b
WHERE octet_length(b.content) BETWEEN 1 AND %(most_bytes)s
    AND b.tag IS NOT DISTINCT FROM (SELECT m.tag FROM message_stub m WHERE m.topic = %(topic)s::text AND m.message_id = %(message_id)s::text)
ORDER BY b.status <> 'confirmed'
LIMIT %(limit)s;

-- name: contents: by key, what to publish
SELECT s.topic, s.message_id, s.content, s.headers::text, s.tag, s.ordering_key, s.content_version
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM message_stub m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s;

-- name: sizes: by key, how many bytes `contents` would read, where they are many; the length of a content is known without reading it
SELECT s.topic, s.message_id, s.size
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT m.topic, m.message_id, octet_length(m.content) + octet_length(m.headers::text) AS size
    FROM message_stub m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s
WHERE s.size > %(above)s;

-- name: by_key: for the transaction: an update that joins a list finds each row by its key, in the order of the list
-- Row by row, as the list is sorted: two batches that overlap lock their rows in one order, and no plan reads all of history,
-- which a table that was never analysed makes the planner prefer.
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_material = off; SET LOCAL enable_seqscan = off;

-- name: claim: hands out one send number for each key, only where it is the next one and nothing forbids it; gives what to publish
-- `status` is compared so that only the key finds the row, as in settle. The instant is that before the first lock: a deadline can only be early, and the worker's own
-- clock began before it. The position becomes that of the number now under way: not known yet. What many claims have in common (`term`) is given once.
WITH instant AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), asked AS MATERIALIZED (
    SELECT a.topic, a.message_id, a.send_number, a.next_check_seconds, a.requested_by, t.*
    FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(send_numbers)s::integer[], %(next_check_seconds)s::float8[],
            %(requested_by)s::text[], %(places)s::integer[])
        AS a (topic, message_id, send_number, next_check_seconds, requested_by, place)
    JOIN jsonb_to_recordset(%(terms)s::jsonb)
        AS t (place integer, token uuid, groups jsonb, attempt_seconds float8, max_sends integer, max_refusals integer,
            only_when_due boolean, broker text) ON t.place = a.place
    ORDER BY a.topic, a.message_id
)
UPDATE message_stub s SET
    send_count = a.send_number,
    attempt_token = a.token,
    attempt_deadline = i.now + a.attempt_seconds * interval '1 second',
    attempted_at = i.now,
    attempt_groups = CASE WHEN a.groups IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(a.groups)) END,
    attempt_requested_by = a.requested_by,
    next_check_at = i.now + a.next_check_seconds * interval '1 second',
    -- The place of number 1 says who owes the message: it stays where no later number touches it.
    first_broker = CASE WHEN s.send_count = 1 THEN s.broker ELSE s.first_broker END,
    first_queue_id = CASE WHEN s.send_count = 1 THEN s.queue_id ELSE s.first_queue_id END,
    first_queue_offset = CASE WHEN s.send_count = 1 THEN s.queue_offset ELSE s.first_queue_offset END,
    first_queue_epoch = CASE WHEN s.send_count = 1 THEN s.queue_epoch ELSE s.first_queue_epoch END,
    first_groups = CASE WHEN s.send_count > 0 THEN s.first_groups
        WHEN a.groups IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(a.groups)) END,
    sent_at = NULL,
    broker = coalesce(a.broker, s.broker),
    queue_id = NULL,
    queue_offset = NULL,
    queue_epoch = NULL,
    broker_message_id = NULL,
    updated_at = i.now
FROM instant i
CROSS JOIN asked a
WHERE s.topic = a.topic AND s.message_id = a.message_id
    AND s.send_count = a.send_number - 1 AND s.status IS NOT DISTINCT FROM 'pending'
    AND s.attempt_token IS NULL AND s.erased_hash IS NULL
    AND s.send_count - s.refusals < coalesce(s.max_sends, a.max_sends) AND s.refusals < a.max_refusals
    AND (NOT a.only_when_due OR s.next_check_at <= i.now)
RETURNING s.topic, s.message_id, s.content, s.headers::text, s.tag, s.ordering_key, s.content_version;

-- name: held: of some messages those whose row another transaction holds; the others are locked until this one ends
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
    ORDER BY topic, message_id
), free AS MATERIALIZED (
    SELECT s.topic, s.message_id FROM wanted k
    JOIN message_stub s ON s.topic = k.topic AND s.message_id = k.message_id
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
SELECT s.topic, s.message_id FROM wanted k
JOIN message_stub s ON s.topic = k.topic AND s.message_id = k.message_id
EXCEPT SELECT topic, message_id FROM free;

-- name: erased: by key, those whose content was erased on request
SELECT s.topic, s.message_id
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT m.topic, m.message_id, m.erased_hash FROM message_stub m
    WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s
WHERE s.erased_hash IS NOT NULL;

-- name: settle: how each attempt ended, only where its token is still the stub's; the stub and its attempt together
-- The token is compared so that only the key finds the row: by `=` the planner takes the small index of attempts under way
-- and reads all of it for each key, the square of the batch. A given token is never null, and a null one matches nothing.
-- `before` is the stub as this statement began, for what the update empties: while the token is ours nobody changes it.
WITH given AS MATERIALIZED (
    SELECT g.topic, g.message_id, g.send_number, g.queue_id, g.queue_offset, g.broker_message_id, t.*
    FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(send_numbers)s::integer[], %(queue_ids)s::integer[],
            %(queue_offsets)s::bigint[], %(broker_message_ids)s::text[], %(places)s::integer[])
        AS g (topic, message_id, send_number, queue_id, queue_offset, broker_message_id, place)
    JOIN jsonb_to_recordset(%(terms)s::jsonb)
        AS t (place integer, token uuid, outcome text, broker text, queue_epoch text, error text, max_send_seconds float8)
        ON t.place = g.place
    ORDER BY g.topic, g.message_id
), settled AS (
    UPDATE message_stub s SET
        attempt_token = NULL,
        attempt_groups = NULL,
        attempt_requested_by = NULL,
        refusals = s.refusals + (g.outcome = 'refused')::integer,
        sent_at = CASE WHEN g.outcome = 'sent' THEN clock_timestamp() END,
        -- A send that began late may be stored until now: the rule adds max_send_duration to attempted_at.
        attempted_at = greatest(s.attempted_at, clock_timestamp() - g.max_send_seconds * interval '1 second'),
        broker = coalesce(g.broker, s.broker),
        queue_id = g.queue_id,
        queue_offset = g.queue_offset,
        queue_epoch = g.queue_epoch,
        broker_message_id = g.broker_message_id,
        updated_at = clock_timestamp()
    FROM given g
    CROSS JOIN LATERAL (
        SELECT m.attempt_groups, m.attempt_requested_by FROM message_stub m
        WHERE m.topic = g.topic AND m.message_id = g.message_id AND m.attempt_token IS NOT DISTINCT FROM g.token OFFSET 0) before
    WHERE s.topic = g.topic AND s.message_id = g.message_id
        AND g.token IS NOT NULL AND s.attempt_token IS NOT DISTINCT FROM g.token AND s.send_count = g.send_number
    RETURNING s.topic, s.message_id, s.send_count, s.attempted_at, before.attempt_groups, before.attempt_requested_by, s.broker,
        g.outcome, g.queue_id, g.queue_offset, g.queue_epoch, g.broker_message_id, g.error
), written AS (
    -- A number that has a row already has ended: the first account of it stays.
    INSERT INTO send_attempt
        (topic, message_id, send_number, groups, requested_by, started_at, outcome, broker, queue_id, queue_offset,
         queue_epoch, broker_message_id, error)
    SELECT topic, message_id, send_count, attempt_groups, coalesce(attempt_requested_by, 'not recorded'),
        attempted_at, outcome, broker, queue_id, queue_offset, queue_epoch, broker_message_id, error
    FROM settled
    ON CONFLICT (topic, message_id, send_number) DO NOTHING
)
SELECT topic, message_id FROM settled;

-- name: late: begins a recovery: attempts past their deadline, the oldest first; locked rows are skipped
WITH late AS MATERIALIZED (
    SELECT s.topic, s.message_id, s.attempt_token, s.attempt_groups, s.attempt_requested_by
    FROM message_stub s
    WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline <= statement_timestamp()
    ORDER BY s.attempt_deadline
    LIMIT %(limit)s
    FOR UPDATE OF s SKIP LOCKED
);

-- name: any_late: whether any message has such an attempt; ordered, so that the index answers also where a table was never analysed
SELECT 1 FROM message_stub s
WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline <= statement_timestamp()
ORDER BY s.attempt_deadline
LIMIT 1;

-- name: late_of_keys: ... those of the messages that the same transaction goes on to change; in key order, as everybody locks
WITH late AS MATERIALIZED (
    SELECT s.topic, s.message_id, s.attempt_token, s.attempt_groups, s.attempt_requested_by
    FROM message_stub s
    WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline <= statement_timestamp()
        AND (s.topic, s.message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[]))
    ORDER BY s.topic, s.message_id
    FOR NO KEY UPDATE OF s
);

-- name: late_behind: the messages of attempts past their deadline, in key order, behind one of them
SELECT s.topic, s.message_id FROM message_stub s
WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline <= statement_timestamp()
    AND (s.topic, s.message_id) > (%(after_topic)s::text, %(after_id)s::text) AND {only_readable}
ORDER BY s.topic, s.message_id
LIMIT %(limit)s;

-- name: recover: ... lose their token and are recorded as unknown
, recovered AS (
    UPDATE message_stub s SET
        attempt_token = NULL,
        attempt_groups = NULL,
        attempt_requested_by = NULL,
        -- Whoever died may have begun to send as late as this, and the rule adds max_send_duration to it.
        attempted_at = greatest(s.attempted_at, greatest(s.attempt_deadline, timestamptz '0001-01-01 00:00:00+00')
            - %(max_send_seconds)s::float8 * interval '1 second'),
        updated_at = clock_timestamp()
    FROM late l
    WHERE s.topic = l.topic AND s.message_id = l.message_id AND s.attempt_token = l.attempt_token
    RETURNING s.topic, s.message_id, s.send_count, s.attempted_at, l.attempt_groups, l.attempt_requested_by, s.broker
), written AS (
    INSERT INTO send_attempt (topic, message_id, send_number, groups, requested_by, started_at, outcome, broker, error)
    SELECT topic, message_id, send_count, attempt_groups, coalesce(attempt_requested_by, 'not recorded'),
        attempted_at, 'unknown', broker, 'its deadline passed before its outcome was recorded'
    FROM recovered
    ON CONFLICT (topic, message_id, send_number) DO NOTHING
);

-- name: recovered: ... and which these are
SELECT topic, message_id FROM recovered ORDER BY topic, message_id;

-- name: promote: what a run decided, only where status and send count are as judged; final states stay
-- One statement, whose conditions are tested again on the newest version of a row that somebody changes meanwhile. Each row is
-- found by its key, in the order of keys, as everybody locks (by_key). Neighbours with the same outcome are one row with a list of
-- ids, so that the server reads one value per stub instead of six; and a list of looks, unless none of them has one.
UPDATE message_stub s SET
    status = d.new_status,
    next_check_at = greatest(s.next_check_at, d.next_look),
    first_seen_at = least(s.first_seen_at, %(as_of)s::timestamptz),
    judged_at = greatest(%(as_of)s::timestamptz, CASE
        WHEN s.judged_at <= greatest(clock_timestamp(), %(as_of)s::timestamptz) + interval '1 day' THEN s.judged_at END),
    updated_at = clock_timestamp()
FROM (
    SELECT r.topic, i.message_id, r.old_status, r.new_status, r.send_count, i.next_look
    FROM unnest(%(topics)s::text[], %(old_statuses)s::text[], %(new_statuses)s::text[], %(send_counts)s::integer[],
            %(message_ids)s::text[], %(next_looks)s::text[])
        AS r (topic, old_status, new_status, send_count, message_ids, next_looks)
    CROSS JOIN LATERAL unnest(r.message_ids::text[], r.next_looks::timestamptz[]) AS i (message_id, next_look)
    ORDER BY r.topic, i.message_id) d
WHERE s.topic = d.topic AND s.message_id = d.message_id AND s.status = d.old_status AND s.send_count = d.send_count
    AND s.status NOT IN ('confirmed', 'voided')
    AND (d.new_status = 'pending' OR s.attempt_token IS NULL)
    -- A person who allowed more sends since the run looked changed neither status nor count: not exhausted after all.
    AND (d.new_status <> 'exhausted' OR s.status = 'exhausted' OR s.updated_at <= %(own_as_of)s::timestamptz)
    -- A later run has judged it since, and knows better of everything but a log that proves the work done. A judgement
    -- that lies a day ahead is none.
    AND (d.new_status = 'confirmed' OR s.judged_at IS NULL OR s.judged_at <= %(as_of)s::timestamptz
        OR s.judged_at > greatest(clock_timestamp(), %(as_of)s::timestamptz) + interval '1 day');

-- name: void: withdraws one message, unless an attempt is under way or its state is final
UPDATE message_stub SET status = 'voided', updated_at = clock_timestamp()
WHERE topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND status IN ('pending', 'exhausted') AND attempt_token IS NULL
RETURNING topic;

-- name: raise_max_sends: a person allows more sends: pending again and due now; a larger allowance stays
UPDATE message_stub SET
    max_sends = greatest(max_sends, %(max_sends)s::integer),
    status = 'pending',
    next_check_at = least(next_check_at, clock_timestamp()),
    updated_at = clock_timestamp()
WHERE topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND status IN ('pending', 'exhausted') AND send_count - refusals < %(max_sends)s::integer
    AND erased_hash IS NULL
RETURNING topic;

-- name: replace_content: a person's edit, only where the version is as seen, the message is not final, not erased, and nothing is under way
UPDATE message_stub SET content = %(content)s, content_version = content_version + 1, updated_at = clock_timestamp()
WHERE topic = %(topic)s::text AND message_id = %(message_id)s::text AND content_version = %(version)s::integer
    AND status IN ('pending', 'exhausted') AND attempt_token IS NULL AND erased_hash IS NULL
RETURNING topic;

-- name: raise_numbers: after a restore, numbers that were handed out before it are not handed out again; one statement
WITH handed AS (
    SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(send_numbers)s::integer[], %(groups)s::jsonb[],
            %(requested_by)s::text[], %(ats)s::timestamptz[], %(outcomes)s::text[])
        AS h (topic, message_id, send_number, groups, requested_by, at, outcome)
), held AS MATERIALIZED (
    SELECT s.topic, s.message_id, s.send_count
    FROM (SELECT topic, message_id, max(send_number) AS most FROM handed GROUP BY 1, 2 ORDER BY 1, 2) h
    CROSS JOIN LATERAL (
        SELECT m.topic, m.message_id, m.send_count FROM message_stub m
        WHERE m.topic = h.topic AND m.message_id = h.message_id AND m.send_count < h.most AND m.attempt_token IS NULL
        FOR UPDATE) s
), recorded AS (
    INSERT INTO send_attempt (topic, message_id, send_number, groups, requested_by, started_at, outcome, error)
    SELECT h.topic, h.message_id, h.send_number,
        CASE WHEN jsonb_typeof(h.groups) = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(h.groups)) END,
        h.requested_by, h.at, h.outcome, 'handed out before the database was restored; where it went is not known any more'
    FROM handed h JOIN held l USING (topic, message_id)
    WHERE h.send_number > l.send_count
    ON CONFLICT (topic, message_id, send_number) DO NOTHING
)
UPDATE message_stub s SET
    send_count = n.most, attempted_at = greatest(s.attempted_at, n.last_at), sent_at = NULL,
    refusals = s.refusals + (
        SELECT count(*) FROM handed r
        WHERE r.topic = l.topic AND r.message_id = l.message_id AND r.send_number > l.send_count AND r.outcome = 'refused'),
    first_broker = CASE WHEN l.send_count = 1 THEN s.broker ELSE s.first_broker END,
    first_queue_id = CASE WHEN l.send_count = 1 THEN s.queue_id ELSE s.first_queue_id END,
    first_queue_offset = CASE WHEN l.send_count = 1 THEN s.queue_offset ELSE s.first_queue_offset END,
    first_queue_epoch = CASE WHEN l.send_count = 1 THEN s.queue_epoch ELSE s.first_queue_epoch END,
    first_groups = CASE WHEN l.send_count > 0 THEN s.first_groups ELSE (
        SELECT ARRAY(SELECT jsonb_array_elements_text(f.groups)) FROM handed f
        WHERE f.topic = l.topic AND f.message_id = l.message_id AND f.send_number = 1 AND jsonb_typeof(f.groups) = 'array') END,
    queue_id = NULL, queue_offset = NULL, queue_epoch = NULL, broker_message_id = NULL, updated_at = clock_timestamp()
FROM held l
JOIN (SELECT topic, message_id, max(send_number) AS most, max(at) AS last_at FROM handed GROUP BY 1, 2) n
    USING (topic, message_id)
WHERE s.topic = l.topic AND s.message_id = l.message_id
RETURNING s.topic, s.message_id;

-- name: closed_since: after a restore of a consumer's database, of a page of some topics' stubs by key those closed since, and the last one
-- A page is found by walking the key once. A promotion writes updated_at after the run has read the logs: what was closed
-- before the backup was read in logs that the backup has.
WITH page AS MATERIALIZED (
    SELECT m.topic, m.message_id,
        m.status IN ('confirmed', 'exhausted') AND m.updated_at >= %(since)s::timestamptz AS again
    FROM message_stub m
    WHERE (m.topic, m.message_id) > (%(topic)s::text, %(message_id)s::text) AND m.topic = ANY (%(topics)s::text[])
        AND {only_readable}
    ORDER BY m.topic, m.message_id
    LIMIT %(limit)s
)
SELECT p.topic, p.message_id, p.again FROM page p
WHERE p.again OR (p.topic, p.message_id) = (SELECT l.topic, l.message_id FROM page l ORDER BY l.topic DESC, l.message_id DESC LIMIT 1)
ORDER BY p.topic, p.message_id;

-- name: reopen: those of these stubs that a run closed are pending and due; in key order, as everybody locks
UPDATE message_stub s SET status = 'pending', next_check_at = clock_timestamp(), updated_at = clock_timestamp()
FROM (SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS u (topic, message_id) ORDER BY 1, 2) k
WHERE s.topic = k.topic AND s.message_id = k.message_id AND s.status IN ('confirmed', 'exhausted');

-- name: still_closed: how many of these stubs a trigger, for example, has kept closed
SELECT count(*) FROM message_stub s
JOIN (SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS u (topic, message_id)) k
    ON s.topic = k.topic AND s.message_id = k.message_id
WHERE s.status IN ('confirmed', 'exhausted');
