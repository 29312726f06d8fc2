-- Named queries on the control database: looking at dead letters.
-- Every filter may be null: any. `states`, `ids`: arrays.

-- name: by_cause: how many of these letters died of what, the most frequent first
SELECT l.cause_id, l.category, c.shown AS template, count(*) AS letters, count(DISTINCT (l.topic, l.consumer_group)) AS places,
    min(coalesce(l.died_at, l.drained_at)) AS first_at, max(coalesce(l.died_at, l.drained_at)) AS last_at
FROM dead_letter l LEFT JOIN cause c USING (cause_id)
WHERE (%(topic)s::text IS NULL OR l.topic = %(topic)s) AND (%(group)s::text IS NULL OR l.consumer_group = %(group)s)
    AND (%(states)s::text[] IS NULL OR l.state = ANY (%(states)s::text[]))
    AND (%(category)s::text IS NULL OR l.category = %(category)s)
    AND (%(cause)s::bigint IS NULL OR l.cause_id = %(cause)s) AND (%(case)s::bigint IS NULL OR l.case_id = %(case)s)
    AND (%(since)s::timestamptz IS NULL OR coalesce(l.died_at, l.drained_at) >= %(since)s)
    AND (%(id)s::text IS NULL OR l.message_id = %(id)s)
GROUP BY l.cause_id, l.category, c.shown
ORDER BY letters DESC, l.cause_id, l.category
LIMIT %(limit)s;

-- name: list: letters without their contents, the newest first
SELECT l.dead_letter_id, l.broker, l.queue, l.topic, l.consumer_group, l.message_id, l.state, l.category, l.cause_id, l.decision,
    l.reason, l.case_id, l.deliveries, l.content_bytes, l.died_at, l.drained_at, l.invalid
FROM dead_letter l
WHERE (%(topic)s::text IS NULL OR l.topic = %(topic)s) AND (%(group)s::text IS NULL OR l.consumer_group = %(group)s)
    AND (%(states)s::text[] IS NULL OR l.state = ANY (%(states)s::text[]))
    AND (%(category)s::text IS NULL OR l.category = %(category)s)
    AND (%(cause)s::bigint IS NULL OR l.cause_id = %(cause)s) AND (%(case)s::bigint IS NULL OR l.case_id = %(case)s)
    AND (%(since)s::timestamptz IS NULL OR coalesce(l.died_at, l.drained_at) >= %(since)s)
    AND (%(id)s::text IS NULL OR l.message_id = %(id)s)
ORDER BY l.dead_letter_id DESC
LIMIT %(limit)s;

-- name: of_message: the letters of one message
SELECT dead_letter_id, consumer_group, state, category, decision, reason, decided_by, look_at, send_number, case_id, died_at,
    drained_at, deliveries
FROM dead_letter WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY dead_letter_id;

-- name: one: a letter with everything; its content is null when the policy has purged it
SELECT l.dead_letter_id, l.broker, l.queue, l.broker_id, l.consumer_group, l.topic, l.message_id, l.queue_id, l.queue_offset,
    l.queue_epoch, l.tag, l.partition_key, l.headers, CASE WHEN l.aside THEN a.content ELSE l.content END AS content,
    l.content_bytes, l.aside, l.properties, l.cause_text, l.error, l.deliveries, l.died_at, l.drained_at, l.invalid, l.cause_id,
    c.shown AS template, c.dead_letters AS letters_of_cause, l.category, l.classified_at, l.classified_by, l.state, l.decision, l.reason,
    l.decided_at, l.decided_by, l.look_at, l.shard, l.send_number, r.state AS request_state, l.proof, l.case_id,
    f.state AS case_state, f.summary AS case_summary, l.closed_at, l.batch_id, b.run_id
FROM dead_letter l
JOIN drain_batch b USING (batch_id)
LEFT JOIN dead_letter_aside a USING (dead_letter_id)
LEFT JOIN cause c USING (cause_id)
LEFT JOIN case_file f ON f.case_id = l.case_id
LEFT JOIN resend_request r ON r.topic = l.topic AND r.message_id = l.message_id AND r.send_number = l.send_number
WHERE l.dead_letter_id = %(dead_letter_id)s;

-- name: export: letters in the order in which they came; a content that is kept aside or above `inline` is read by itself
SELECT l.dead_letter_id, l.broker, l.queue, l.broker_id, l.consumer_group, l.topic, l.message_id, l.queue_id, l.queue_offset,
    l.queue_epoch, l.tag, l.partition_key, l.headers,
    CASE WHEN NOT l.aside AND l.content_bytes <= %(inline)s THEN l.content END AS content, l.aside, l.content_bytes, l.properties, l.cause_text, l.error, l.deliveries, l.died_at, l.drained_at, l.invalid, l.cause_id,
    l.category, l.state, l.decision, l.reason, l.decided_at, l.decided_by, l.send_number, l.proof, l.case_id, l.closed_at
FROM dead_letter l
WHERE (%(topic)s::text IS NULL OR l.topic = %(topic)s) AND (%(group)s::text IS NULL OR l.consumer_group = %(group)s)
    AND (%(states)s::text[] IS NULL OR l.state = ANY (%(states)s::text[]))
    AND (%(category)s::text IS NULL OR l.category = %(category)s)
    AND (%(cause)s::bigint IS NULL OR l.cause_id = %(cause)s) AND (%(case)s::bigint IS NULL OR l.case_id = %(case)s)
    AND (%(since)s::timestamptz IS NULL OR coalesce(l.died_at, l.drained_at) >= %(since)s)
    AND (%(id)s::text IS NULL OR l.message_id = %(id)s)
ORDER BY l.dead_letter_id
LIMIT %(limit)s;

-- name: content: one whole content; null when it was purged
SELECT CASE WHEN l.aside THEN a.content ELSE l.content END
FROM dead_letter l LEFT JOIN dead_letter_aside a USING (dead_letter_id)
WHERE l.dead_letter_id = %(dead_letter_id)s;
