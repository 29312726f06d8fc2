-- Stubs and attempts in a producer database in MariaDB, written without what MySQL 8 lacks. Keys and compared texts are bytes;
-- instants are given and taken in microseconds since 1970, and are UTC. Every change runs at READ COMMITTED in two steps: a locking
-- read finds the rows that are as the change wants them, by primary key and in the order of keys, as everybody locks; what follows
-- writes these rows alone. No assignment reads a column that its statement assigns, but its own: several servers differ there.
-- {of_keys}: some messages of a topic (sql/mariadb_keys.py). {given}: the same with values of each, none of which is a blob: what
-- MariaDB 10.11 keeps of one in a JSON_TABLE may be empty when a statement writes it.

-- name: clock: the server's own time
SELECT UTC_TIMESTAMP(6);

-- name: due: the stubs that are due, within a scope; {topics} is empty, or a condition
FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at <= %(as_of)s {topics}
    AND (%(created_from)s IS NULL OR s.created_at >= %(created_from)s)
    AND (%(created_to)s IS NULL OR s.created_at < %(created_to)s);

-- name: count_due: begins with how many of these there are, up to a limit
SELECT COUNT(*) FROM (SELECT 1 {due} LIMIT %(limit)s) c;

-- name: window: one topic's stubs created in a window, whatever became of them
FROM message_stub s
WHERE s.topic = %(topic)s AND s.created_at >= %(created_from)s AND s.created_at < %(created_to)s;

-- name: stub_columns: the columns of STUB_COLUMNS but the first
s.topic, s.message_id, s.tag, s.status, s.send_count, s.refusals, s.max_sends,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.next_check_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.created_at),
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.first_seen_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.judged_at),
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.deliver_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.attempted_at),
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.sent_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.attempt_deadline),
s.attempt_token IS NULL, s.broker, s.queue_id, s.queue_offset, s.queue_epoch,
IF(s.send_count <= 1, s.broker, s.first_broker), IF(s.send_count <= 1, s.queue_id, s.first_queue_id),
IF(s.send_count <= 1, s.queue_offset, s.first_queue_offset), IF(s.send_count <= 1, s.queue_epoch, s.first_queue_epoch),
s.first_groups IS NULL, NULL;

-- name: more_columns: what a Stub has beside them
s.ordering_key, s.attempt_token, s.first_groups;

-- name: attempts_too: of the stubs that are read, those whose attempts the rule reads: sent more than once, or first to some groups alone
AND (s.send_count > 1 OR s.first_groups IS NOT NULL);

-- name: attempt_columns: the columns of ATTEMPT_COLUMNS, with all groups in one
-- A producer's own number 1 names its broker in the stub.
SELECT a.topic, a.message_id, a.send_number, a.`groups`, a.outcome,
    COALESCE(a.broker, CASE WHEN a.send_number > 1 THEN NULL WHEN s.send_count > 1 THEN s.first_broker ELSE s.broker END),
    a.queue_id, a.queue_offset, a.queue_epoch,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', a.started_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', a.finished_at)
FROM (SELECT s.topic, s.message_id, s.send_count, s.broker, s.first_broker {of_stubs}) s
JOIN send_attempt a ON a.topic = s.topic AND a.message_id = s.message_id;

-- name: of_keys: some messages of a topic by id
FROM {of_keys};

-- name: attempts: every number of some messages that has ended, ascending
SELECT a.topic, a.message_id, a.send_number, a.`groups`, a.requested_by,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', a.started_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', a.finished_at),
    a.outcome, a.queue_id, a.queue_offset, a.queue_epoch, a.error
FROM {of_keys}
JOIN send_attempt a ON a.topic = s.topic AND a.message_id = s.message_id
ORDER BY a.message_id, a.send_number;

-- name: oldest_due: since when the oldest due stub is due; no row: none is
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.next_check_at) FROM message_stub s
WHERE s.status = 'pending' AND s.next_check_at <= UTC_TIMESTAMP(6) AND s.next_check_at >= '0001-01-01'
ORDER BY s.next_check_at
LIMIT 1;

