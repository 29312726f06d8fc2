-- Parked ordering keys, in the consumer database. The row of a key is locked by whoever parks it, begins or keeps one of its
-- messages, or releases it.

-- name: lock_keys: which of these keys are parked, each locked until the transaction ends, or its client stands still in it
SELECT topic, ordering_key, state, messages, bytes,
    set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited
FROM parked_key
WHERE consumer_group = %(group)s::text
    AND (topic, ordering_key) IN (SELECT * FROM unnest(%(topics)s::text[], %(keys)s::text[]))
ORDER BY topic, ordering_key
FOR UPDATE;

-- name: lock_parking: until the transaction ends nobody else parks a key
-- A statement of its own: the count that follows sees what the holder before committed.
SELECT pg_advisory_xact_lock(hashtextextended('backstop parking ' || %(group)s::text || ' ' || %(topic)s::text, 0)) AS locked;

-- name: count_keys: how many other keys are parked; the owner of another queue may have parked this one
SELECT count(*)::integer AS keys FROM parked_key
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND ordering_key <> %(key)s::text;

-- name: park_key: the key waits for a person from now on; no row: the owner of another queue has just parked it
INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes, last_error)
VALUES (%(group)s::text, %(topic)s::text, %(key)s::text, %(queue_id)s::integer, 'PARKED', 0, 0, %(error)s::text)
ON CONFLICT (consumer_group, topic, ordering_key) DO NOTHING
RETURNING ordering_key;

-- name: recorded_error: the last failure that the log has of a message
SELECT last_error FROM consumer_log
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND last_error IS NOT NULL;

-- name: park_log: the head's log, by the token of who tried it
UPDATE consumer_log SET
    state = 'PARKED', last_error = %(error)s::text, updated_at = clock_timestamp(), lease_expires_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND owner_token = %(token)s::uuid AND state IN ('CONSUMING', 'EXPIRED')
RETURNING fence;

-- name: unowned: a log that nobody works on, of a message that is not kept and has no newer content: `begin` would take it over
l.content_version <= %(content_version)s::integer AND (l.state IN ('FAILED', 'EXPIRED')
    OR (l.state = 'CONSUMING' AND l.lease_expires_at <= statement_timestamp()
        AND (l.content_version < %(content_version)s::integer OR coalesce(l.payload_hash = %(payload_hash)s::bytea, true))))
AND NOT EXISTS (SELECT FROM parked_message p
    WHERE (p.consumer_group, p.topic, p.message_id) = (l.consumer_group, l.topic, l.message_id));

-- name: is_unowned: whether a follower has no log, or one that nobody works on
SELECT NOT EXISTS (SELECT FROM consumer_log l
    WHERE l.consumer_group = %(group)s::text AND l.topic = %(topic)s::text AND l.message_id = %(message_id)s::text
        AND ({unowned}) IS NOT TRUE) AS is_unowned;

-- name: log_follower: the log of a follower: a new one, or one that nobody works on; whoever had it before can end it no more
INSERT INTO consumer_log AS l (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, lease_expires_at,
    attempts, payload_hash, content_version, owner_host)
VALUES (%(group)s::text, %(topic)s::text, %(message_id)s::text, %(queue_id)s::integer, %(queue_offset)s::bigint,
    %(queue_epoch)s::text, 'PARKED', clock_timestamp(), 0, %(payload_hash)s::bytea, %(content_version)s::integer,
    %(owner_host)s::text)
ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET
    state = 'PARKED', owner_token = NULL, lease_expires_at = excluded.lease_expires_at, updated_at = clock_timestamp(),
    conflicts = l.conflicts + coalesce(l.content_version = excluded.content_version
        AND l.payload_hash <> excluded.payload_hash, false)::integer,
    payload_hash = excluded.payload_hash, content_version = excluded.content_version, owner_host = excluded.owner_host
WHERE {unowned}
RETURNING message_id;

