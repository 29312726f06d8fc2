-- What stands in a consumer database about ordered consumption: parked keys, stopped queues, downstreams that are away.

-- name: parked_keys: keys that wait for a person or are being released, the longest waiting first, with the head, the last number and whether nobody releases it
SELECT k.consumer_group, k.topic, k.ordering_key, k.queue_id, k.state, k.messages, k.bytes, k.times_parked, k.last_error, k.parked_at,
    k.answered_by, k.answer, h.message_id, l.number,
    k.state = 'RELEASING' AND k.updated_at <= clock_timestamp() - %(stands)s AND NOT EXISTS (SELECT FROM queue_owner q
        WHERE (q.consumer_group, q.topic, q.queue_id) = (k.consumer_group, k.topic, k.queue_id)
            AND q.state <> 'FREE' AND q.expires_at > clock_timestamp())
FROM parked_key k
LEFT JOIN LATERAL (
    SELECT m.message_id FROM parked_message m
    WHERE m.consumer_group = k.consumer_group AND m.topic = k.topic AND m.ordering_key = k.ordering_key
    ORDER BY m.number LIMIT 1) h ON true
LEFT JOIN LATERAL (
    SELECT m.number FROM parked_message m
    WHERE m.consumer_group = k.consumer_group AND m.topic = k.topic AND m.ordering_key = k.ordering_key
    ORDER BY m.number DESC LIMIT 1) l ON true
WHERE k.consumer_group = ANY (%(groups)s) AND (%(topic)s::text IS NULL OR (k.topic, k.ordering_key) = (%(topic)s, %(key)s))
ORDER BY k.parked_at, k.consumer_group, k.topic, k.ordering_key
LIMIT %(limit)s;

-- name: parked_messages: the messages of one key in the order of their release, without their contents
SELECT m.message_id, octet_length(m.content), m.content_version, m.queue_id, m.queue_offset, m.parked_at
FROM parked_message m
WHERE m.consumer_group = %(group)s AND m.topic = %(topic)s AND m.ordering_key = %(key)s
ORDER BY m.number LIMIT %(limit)s;

-- name: head_content: the content of a key's head
SELECT m.message_id, m.content FROM parked_message m
WHERE m.consumer_group = %(group)s AND m.topic = %(topic)s AND m.ordering_key = %(key)s
ORDER BY m.number LIMIT 1;

-- name: kept: those of these messages of a group whose content a parked key keeps
SELECT m.topic, m.message_id FROM parked_message m
JOIN unnest(%(topics)s::text[], %(message_ids)s::text[]) AS asked (topic, message_id) USING (topic, message_id)
WHERE m.consumer_group = %(group)s;

-- name: full_queues: queues that a limit of parking stopped
SELECT f.consumer_group, f.topic, f.queue_id, f.ordering_key, f.reached, f.since
FROM parking_full f WHERE f.consumer_group = ANY (%(groups)s)
ORDER BY f.consumer_group, f.topic, f.queue_id;

-- name: away: consumers that wait because what their handlers need is away; one that has not said so lately may have died
SELECT d.consumer_group, d.topic, d.member, d.error, d.since FROM downstream_away d
WHERE d.consumer_group = ANY (%(groups)s) AND d.seen_at > clock_timestamp() - %(lately)s
ORDER BY d.consumer_group, d.topic, d.since, d.member;

-- name: books: what each consumer says that it took in and what became of it
SELECT b.consumer_group, b.member, b.counts, b.in_process, b.has_ended, b.started_at, b.written_at FROM consumer_books b
WHERE b.consumer_group = ANY (%(groups)s)
ORDER BY b.consumer_group, b.member;

-- name: owners: who owns each queue; since when; whether the owner let it expire
SELECT q.consumer_group, q.topic, q.queue_id, q.owner, q.state, q.updated_at,
    q.state <> 'FREE' AND q.expires_at <= clock_timestamp()
FROM queue_owner q
WHERE q.consumer_group = ANY (%(groups)s) AND (%(topic)s::text IS NULL OR q.topic = %(topic)s)
ORDER BY q.consumer_group, q.topic, q.queue_id;

-- name: discards: what people discarded and the control database may not have yet; whether it was parked, and is not kept any more
SELECT d.consumer_group, d.topic, d.message_id, d.discarded_by, d.why, d.case_id, d.discarded_at::text, d.ordering_key,
    EXISTS (SELECT FROM consumer_log l WHERE (l.consumer_group, l.topic, l.message_id) = (d.consumer_group, d.topic, d.message_id)
        AND l.state = 'PARKED')
    AND NOT EXISTS (SELECT FROM parked_message m
        WHERE (m.consumer_group, m.topic, m.message_id) = (d.consumer_group, d.topic, d.message_id))
FROM parked_discard d
WHERE d.consumer_group = ANY (%(groups)s)
ORDER BY d.discarded_at, d.consumer_group, d.topic, d.message_id LIMIT %(limit)s OFFSET %(skip)s;

-- name: forget_discards: the control database has them
DELETE FROM parked_discard d
USING unnest(%(of_groups)s::text[], %(topics)s::text[], %(message_ids)s::text[], %(moments)s::text[])
    AS g (consumer_group, topic, message_id, moment)
WHERE d.consumer_group = g.consumer_group AND d.topic = g.topic AND d.message_id = g.message_id
    AND d.discarded_at = g.moment::timestamptz;
