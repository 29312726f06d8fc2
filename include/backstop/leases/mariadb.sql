-- The consumer's side in MariaDB, written without what MySQL 8 lacks. Keys are bytes (UTF-8), texts are given as bytes, which go there
-- as hexadecimal (sql/mariadb_run.py), so that neither the connection's character set nor a collation changes them; instants are UTC,
-- whatever the session's zone; every locking read and every write reads what is committed now, whatever snapshot the transaction has,
-- and finds its rows by the primary key.
-- {of_keys} is some messages of a topic (sql/mariadb_keys.py).
-- {latest} lets one statement do so also where the server would refuse it, because somebody changed the row since the snapshot.

-- name: latest: from 11.6.2 on a server may refuse to lock a row that changed since the transaction's snapshot; not this statement
/*M!110602 SET STATEMENT innodb_snapshot_isolation = 0 FOR */;

-- name: insert: one log for each message that has none; one that is there stays as it is, and is locked
-- INSERT IGNORE would do the same, and store a key that does not fit cut short.
{latest} INSERT INTO consumer_log
    (consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch, state, owner_token, fence, lease_expires_at,
     attempts, first_received_at, updated_at, consumed_at, payload_hash, content_version, owner_host, last_error)
VALUES {rows}
ON DUPLICATE KEY UPDATE attempts = consumer_log.attempts;

-- name: new_lease: one row of insert
(%(group)s, %(topic)s, %(message_id)s, %(queue_id)s, %(queue_offset)s, %(queue_epoch)s, 'CONSUMING', %(token)s,
 TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6) + INTERVAL %(lease)s MICROSECOND,
 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), NULL, %(payload_hash)s, %(content_version)s, CONVERT(%(host)s USING utf8mb4), NULL);

-- name: new_end: one row of insert, of work that was done, or failed, without a lease
(%(group)s, %(topic)s, %(message_id)s, %(queue_id)s, %(queue_offset)s, %(queue_epoch)s, %(state)s, %(token)s,
 1, UTC_TIMESTAMP(6), 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), IF(%(state)s = 'CONSUMED', UTC_TIMESTAMP(6), NULL),
 %(payload_hash)s, %(content_version)s, CONVERT(%(host)s USING utf8mb4), CONVERT(%(error)s USING utf8mb4));

-- name: locked: what the logs of some messages of a topic say now, each locked until the transaction ends
{latest} SELECT l.topic, l.message_id, l.state, l.owner_token, l.fence, l.attempts, l.content_version, l.payload_hash,
    l.lease_expires_at <= UTC_TIMESTAMP(6) AS has_ended,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.lease_expires_at) AS micros_left,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now_micros
FROM {of_keys}
FOR UPDATE;

-- name: take_over: the lease of a log that this transaction has locked
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'CONSUMING', owner_token = %(token)s, fence = %(fence)s, attempts = %(attempts)s, conflicts = conflicts + %(conflicts)s,
    lease_expires_at = UTC_TIMESTAMP(6) + INTERVAL %(lease)s MICROSECOND, updated_at = UTC_TIMESTAMP(6),
    payload_hash = %(payload_hash)s, content_version = %(content_version)s, owner_host = CONVERT(%(host)s USING utf8mb4)
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s;

-- name: take_end: the end of work without a lease, in a log that this transaction has locked
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'CONSUMED', fence = fence + 1, lease_expires_at = UTC_TIMESTAMP(6), attempts = attempts + 1,
    updated_at = UTC_TIMESTAMP(6), consumed_at = UTC_TIMESTAMP(6), payload_hash = %(payload_hash)s,
    content_version = %(content_version)s, owner_host = CONVERT(%(host)s USING utf8mb4)
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s;

-- name: take_failure: the same of work that failed
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'FAILED', lease_expires_at = UTC_TIMESTAMP(6), attempts = attempts + 1, updated_at = UTC_TIMESTAMP(6),
    payload_hash = %(payload_hash)s, content_version = %(content_version)s,
    owner_host = CONVERT(%(host)s USING utf8mb4), last_error = CONVERT(%(error)s USING utf8mb4)
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s;

-- name: stopped: counts copies that were stopped because their message is done, or held
{latest} UPDATE {of_keys} SET l.duplicates_stopped = l.duplicates_stopped + 1;

-- name: conflict: notes a copy with another content
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    conflicts = conflicts + 1, last_error = CONVERT(%(error)s USING utf8mb4)
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s;

-- name: fenced: which log the next four change, and only while nobody has taken it over
WHERE consumer_group = %(group)s AND topic = %(topic)s AND message_id = %(message_id)s
    AND owner_token = %(token)s AND state IN ('CONSUMING', 'EXPIRED');

-- name: renew: prolongs a lease
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'CONSUMING', lease_expires_at = UTC_TIMESTAMP(6) + INTERVAL %(lease)s MICROSECOND, updated_at = UTC_TIMESTAMP(6)
{fenced};

-- name: complete: the work is done; in the handler's transaction
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'CONSUMED', consumed_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6), lease_expires_at = UTC_TIMESTAMP(6)
{fenced};

-- name: fail: the handler gave up, and its transaction was rolled back
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'FAILED', last_error = CONVERT(%(error)s USING utf8mb4), updated_at = UTC_TIMESTAMP(6),
    lease_expires_at = UTC_TIMESTAMP(6)
{fenced};

-- name: give_back: a worker that stops releases a lease; an attempt if a handler had begun
{latest} UPDATE consumer_log FORCE INDEX (PRIMARY) SET
    state = 'EXPIRED', owner_token = NULL, attempts = GREATEST(attempts - %(not_entered)s, 0), updated_at = UTC_TIMESTAMP(6),
    lease_expires_at = UTC_TIMESTAMP(6)
{fenced};

-- name: open_work: a mark that is gone when the transaction is
SAVEPOINT backstop_work;

-- name: close_work: fails when the transaction is another one
RELEASE SAVEPOINT backstop_work;

-- name: books: this member's books as they are now
INSERT INTO consumer_books
    (consumer_group, member, life, counts, in_process, has_ended, started_at, written_at)
VALUES (%(group)s, %(member)s, %(life)s, %(counts)s, %(in_process)s, %(has_ended)s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    started_at = IF(life = VALUES(life), started_at, VALUES(started_at)), life = VALUES(life), counts = VALUES(counts),
    in_process = VALUES(in_process), has_ended = VALUES(has_ended), written_at = VALUES(written_at);

-- name: gone: members whose books nobody has written for long; read without a lock
SELECT member FROM consumer_books
WHERE consumer_group = %(group)s AND member <> %(member)s AND written_at < UTC_TIMESTAMP(6) - INTERVAL %(kept)s MICROSECOND;

-- name: forget: the books of one of them
DELETE FROM consumer_books WHERE consumer_group = %(group)s AND member = %(member)s;

-- name: version: which server it is
SELECT VERSION() AS version;

-- name: server_life: which life of which server and table this is; {status}: where MariaDB and MySQL keep the server's uptime
SELECT CONCAT_WS(' ', @@hostname, @@port, @@server_id, CAST(UNIX_TIMESTAMP() - s.VARIABLE_VALUE AS SIGNED), t.CREATE_TIME) AS life
FROM {status} s, information_schema.TABLES t
WHERE s.VARIABLE_NAME = 'Uptime' AND t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = 'consumer_log';