-- name: recorded_between: by topic, what was recorded in a window and how much of it has an offset
SELECT s.topic, COUNT(*),
    COUNT(IF(s.deliver_at IS NULL AND s.send_count > s.refusals, 1, NULL)),
    COUNT(IF(s.deliver_at IS NULL AND s.send_count > s.refusals AND s.queue_offset IS NOT NULL, 1, NULL)),
    COUNT(IF(s.deliver_at IS NOT NULL, 1, NULL))
FROM message_stub s
WHERE s.created_at >= %(start)s AND s.created_at < %(end)s
GROUP BY s.topic;

-- name: lives: by topic, at which broker, in which life of which queue the copies of pending stubs were stored, as recorded
SELECT s.topic, s.broker, s.queue_id, s.queue_epoch
FROM message_stub s
WHERE s.status = 'pending' AND s.topic IN %(topics)s AND s.send_count > 0 AND (s.queue_epoch IS NOT NULL OR s.broker IS NOT NULL)
UNION
SELECT s.topic, a.broker, a.queue_id, a.queue_epoch
FROM message_stub s
JOIN send_attempt a ON a.topic = s.topic AND a.message_id = s.message_id
WHERE s.status = 'pending' AND s.topic IN %(topics)s AND s.send_count > 1
    AND (a.queue_epoch IS NOT NULL OR a.broker IS NOT NULL);

-- name: in_line: which of some messages have an ordering key, and their place in it
SELECT s.topic, s.message_id, s.ordering_key, s.place, s.created_at, {created} FROM {of_keys} WHERE s.ordering_key IS NOT NULL;

-- name: created: when it was created, in microseconds since 1970: also of a zero date, which is no instant for the driver
COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.created_at), -62135596800000000);

-- name: first_open: the first open message of an ordering key, of each status
(SELECT s.place, {created}, s.message_id FROM message_stub s
WHERE s.topic = %(topic)s AND s.ordering_key = %(ordering_key)s AND s.status = 'pending'
ORDER BY s.place, s.created_at, s.message_id LIMIT 1)
UNION ALL
(SELECT s.place, {created}, s.message_id FROM message_stub s
WHERE s.topic = %(topic)s AND s.ordering_key = %(ordering_key)s AND s.status = 'exhausted'
ORDER BY s.place, s.created_at, s.message_id LIMIT 1);

-- name: sent_after: the first message of an ordering key behind a place that may have been sent, of one status
SELECT s.place, {created}, s.message_id FROM message_stub s
WHERE s.topic = %(topic)s AND s.ordering_key = %(ordering_key)s AND s.status = %(status)s AND s.send_count > s.refusals
    AND (s.place > %(place)s OR s.place = %(place)s AND (s.created_at > %(created_at)s
        OR s.created_at = %(created_at)s AND s.message_id > %(message_id)s))
ORDER BY s.place, s.created_at, s.message_id
LIMIT 1;

-- name: open_in_line: the open messages of one ordering key, in sequence, after one of them (NULL: from the first)
SELECT s.message_id FROM message_stub s
LEFT JOIN message_stub a ON a.topic = %(topic)s AND a.message_id = %(after)s
WHERE s.topic = %(topic)s AND s.ordering_key = %(ordering_key)s AND s.status IN ('pending', 'exhausted')
    AND (%(after)s IS NULL OR s.place > a.place OR s.place = a.place AND (s.created_at > a.created_at
        OR s.created_at = a.created_at AND s.message_id > a.message_id))
ORDER BY s.place, s.created_at, s.message_id
LIMIT %(limit)s;

