-- A consumer's own inbox table, read only. {rows} is the SELECT of columns.log_rows.

-- name: clock: the server's own time
SELECT clock_timestamp();

-- name: of_keys: one group's rows by key, all of a key as one; done by any of them is done
-- In state: CONSUMING without a lease's end wherever somebody may still finish it without a new copy.
SELECT g.topic, g.message_id,
    CASE WHEN g.done THEN 'CONSUMED' WHEN g.unknown THEN '' WHEN g.working THEN 'CONSUMING' ELSE 'FAILED' END AS log_state,
    CASE WHEN g.done OR NOT g.unknown THEN NULL ELSE 'a state that the mapping does not name' END AS log_broken,
    NULL::bigint AS lease_expires_at,
    (extract(epoch FROM g.updated_at) * 1000000)::bigint AS log_updated_at,
    CASE WHEN g.done THEN (extract(epoch FROM g.updated_at) * 1000000)::bigint END AS log_consumed_at,
    (extract(epoch FROM g.received_at) * 1000000)::bigint AS received_at, g.copies
FROM (
    SELECT k.topic, k.message_id, bool_or(l.kind = 'done') AS done, bool_or(l.kind = 'unknown') AS unknown,
        bool_or(l.kind = 'working') AS working, count(*) AS copies,
        greatest(timestamptz '0001-01-01 00:00:00+00', least(clock_timestamp(),
            max(coalesce(l.done_at, l.received_at, clock_timestamp())))) AS updated_at,
        greatest(timestamptz '0001-01-01 00:00:00+00', least(clock_timestamp(),
            min(coalesce(l.received_at, l.done_at, clock_timestamp())))) AS received_at
    FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(theirs)s::text[]) AS k (topic, message_id, theirs)
    JOIN ({rows}) l ON l.message_id = k.message_id AND (NOT %(by_topic)s OR l.theirs = k.theirs)
    WHERE NOT %(by_group)s OR l.its_group = %(group)s::text
    GROUP BY k.topic, k.message_id) g;

-- name: column: how a column writes its values, and whether each row has one
SELECT format_type(a.atttypid, NULL), a.attnotnull FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attname = %(column)s AND NOT a.attisdropped;

-- name: nameless: whether a row of the group has no id that can be read: it may be of any message
SELECT EXISTS (SELECT 1 FROM ({rows}) l
    WHERE (l.message_id IS NULL OR (%(by_topic)s AND l.theirs IS NULL)) AND (NOT %(by_group)s OR l.its_group = %(group)s::text));

-- name: proven: (to the control database) whether a message of the topic was found done by this mapping
SELECT EXISTS (SELECT 1 FROM mapped_log_proof p
    WHERE p.store = %(store)s::text AND p.mapping = %(mapping)s::text AND p.consumer_group = %(group)s::text
        AND p.topic = %(topic)s::text);

-- name: prove: (to the control database) that one was
INSERT INTO mapped_log_proof (store, mapping, consumer_group, topic)
VALUES (%(store)s, %(mapping)s, %(group)s, %(topic)s) ON CONFLICT DO NOTHING;

-- name: count_received: by their topic, one group's rows first received in [start, end)
SELECT l.theirs, count(*) FROM ({rows}) l
WHERE (NOT %(by_group)s OR l.its_group = %(group)s::text)
    AND l.received_at >= %(start)s::timestamptz AND l.received_at < %(end)s::timestamptz
GROUP BY l.theirs;