-- name: complete: the head is done, if its queue still has this fence; nobody takes the queue until this transaction ends
WITH owned AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', %(idle)s::text, true) AS limited FROM queue_owner q
    WHERE q.consumer_group = %(group)s::text AND q.topic = %(topic)s::text AND q.queue_id = %(queue_id)s::integer
        AND q.fence = %(fence)s::bigint
    FOR KEY SHARE
)
UPDATE consumer_log l SET
    state = 'CONSUMED', consumed_at = clock_timestamp(), updated_at = clock_timestamp(), lease_expires_at = clock_timestamp()
FROM owned
WHERE l.consumer_group = %(group)s::text AND l.topic = %(topic)s::text AND l.message_id = %(message_id)s::text
    AND l.owner_token = %(token)s::uuid AND l.state IN ('CONSUMING', 'EXPIRED')
RETURNING owned.limited;

-- name: keep: keeps a message's content at the end of its key's list
INSERT INTO parked_message (consumer_group, topic, message_id, ordering_key, content, headers, tag, content_version,
    queue_id, queue_offset, queue_epoch)
VALUES (%(group)s::text, %(topic)s::text, %(message_id)s::text, %(key)s::text, %(content)s::bytea, %(headers)s::text,
    %(tag)s::text, %(content_version)s::integer, %(queue_id)s::integer, %(queue_offset)s::bigint, %(queue_epoch)s::text)
RETURNING number;

-- name: count_message: one message more, or one less, in the list of a key that is locked
UPDATE parked_key SET
    messages = messages + %(number)s::integer, bytes = bytes + %(bytes)s::bigint, updated_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND ordering_key = %(key)s::text
RETURNING messages;

-- name: remove: takes a message out of its key's list
DELETE FROM parked_message
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
RETURNING octet_length(content) + octet_length(headers) AS bytes;

-- name: unpark: the key is free when its list is empty
DELETE FROM parked_key
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND ordering_key = %(key)s::text AND messages = 0
RETURNING ordering_key;

-- name: releasing: the keys of these queues whose release was answered, longest waiting first
SELECT k.topic, k.ordering_key, k.queue_id FROM parked_key k
JOIN unnest(%(topics)s::text[], %(queues)s::integer[]) AS mine (topic, queue_id) USING (topic, queue_id)
WHERE k.consumer_group = %(group)s::text AND k.state = 'RELEASING'
ORDER BY k.answered_at, k.ordering_key LIMIT %(limit)s::integer;

-- name: head: the first message of a key's list
SELECT message_id, number, content, headers, tag, content_version, queue_id, queue_offset, queue_epoch FROM parked_message
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND ordering_key = %(key)s::text
ORDER BY number LIMIT 1;

-- name: head_log: what the log says of a head
SELECT state, CASE WHEN lease_expires_at < 'infinity'
    THEN extract(epoch FROM greatest(lease_expires_at, timestamptz 'epoch') - clock_timestamp())::float8 END AS seconds_left
FROM consumer_log
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
FOR UPDATE;

-- name: head_state: what the log says of a head, for somebody who holds its key's lock and changes no log
SELECT state FROM consumer_log
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text;

-- name: begin_head: grants the lease of a released head, and of nothing else that is parked
INSERT INTO consumer_log AS l (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, owner_token,
    fence, lease_expires_at, attempts, payload_hash, content_version, owner_host)
VALUES (%(group)s::text, %(topic)s::text, %(message_id)s::text, %(queue_id)s::integer, %(queue_offset)s::bigint,
    %(queue_epoch)s::text, 'CONSUMING', %(token)s::uuid, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
    clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second', 1, %(payload_hash)s::bytea,
    %(content_version)s::integer, %(owner_host)s::text)
ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET
    state = 'CONSUMING', owner_token = excluded.owner_token, fence = greatest(l.fence + 1, excluded.fence),
    lease_expires_at = excluded.lease_expires_at, attempts = l.attempts + 1, updated_at = clock_timestamp(),
    payload_hash = excluded.payload_hash, content_version = excluded.content_version, owner_host = excluded.owner_host
WHERE l.state = 'PARKED'
RETURNING l.owner_token::text AS token, l.fence, l.attempts;