-- name: named: messages of these topics that a text names by their id, their own key or their ordering key, the newest first; by index
/*M! SET STATEMENT max_statement_time = 5 FOR */ SELECT f.topic, f.message_id, f.named_by FROM (
    (SELECT s.topic, s.message_id, 'id' AS named_by, s.created_at FROM message_stub s
    WHERE s.topic IN %(topics)s AND s.message_id = %(text)s)
    UNION ALL
    (SELECT s.topic, s.message_id, 'message key', s.created_at FROM message_stub s
    WHERE s.topic IN %(topics)s AND s.message_key = %(text)s
    ORDER BY s.created_at DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT s.topic, s.message_id, 'ordering key', s.created_at FROM message_stub s
    WHERE s.topic IN %(topics)s AND s.ordering_key = %(text)s
    ORDER BY s.place DESC, s.created_at DESC, s.message_id DESC LIMIT %(limit)s)
) f
ORDER BY f.named_by <> 'id', f.created_at DESC, f.topic, f.message_id
LIMIT %(limit)s;

-- name: sent_as: messages of these topics whose newest copy has this id at the broker, of those created since an instant
/*M! SET STATEMENT max_statement_time = 5 FOR */ SELECT s.topic, s.message_id, 'broker id' FROM message_stub s
WHERE s.created_at >= %(created_from)s AND s.topic IN %(topics)s AND s.broker_message_id = %(text)s
ORDER BY s.created_at DESC, s.topic, s.message_id
LIMIT %(limit)s;

-- name: contents_beside: contents of messages of the same topic and tag whose ids come just before or after this one's, confirmed ones first
SELECT b.content FROM (
    (SELECT s.content, s.status, s.tag FROM message_stub s
    WHERE s.topic = %(topic)s AND s.message_id < %(message_id)s ORDER BY s.message_id DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT s.content, s.status, s.tag FROM message_stub s
    WHERE s.topic = %(topic)s AND s.message_id > %(message_id)s ORDER BY s.message_id LIMIT %(limit)s)
) b
WHERE LENGTH(b.content) BETWEEN 1 AND %(most_bytes)s
    AND b.tag <=> (SELECT s.tag FROM message_stub s WHERE s.topic = %(topic)s AND s.message_id = %(message_id)s)
ORDER BY b.status <> 'confirmed'
LIMIT %(limit)s;

-- name: content_columns: what is published
s.topic, s.message_id, s.content, s.headers, s.tag, s.ordering_key, s.content_version;

-- name: sizes: how many bytes these are, where they are many
SELECT s.topic, s.message_id, LENGTH(s.content) + LENGTH(s.headers) FROM {of_keys}
WHERE LENGTH(s.content) + LENGTH(s.headers) > %(above)s;

-- name: late: the messages of attempts past their deadline, the oldest first, behind one of them; read without a lock
SELECT CAST(s.under_way_until AS char), s.topic, s.message_id FROM message_stub s FORCE INDEX (message_stub_under_way)
WHERE s.under_way_until <= UTC_TIMESTAMP(6) AND s.under_way_until >= %(after)s
    AND (s.under_way_until > %(after)s OR s.topic > %(after_topic)s OR s.topic = %(after_topic)s AND s.message_id > %(after_id)s)
ORDER BY s.under_way_until, s.topic, s.message_id
LIMIT %(limit)s;

-- name: late_behind: the same in key order, behind one of them
SELECT s.topic, s.message_id FROM message_stub s FORCE INDEX (message_stub_under_way)
WHERE s.under_way_until <= UTC_TIMESTAMP(6)
    AND (s.topic > %(after_topic)s OR s.topic = %(after_topic)s AND s.message_id > %(after_id)s)
ORDER BY s.topic, s.message_id
LIMIT %(limit)s;

-- name: hold_late: of some messages those whose attempt is past its deadline, locked
SELECT s.message_id FROM {of_keys} WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline <= UTC_TIMESTAMP(6) FOR UPDATE;

-- name: skip_locked: ... but for those in somebody's hands
SKIP LOCKED;

-- name: present: of some messages those that have a row
SELECT s.message_id FROM {of_keys};

