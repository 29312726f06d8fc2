-- The data of the reconcile benchmarks, made set-wise; ids are made from a number, so that every database can make its own.

-- name: ids: 1..stubs with id, topic, queue, offset and kind; `of` picks those of one of `shards` or all (null)
-- 50,000 are due: of 1,000, 970 are confirmed by their logs, 10 ahead of the group, 10 lost, 5 stalled, 5 never sent.
CREATE TEMP TABLE made AS
SELECT n, md5('stub ' || n)::uuid::text AS message_id, 'topic_' || mod(n, 10) AS topic,
    mod(n / 10, 8)::int AS queue_id,
    CASE WHEN n <= %(due)s AND %(all)s::text IS NULL AND mod(abs(hashint8(n)), 200) IN (0, 1) THEN %(stubs)s / 80 + 100 + n / 80 ELSE n / 80 END AS queue_offset,
    n <= %(due)s AS due,
    CASE WHEN n > %(due)s THEN 'confirmed' WHEN %(all)s::text IS NOT NULL THEN %(all)s
        WHEN mod(abs(hashint8(n)), 200) IN (0, 1) THEN 'backlogged' WHEN mod(abs(hashint8(n)), 200) IN (2, 3) THEN 'lost'
        WHEN mod(abs(hashint8(n)), 200) = 4 THEN 'stalled' WHEN mod(abs(hashint8(n)), 200) = 5 THEN 'unsent' ELSE 'consumed' END AS kind,
    CASE WHEN n <= %(due)s THEN now() - interval '10 min' - n * (interval '2 days' / %(due)s)
        ELSE now() - interval '2 days 10 min' - n * (interval '12 days' / %(stubs)s) END AS created_at
FROM generate_series(1, %(stubs)s) n
WHERE %(of)s::int IS NULL OR mod(n, %(shards)s) = %(of)s;

-- name: stubs: the stubs of what was made
INSERT INTO message_stub (topic, message_id, content, headers, status, send_count, next_check_at, created_at, first_seen_at,
    judged_at, attempted_at, attempt_deadline, sent_at, broker, queue_id, queue_offset, queue_epoch)
SELECT m.topic, m.message_id, decode(repeat('ab', 300), 'hex'), '{}', CASE WHEN m.due THEN 'pending' ELSE 'confirmed' END,
    CASE WHEN m.kind = 'unsent' THEN 0 ELSE 1 END, m.created_at + interval '2 min', m.created_at,
    m.created_at + interval '2 min', CASE WHEN NOT m.due THEN m.created_at + interval '3 min' END,
    CASE WHEN m.kind <> 'unsent' THEN m.created_at END,
    CASE WHEN m.kind <> 'unsent' THEN m.created_at + interval '2 min' END,
    CASE WHEN m.kind <> 'unsent' THEN m.created_at + interval '10 ms' END, 'embedded',
    CASE WHEN m.kind <> 'unsent' THEN m.queue_id END, CASE WHEN m.kind <> 'unsent' THEN m.queue_offset END,
    CASE WHEN m.kind <> 'unsent' THEN e.epoch END
FROM made m
JOIN unnest(%(topics)s::text[], %(queues)s::int[], %(epochs)s::text[]) AS e (topic, queue_id, epoch)
    ON e.topic = m.topic AND e.queue_id = m.queue_id
ORDER BY m.topic, m.message_id;

-- name: logs: one group's logs of what was made
INSERT INTO consumer_log (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, owner_token,
    lease_expires_at, first_received_at, updated_at, consumed_at)
SELECT %(group)s, m.topic, m.message_id, m.queue_id, m.queue_offset, e.epoch,
    CASE WHEN m.kind = 'stalled' THEN 'CONSUMING' ELSE 'CONSUMED' END, gen_random_uuid(),
    m.created_at + interval '61 s', m.created_at + interval '1 s', m.created_at + interval '2 s',
    CASE WHEN m.kind <> 'stalled' THEN m.created_at + interval '2 s' END
FROM made m
JOIN unnest(%(topics)s::text[], %(queues)s::int[], %(epochs)s::text[]) AS e (topic, queue_id, epoch)
    ON e.topic = m.topic AND e.queue_id = m.queue_id
WHERE m.kind IN ('confirmed', 'consumed', 'stalled')
ORDER BY m.topic, m.message_id;

-- name: indexes: a table's indexes that no constraint needs
SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
FROM pg_index i
WHERE i.indrelid = %(table)s::regclass AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid);

-- name: groups: who takes what, for the hand-written SQL
CREATE TABLE topic_group AS
SELECT 'topic_' || n AS topic, g AS consumer_group FROM generate_series(0, 9) n, unnest(%(groups)s::text[]) g;

-- name: progress: how far each group is, for the hand-written SQL
CREATE TABLE progress AS
SELECT g.consumer_group, g.topic, q AS queue_id, %(settled)s::bigint AS settled
FROM topic_group g, generate_series(0, 7) q;
