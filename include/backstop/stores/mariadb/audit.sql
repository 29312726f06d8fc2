-- What the audit reads in a producer database in MariaDB: each query walks an index over what is open, or over one day.

-- name: numbers_beyond: stubs of a day with an attempt beyond the numbers handed out, or with more attempts than numbers
SELECT s.topic, s.message_id
FROM message_stub s
JOIN send_attempt a ON a.topic = s.topic AND a.message_id = s.message_id
WHERE s.created_at >= %(start)s AND s.created_at < %(end)s
GROUP BY s.topic, s.message_id, s.send_count
HAVING MAX(a.send_number) > s.send_count OR COUNT(*) > s.send_count
LIMIT %(limit)s;

-- name: never_ended: sends under way whose time is long over
SELECT s.topic, s.message_id FROM message_stub s
WHERE s.under_way_until < %(since)s
ORDER BY s.under_way_until
LIMIT %(limit)s;

-- name: never_looked_at: pending stubs that have been due for long and were not judged since, and those that are due so late that no run
-- will ever meet them
(SELECT s.topic, s.message_id FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at < %(since)s AND (s.judged_at IS NULL OR s.judged_at < %(since)s)
ORDER BY s.next_check_at
LIMIT %(limit)s)
UNION ALL
(SELECT s.topic, s.message_id FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at > %(beyond)s
ORDER BY s.next_check_at DESC
LIMIT %(limit)s)
LIMIT %(limit)s;

-- name: exhausted: a page of the exhausted stubs, by key
SELECT s.topic, s.message_id FROM message_stub s FORCE INDEX (message_stub_due)
WHERE s.status = 'exhausted'
    AND (s.topic > %(after_topic)s OR s.topic = %(after_topic)s AND s.message_id > %(after_id)s)
ORDER BY s.topic, s.message_id
LIMIT %(limit)s;

-- name: overdue: a page of one topic's pending stubs whose horizons began long ago, by key; walks what is open
SELECT s.topic, s.message_id FROM message_stub s FORCE INDEX (message_stub_due)
WHERE s.status = 'pending' AND s.topic = %(topic)s AND s.message_id > %(after_id)s
    AND GREATEST(s.created_at, COALESCE(s.deliver_at, s.created_at), COALESCE(s.attempted_at, s.created_at)) < %(since)s
ORDER BY s.message_id
LIMIT %(limit)s;

-- name: ended_between: a page of one topic's stubs that were confirmed, voided, or owed by no group, in a window
SELECT s.topic, s.message_id, CAST(s.updated_at AS CHAR) FROM message_stub s
WHERE s.topic = %(topic)s AND s.status = %(status)s AND s.updated_at >= %(start)s AND s.updated_at < %(end)s
    AND (s.updated_at > %(after_moved)s OR s.updated_at = %(after_moved)s AND s.message_id > %(after_id)s)
ORDER BY s.updated_at, s.message_id
LIMIT %(limit)s;

-- name: not_voided: of messages that were withdrawn, those whose stub goes on
SELECT s.topic, s.message_id FROM {of_keys} WHERE s.status <> 'voided';

-- name: not_erased: of messages that were erased on request, those of which something is here
SELECT s.topic, s.message_id FROM {of_keys}
WHERE s.content <> '' OR s.message_key IS NOT NULL OR EXISTS (
    SELECT 1 FROM send_attempt a WHERE a.topic = s.topic AND a.message_id = s.message_id AND a.error IS NOT NULL);