-- name: hold_any: the same, locked
SELECT s.message_id FROM {of_keys} FOR UPDATE;

-- name: date_late: ... when each may have begun to send at the latest; the rule adds max_send_duration to it
UPDATE {of_keys} SET
    -- Of a date of zeros nothing can be taken away.
    s.attempted_at = GREATEST(s.attempted_at, COALESCE(s.attempt_deadline - INTERVAL %(max_send)s MICROSECOND, s.attempted_at)),
    s.updated_at = UTC_TIMESTAMP(6);

-- name: record_late: ... is recorded as unknown; a number that has a row already has ended, and the first account of it stays
INSERT INTO send_attempt
    (topic, message_id, send_number, `groups`, requested_by, started_at, finished_at, outcome, broker, error)
SELECT s.topic, s.message_id, s.send_count, s.attempt_groups, COALESCE(s.attempt_requested_by, 'not recorded'), s.attempted_at,
    UTC_TIMESTAMP(6), 'unknown', s.broker, 'its deadline passed before its outcome was recorded'
FROM {of_keys}
WHERE NOT EXISTS (SELECT 1 FROM send_attempt a
    WHERE a.topic = s.topic AND a.message_id = s.message_id AND a.send_number = s.send_count);

-- name: end_attempts: ... and loses its token
UPDATE {of_keys} SET s.attempt_token = NULL, s.attempt_groups = NULL, s.attempt_requested_by = NULL;

-- name: hold_claims: where a number is the next one and nothing forbids it, locked
SELECT s.message_id FROM {given}
WHERE s.send_count = g.send_number - 1 AND s.status = 'pending' AND s.attempt_token IS NULL AND s.erased_hash IS NULL
    AND s.send_count - s.refusals < COALESCE(s.max_sends, g.max_sends) AND s.refusals < g.max_refusals
    AND (NOT g.only_when_due OR s.next_check_at <= UTC_TIMESTAMP(6))
FOR UPDATE;

-- name: erased: those whose content was erased on request
SELECT s.topic, s.message_id FROM {of_keys} WHERE s.erased_hash IS NOT NULL;

-- name: keep_first: the place of number 1 says who owes the message: it stays where no later number touches it
UPDATE {of_keys} SET
    s.first_broker = IF(s.send_count = 1, s.broker, s.first_broker),
    s.first_queue_id = IF(s.send_count = 1, s.queue_id, s.first_queue_id),
    s.first_queue_offset = IF(s.send_count = 1, s.queue_offset, s.first_queue_offset),
    s.first_queue_epoch = IF(s.send_count = 1, s.queue_epoch, s.first_queue_epoch);

-- name: claim: hands out the number; the position becomes that of the number now under way: not known yet
UPDATE {given} SET
    s.first_groups = IF(g.send_number > 1, s.first_groups, CONVERT(%(to_groups)s USING utf8mb4)),
    s.send_count = g.send_number,
    s.attempt_token = g.token,
    s.attempt_deadline = UTC_TIMESTAMP(6) + INTERVAL g.attempt_lasts MICROSECOND,
    s.attempted_at = UTC_TIMESTAMP(6),
    s.attempt_groups = CONVERT(%(to_groups)s USING utf8mb4),
    s.attempt_requested_by = CONVERT(UNHEX(g.requested_by) USING utf8mb4),
    s.next_check_at = UTC_TIMESTAMP(6) + INTERVAL g.next_check MICROSECOND,
    s.sent_at = NULL,
    s.broker = COALESCE(UNHEX(g.broker), s.broker),
    s.queue_id = NULL,
    s.queue_offset = NULL,
    s.queue_epoch = NULL,
    s.broker_message_id = NULL,
    s.updated_at = UTC_TIMESTAMP(6);

-- name: hold_settlements: where an attempt is still its holder's, locked
SELECT s.message_id FROM {given} WHERE s.attempt_token = g.token AND s.send_count = g.send_number FOR UPDATE;

