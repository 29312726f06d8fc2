-- What the audit reads in a producer database: each query walks an index over what is open, or over one day.

-- name: numbers_beyond: stubs of a day with an attempt beyond the numbers handed out, or with more attempts than numbers
SELECT s.topic, s.message_id
FROM message_stub s
CROSS JOIN LATERAL (
    SELECT max(a.send_number) AS highest, count(*) AS attempts FROM send_attempt a
    WHERE a.topic = s.topic AND a.message_id = s.message_id OFFSET 0) a
WHERE s.created_at >= %(start)s::timestamptz AND s.created_at < %(end)s::timestamptz
    AND (a.highest > s.send_count OR a.attempts > s.send_count)
LIMIT %(limit)s;

-- name: never_ended: sends under way whose time is long over
SELECT s.topic, s.message_id FROM message_stub s
WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline < %(since)s::timestamptz
ORDER BY s.attempt_deadline
LIMIT %(limit)s;

-- name: never_looked_at: pending stubs that have been due for long and were not judged since, and those that are due so late that no run
-- will ever meet them; each by its end of the index
(SELECT s.topic, s.message_id FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at < %(since)s::timestamptz
    AND coalesce(s.judged_at, '-infinity') < %(since)s::timestamptz
ORDER BY s.next_check_at
LIMIT %(limit)s)
UNION ALL
(SELECT s.topic, s.message_id FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at > %(beyond)s::timestamptz
ORDER BY s.next_check_at DESC
LIMIT %(limit)s)
LIMIT %(limit)s;

-- name: exhausted: a page of the exhausted stubs, by key
SELECT s.topic, s.message_id FROM message_stub s
WHERE s.status = 'exhausted' AND (s.topic, s.message_id) > (%(after_topic)s::text, %(after_id)s::text)
ORDER BY s.topic, s.message_id
LIMIT %(limit)s;

-- name: overdue: a page of the pending stubs whose horizons began long ago, by key; walks what is open
SELECT o.topic, o.message_id
FROM (SELECT s.topic, s.message_id, s.created_at, s.deliver_at, s.attempted_at FROM message_stub s
    WHERE s.status = 'pending' OFFSET 0) o
JOIN unnest(%(topics)s::text[], %(instants)s::timestamptz[]) AS k (topic, since) ON k.topic = o.topic
WHERE greatest(o.created_at, o.deliver_at, o.attempted_at) < k.since
    AND (o.topic, o.message_id) > (%(after_topic)s::text, %(after_id)s::text)
ORDER BY o.topic, o.message_id
LIMIT %(limit)s;

-- name: ended_between: a page of one topic's stubs that were confirmed, voided, or owed by no group, in a window
SELECT s.topic, s.message_id, s.updated_at::text FROM message_stub s
WHERE s.topic = %(topic)s::text AND s.status IN ('confirmed', 'voided', 'no_taker') AND s.status = %(status)s::text
    AND s.updated_at >= %(start)s::timestamptz AND s.updated_at < %(end)s::timestamptz
    AND (s.updated_at, s.message_id) > (%(after_moved)s::timestamptz, %(after_id)s::text)
ORDER BY s.updated_at, s.message_id
LIMIT %(limit)s;

-- name: not_voided: of messages that were withdrawn, those whose stub goes on
SELECT s.topic, s.message_id
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM message_stub m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s
WHERE s.status <> 'voided';
-- name: not_erased: of messages that were erased on request, those of which something is here
SELECT s.topic, s.message_id
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM message_stub m WHERE m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) s
WHERE s.content <> '' OR s.message_key IS NOT NULL OR EXISTS (
    SELECT FROM send_attempt a WHERE a.topic = s.topic AND a.message_id = s.message_id AND a.error IS NOT NULL);