-- name: park_again: the key waits for a person once more
UPDATE parked_key SET
    state = 'PARKED', times_parked = times_parked + 1, last_error = %(error)s::text, parked_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND ordering_key = %(key)s::text
RETURNING messages;

-- name: park_expired: the log of a released head whose worker ended or failed
UPDATE consumer_log SET state = 'PARKED', updated_at = clock_timestamp(), lease_expires_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND state IN ('CONSUMING', 'FAILED', 'EXPIRED')
RETURNING fence;

-- name: set_back: a head that could not be tried for no fault of its own: the attempt is not counted, its state is as before
UPDATE consumer_log SET
    state = %(state)s::text, owner_token = NULL, attempts = greatest(attempts - 1, 0),
    last_error = coalesce(%(error)s::text, last_error),
    updated_at = clock_timestamp(), lease_expires_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
    AND owner_token = %(token)s::uuid AND state IN ('CONSUMING', 'EXPIRED')
RETURNING fence;

-- name: stop_queue: a limit of parking was reached: the queue stops, if it still has this fence
WITH owned AS MATERIALIZED (
    SELECT q.queue_id FROM queue_owner q
    WHERE q.consumer_group = %(group)s::text AND q.topic = %(topic)s::text AND q.queue_id = %(queue_id)s::integer
        AND q.fence = %(fence)s::bigint
    FOR KEY SHARE
)
INSERT INTO parking_full AS f (consumer_group, topic, queue_id, ordering_key, reached)
SELECT %(group)s::text, %(topic)s::text, owned.queue_id, %(key)s::text, %(reached)s::text FROM owned
ON CONFLICT (consumer_group, topic, queue_id) DO UPDATE SET ordering_key = excluded.ordering_key, reached = excluded.reached
RETURNING queue_id;

-- name: go_on: there is room again, if the queue still has this fence
WITH owned AS MATERIALIZED (
    SELECT q.queue_id FROM queue_owner q
    WHERE q.consumer_group = %(group)s::text AND q.topic = %(topic)s::text AND q.queue_id = %(queue_id)s::integer
        AND q.fence = %(fence)s::bigint
    FOR KEY SHARE
)
DELETE FROM parking_full f USING owned
WHERE f.consumer_group = %(group)s::text AND f.topic = %(topic)s::text AND f.queue_id = owned.queue_id
RETURNING f.queue_id;

-- name: answered: a person answered: the key's messages are released, head first, if it is in one of these states
UPDATE parked_key SET
    state = 'RELEASING', answer = %(answer)s::text, answered_by = %(by)s::text, answered_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND ordering_key = %(key)s::text
    AND state = ANY(%(states)s::text[])
RETURNING messages;

-- name: edit_head: a person's content replaces the head's, as a newer version
UPDATE parked_message SET content = %(content)s::bytea, content_version = content_version + 1
WHERE consumer_group = %(group)s::text AND topic = %(topic)s::text AND message_id = %(message_id)s::text
RETURNING content_version;

-- name: keep_discard: who discarded a parked message, until the control database has it
INSERT INTO parked_discard (consumer_group, topic, message_id, ordering_key, discarded_by, why, case_id)
VALUES (%(group)s::text, %(topic)s::text, %(message_id)s::text, %(key)s::text, %(by)s::text, %(why)s::text, %(case_id)s::bigint)
ON CONFLICT (consumer_group, topic, message_id) DO NOTHING
RETURNING message_id;

-- name: say_away: a consumer parks nothing and waits, because what its handlers need is away
INSERT INTO downstream_away AS d (consumer_group, topic, member, error)
VALUES (%(group)s::text, %(topic)s::text, %(member)s::text, %(error)s::text)
ON CONFLICT (consumer_group, topic, member) DO UPDATE SET error = excluded.error, seen_at = clock_timestamp()
RETURNING since;

-- name: say_back: something succeeded, or the consumer stops
DELETE FROM downstream_away WHERE consumer_group = %(group)s::text AND member = %(member)s::text RETURNING topic;