-- name: settle: how it ended; a send that began late may be stored until now
UPDATE {given} SET
    s.refusals = s.refusals + (g.outcome = 'refused'),
    s.sent_at = IF(g.outcome = 'sent', UTC_TIMESTAMP(6), NULL),
    s.attempted_at = GREATEST(s.attempted_at, COALESCE(UTC_TIMESTAMP(6) - INTERVAL g.max_send MICROSECOND, s.attempted_at)),
    s.broker = COALESCE(UNHEX(g.broker), s.broker),
    s.queue_id = g.queue_id,
    s.queue_offset = g.queue_offset,
    s.queue_epoch = UNHEX(g.queue_epoch),
    s.broker_message_id = UNHEX(g.broker_message_id),
    s.updated_at = UTC_TIMESTAMP(6);

-- name: record_settled: ... and its attempt; a number that has a row already has ended, and the first account of it stays
INSERT INTO send_attempt
    (topic, message_id, send_number, `groups`, requested_by, started_at, finished_at, outcome, broker, queue_id, queue_offset,
     queue_epoch, broker_message_id, error)
SELECT s.topic, s.message_id, s.send_count, s.attempt_groups, COALESCE(s.attempt_requested_by, 'not recorded'), s.attempted_at,
    UTC_TIMESTAMP(6), g.outcome, s.broker, s.queue_id, s.queue_offset, s.queue_epoch, s.broker_message_id,
    CONVERT(UNHEX(g.error) USING utf8mb4)
FROM {given}
WHERE NOT EXISTS (SELECT 1 FROM send_attempt a
    WHERE a.topic = s.topic AND a.message_id = s.message_id AND a.send_number = s.send_count);

-- name: hold_promoted: where status and send count are as judged, and nothing forbids it, locked; final states stay
-- A person who allowed more sends since the run looked changed neither status nor count: not exhausted after all. A later run knows
-- better of everything but a log that proves the work done; a judgement that lies a day ahead is none.
SELECT s.message_id FROM {given}
WHERE s.status = g.old_status AND s.send_count = g.send_count AND s.status NOT IN ('confirmed', 'voided')
    AND (g.new_status = 'pending' OR s.attempt_token IS NULL)
    AND (g.new_status <> 'exhausted' OR s.status = 'exhausted' OR s.updated_at <= %(own_as_of)s)
    AND (g.new_status = 'confirmed' OR s.judged_at IS NULL OR s.judged_at <= %(as_of)s
        OR s.judged_at > GREATEST(UTC_TIMESTAMP(6), CAST(%(as_of)s AS datetime(6))) + INTERVAL 1 DAY)
FOR UPDATE;

-- name: promote: what a run decided
UPDATE {given} SET
    s.status = g.new_status,
    s.next_check_at = GREATEST(s.next_check_at, COALESCE(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL g.next_look MICROSECOND, s.next_check_at)),
    s.first_seen_at = LEAST(COALESCE(s.first_seen_at, CAST(%(as_of)s AS datetime(6))), CAST(%(as_of)s AS datetime(6))),
    s.judged_at = GREATEST(CAST(%(as_of)s AS datetime(6)), IF(
        s.judged_at <= GREATEST(UTC_TIMESTAMP(6), CAST(%(as_of)s AS datetime(6))) + INTERVAL 1 DAY,
        s.judged_at, CAST(%(as_of)s AS datetime(6)))),
    s.updated_at = UTC_TIMESTAMP(6);

-- name: hold_open: of some messages those that are open and have no attempt under way, locked
SELECT s.message_id FROM {of_keys} WHERE s.status IN ('pending', 'exhausted') AND s.attempt_token IS NULL FOR UPDATE;

-- name: void: withdraws a message
UPDATE {of_keys} SET s.status = 'voided', s.updated_at = UTC_TIMESTAMP(6);

