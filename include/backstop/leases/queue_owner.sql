-- Owning queues: one row for each group, topic and queue in the consumer database. The clock is the database's.
-- What locks a row that others may want says how long its client may stand still: then the server ends its transaction.

-- name: join: says that a member lives, and lists the living ones with the number of these queues that each owns
WITH me AS (
    INSERT INTO group_member AS m (consumer_group, topic, member, expires_at)
    VALUES (%(group)s::text, %(topic)s::text, %(member)s::text,
        clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second')
    ON CONFLICT (consumer_group, topic, member) DO UPDATE SET expires_at = excluded.expires_at
    RETURNING m.member
), gone AS (
    -- One that is in another member's hands is not waited for: nobody counts it, and a later beat deletes it.
    DELETE FROM group_member g USING (
        SELECT o.member FROM group_member o
        WHERE o.consumer_group = %(group)s::text AND o.topic = %(topic)s::text
            AND o.member <> %(member)s::text AND o.expires_at <= clock_timestamp()
        FOR UPDATE SKIP LOCKED) o
    WHERE g.consumer_group = %(group)s::text AND g.topic = %(topic)s::text AND g.member = o.member
)
SELECT m.member, (SELECT count(*) FROM queue_owner q WHERE q.consumer_group = %(group)s::text
    AND q.topic = %(topic)s::text AND q.queue_id = ANY(%(queues)s::integer[]) AND q.owner = m.member AND q.state = 'OWNED')::integer
    AS owned, set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited
FROM (SELECT member FROM me UNION SELECT g.member FROM group_member g WHERE g.consumer_group = %(group)s::text
    AND g.topic = %(topic)s::text AND g.expires_at > clock_timestamp()) m
ORDER BY m.member;

-- name: has_members: whether the database is of a release in which consumers work in order
SELECT to_regclass('group_member') IS NOT NULL AS found;

-- name: ordered_topics: which of these topics have living members that share their queues in order
SELECT DISTINCT topic FROM group_member
WHERE consumer_group = %(group)s::text AND topic = ANY(%(topics)s::text[]) AND expires_at > clock_timestamp()
ORDER BY topic;

-- name: leave: a member that stops is no longer counted
DELETE FROM group_member WHERE consumer_group = %(group)s::text AND member = %(member)s::text RETURNING member;

-- name: declare: makes the rows of a topic's queues; existing rows stay as they are
INSERT INTO queue_owner (consumer_group, topic, queue_id)
SELECT %(group)s::text, %(topic)s::text, q FROM unnest(%(queues)s::integer[]) AS q
ON CONFLICT (consumer_group, topic, queue_id) DO NOTHING
RETURNING queue_id, set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited;

-- name: take: takes queues that are free, expired, or of an earlier life of this member, at most so many; one that a transaction is just using is left for the next time
WITH free AS (
    SELECT f.consumer_group, f.topic, f.queue_id FROM queue_owner f
    WHERE f.consumer_group = %(group)s::text AND f.topic = %(topic)s::text
        AND f.queue_id = ANY(%(queues)s::integer[])
        AND (f.state = 'FREE' OR f.expires_at <= clock_timestamp() OR f.owner = %(member)s::text)
    ORDER BY f.state <> 'FREE', f.queue_id LIMIT %(limit)s::integer
    FOR UPDATE OF f SKIP LOCKED
)
UPDATE queue_owner q SET
    owner = %(member)s::text,
    fence = greatest(q.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    state = 'OWNED',
    expires_at = clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second',
    updated_at = clock_timestamp()
FROM free
WHERE q.consumer_group = free.consumer_group AND q.topic = free.topic AND q.queue_id = free.queue_id
RETURNING q.queue_id, q.fence;

-- name: take_left: takes queues that nobody has wanted for a while, although a person released a key of theirs, or a limit stopped them
WITH left_over AS (
    SELECT q.consumer_group, q.topic, q.queue_id FROM queue_owner q
    WHERE q.consumer_group = %(group)s::text AND q.topic = ANY(%(topics)s::text[])
        AND (q.state = 'FREE' OR q.expires_at <= clock_timestamp())
        AND greatest(q.updated_at, q.expires_at) <= clock_timestamp() - %(lease_seconds)s::float8 * interval '1 second'
        AND (EXISTS (SELECT FROM parked_key k WHERE k.consumer_group = q.consumer_group AND k.topic = q.topic
                AND k.queue_id = q.queue_id AND k.state = 'RELEASING')
            OR EXISTS (SELECT FROM parking_full f WHERE f.consumer_group = q.consumer_group AND f.topic = q.topic
                AND f.queue_id = q.queue_id))
    ORDER BY q.topic, q.queue_id LIMIT %(limit)s::integer
    FOR UPDATE OF q SKIP LOCKED
)
UPDATE queue_owner q SET
    owner = %(member)s::text,
    fence = greatest(q.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    state = 'OWNED',
    expires_at = clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second',
    updated_at = clock_timestamp()
FROM left_over l
WHERE q.consumer_group = l.consumer_group AND q.topic = l.topic AND q.queue_id = l.queue_id
RETURNING q.topic, q.queue_id, q.fence,
    set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited;

-- name: renew: prolongs what is still ours; a queue that drains is not prolonged, but answered for
-- One that another member is just taking, because its lease had ended, is not waited for: it counts as lost.
UPDATE queue_owner q SET
    expires_at = CASE WHEN q.state = 'OWNED'
        THEN clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second' ELSE q.expires_at END
FROM (
    SELECT o.topic, o.queue_id FROM queue_owner o
    JOIN unnest(%(topics)s::text[], %(queues)s::integer[], %(fences)s::bigint[]) AS mine (topic, queue_id, fence)
        ON o.topic = mine.topic AND o.queue_id = mine.queue_id AND o.fence = mine.fence
    WHERE o.consumer_group = %(group)s::text AND o.owner = %(member)s::text
    FOR NO KEY UPDATE OF o SKIP LOCKED) m
WHERE q.consumer_group = %(group)s::text AND q.topic = m.topic AND q.queue_id = m.queue_id
RETURNING q.topic, q.queue_id, set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited;

-- name: drain: the owner begins to hand a queue over; after the time given anyone may take it
UPDATE queue_owner SET
    state = 'DRAINING',
    expires_at = clock_timestamp() + %(drain_seconds)s::float8 * interval '1 second',
    updated_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND queue_id = %(queue_id)s::integer
    AND fence = %(fence)s::bigint AND owner = %(member)s::text AND state = 'OWNED'
RETURNING fence;

-- name: release: the owner has nothing of the queue in work any more; which offsets it had finished is kept for the next one
UPDATE queue_owner SET
    state = 'FREE', owner = NULL, updated_at = clock_timestamp(), finished = %(finished)s::jsonb
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND queue_id = %(queue_id)s::integer
    AND fence = %(fence)s::bigint AND owner = %(member)s::text
RETURNING fence, set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited;

-- name: finished: which offsets the last owner that released the queue had finished
SELECT finished::text AS finished FROM queue_owner
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND queue_id = %(queue_id)s::integer
    AND finished IS NOT NULL;

-- name: holds: whether the queues still have these fences; until this transaction ends nobody takes one of those that do
SELECT q.topic, q.queue_id, set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited
FROM queue_owner q
JOIN unnest(%(topics)s::text[], %(queues)s::integer[], %(fences)s::bigint[]) AS mine (topic, queue_id, fence)
    ON q.topic = mine.topic AND q.queue_id = mine.queue_id AND q.fence = mine.fence
WHERE q.consumer_group = %(group)s::text
ORDER BY q.topic, q.queue_id
FOR KEY SHARE OF q;

-- name: server_life: which life of which server, database and table this is; a restored, promoted or restarted one is another
SELECT pg_postmaster_start_time()::text || ' ' || coalesce(inet_server_addr()::text, '') || ' '
    || coalesce(inet_server_port(), 0) || ' ' || d.oid || ' ' || c.oid || ' ' || c.relfilenode AS life
FROM pg_database d, pg_class c WHERE d.datname = current_database() AND c.oid = 'consumer_log'::regclass;
