-- The producer's side on a producer database in MariaDB, written without what MySQL 8 lacks. Keys and texts are given as bytes, which go
-- there as hexadecimal (sql/mariadb_run.py), so that neither the connection's character set nor a collation changes them; instants are
-- UTC, whatever the session's zone.
-- {latest}: as in leases/mariadb.sql. {of_keys}: some messages of a topic (sql/mariadb_keys.py).

-- name: latest: from 11.6.2 on a server may refuse to lock a row that changed since the transaction's snapshot; not this statement
/*M!110602 SET STATEMENT innodb_snapshot_isolation = 0 FOR */;

-- name: record: writes stubs in the business transaction; fails where one is there
INSERT INTO message_stub
    (topic, message_id, message_key, tag, ordering_key, sequence, headers, content, content_type, deliver_at,
     created_at, updated_at, next_check_at, send_count, attempted_at, attempt_token, attempt_deadline,
     attempt_requested_by)
VALUES {rows};

-- name: new_stub: one row of record; unless Backstop is to send it, number 1 is handed out
(%(topic)s, %(message_id)s, %(message_key)s, %(tag)s, %(ordering_key)s, %(sequence)s, CONVERT(%(headers)s USING utf8mb4),
 %(content)s, CONVERT(%(content_type)s USING utf8mb4), %(deliver_at)s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6),
 GREATEST(UTC_TIMESTAMP(6), COALESCE(CAST(%(deliver_at)s AS datetime(6)), UTC_TIMESTAMP(6))) + INTERVAL %(first_check)s MICROSECOND,
 IF(%(token)s IS NULL, 0, 1), IF(%(token)s IS NULL, NULL, UTC_TIMESTAMP(6)), %(token)s,
 IF(%(token)s IS NULL, NULL, UTC_TIMESTAMP(6) + INTERVAL %(attempt_timeout)s MICROSECOND),
 IF(%(token)s IS NULL, NULL, 'producer'));

-- name: there: of some messages of a topic those that have a stub, as it is now
{latest} SELECT s.message_id FROM {of_keys} LOCK IN SHARE MODE;

-- name: has_content: whether a message that was recorded before has the same content
{latest} SELECT s.content = %(content)s AS same FROM {of_keys} LOCK IN SHARE MODE;

-- name: in_transaction: whether a transaction is open; MySQL does not say it
SELECT 0 /*M! + @@in_transaction */ AS in_transaction;

-- name: look: some messages of a topic, whose attempt is under way, and for how long
SELECT s.message_id, s.status, s.attempt_token,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), s.attempt_deadline) AS micros_left,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), s.deliver_at) AS micros_early
FROM {of_keys};

-- name: hold: some messages of a topic whose number 1 is the newest, locked, in the order of keys
{latest} SELECT s.message_id, s.attempt_token FROM {of_keys} WHERE s.send_count = 1 AND s.attempt_token IS NOT NULL FOR UPDATE;

-- name: settle: how a send ended, of a stub that this transaction has locked; one that began late may be stored until now
{latest} UPDATE message_stub FORCE INDEX (PRIMARY) SET
    attempt_token = NULL, attempt_requested_by = NULL, sent_at = IF(%(outcome)s = 'sent', UTC_TIMESTAMP(6), NULL),
    attempted_at = GREATEST(attempted_at, UTC_TIMESTAMP(6) - INTERVAL %(max_send)s MICROSECOND),
    refusals = refusals + (%(outcome)s = 'refused'), broker = COALESCE(%(broker)s, broker), queue_id = %(queue_id)s,
    queue_offset = %(queue_offset)s, queue_epoch = %(queue_epoch)s, broker_message_id = %(broker_message_id)s,
    updated_at = UTC_TIMESTAMP(6)
WHERE topic = %(topic)s AND message_id = %(message_id)s;

-- name: record_attempt: ... and its attempt
{latest} INSERT INTO send_attempt
    (topic, message_id, send_number, requested_by, started_at, finished_at, outcome, queue_id, queue_offset, queue_epoch,
     broker_message_id, error)
SELECT topic, message_id, 1, 'producer', attempted_at, UTC_TIMESTAMP(6), %(outcome)s, queue_id, queue_offset, queue_epoch,
    broker_message_id, CONVERT(%(error)s USING utf8mb4)
FROM message_stub WHERE topic = %(topic)s AND message_id = %(message_id)s FOR UPDATE;