-- name: hold_raised: of some messages those that are open and were sent less often, refusals not counted, than a person allows now, locked
SELECT s.message_id FROM {of_keys}
WHERE s.status IN ('pending', 'exhausted') AND s.send_count - s.refusals < %(max_sends)s AND s.erased_hash IS NULL
FOR UPDATE;

-- name: raise_max_sends: ... are pending again and due now; a larger allowance stays
UPDATE {of_keys} SET
    s.max_sends = GREATEST(COALESCE(s.max_sends, %(max_sends)s), %(max_sends)s), s.status = 'pending',
    s.next_check_at = LEAST(s.next_check_at, UTC_TIMESTAMP(6)), s.updated_at = UTC_TIMESTAMP(6);

-- name: hold_version: a message whose content is of this version, that is open and has no attempt under way, locked
SELECT s.message_id FROM {of_keys}
WHERE s.content_version = %(version)s AND s.status IN ('pending', 'exhausted') AND s.attempt_token IS NULL AND s.erased_hash IS NULL
FOR UPDATE;

-- name: replace_content: a person's edit
UPDATE {of_keys} SET s.content = %(content)s, s.content_version = s.content_version + 1, s.updated_at = UTC_TIMESTAMP(6);

-- name: hold_below: of some messages those that know of fewer numbers than were handed out, with no attempt under way, locked
SELECT s.message_id, s.send_count FROM {given} WHERE s.send_count < g.most AND s.attempt_token IS NULL FOR UPDATE;

-- name: record_handed: a number that was handed out before the database was restored is recorded
INSERT INTO send_attempt (topic, message_id, send_number, `groups`, requested_by, started_at, finished_at, outcome, error)
SELECT %(topic)s, %(message_id)s, %(send_number)s, CONVERT(%(groups)s USING utf8mb4), CONVERT(%(requested_by)s USING utf8mb4), %(at)s,
    UTC_TIMESTAMP(6), %(outcome)s, 'handed out before the database was restored; where it went is not known any more'
FROM (SELECT 1) one
WHERE NOT EXISTS (SELECT 1 FROM send_attempt a
    WHERE a.topic = %(topic)s AND a.message_id = %(message_id)s AND a.send_number = %(send_number)s);

-- name: raise_numbers: ... and is not handed out again
UPDATE {given} SET
    s.first_groups = IF(s.send_count > 0, s.first_groups, CONVERT(%(to_groups)s USING utf8mb4)),
    s.attempted_at = GREATEST(COALESCE(s.attempted_at, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL g.last_at MICROSECOND),
        TIMESTAMP'1970-01-01 00:00:00' + INTERVAL g.last_at MICROSECOND),
    s.sent_at = NULL, s.queue_id = NULL, s.queue_offset = NULL, s.queue_epoch = NULL,
    s.broker_message_id = NULL, s.updated_at = UTC_TIMESTAMP(6);

-- name: count_numbers: ... which only a statement of its own may write: the one before reads what it was
UPDATE {given} SET s.send_count = g.most, s.refusals = s.refusals + g.refused;

-- name: closed_since: after a restore of a consumer's database, a page of some topics' stubs by key, and which were closed since; walks the key once
SELECT s.topic, s.message_id, s.status IN ('confirmed', 'exhausted') AND s.updated_at >= %(since)s FROM message_stub s
WHERE (s.topic > %(after_topic)s OR s.topic = %(after_topic)s AND s.message_id > %(after_id)s) AND s.topic IN %(topics)s
ORDER BY s.topic, s.message_id
LIMIT %(limit)s;

-- name: hold_closed: of some messages those that a run closed, locked
SELECT s.message_id FROM {of_keys} WHERE s.status IN ('confirmed', 'exhausted') FOR UPDATE;

-- name: reopen: ... are pending and due
UPDATE {of_keys} SET s.status = 'pending', s.next_check_at = UTC_TIMESTAMP(6), s.updated_at = UTC_TIMESTAMP(6);
