-- Named queries on the control database: storing what is drained from the brokers' dead-letter queues.
-- Every transaction holds the run first, then the lock of the queue, so that two drains of one queue store by turns.

-- name: begin: the instant before which everything in the queue will be stored once its end was met; and are pages left open?
SELECT clock_timestamp(),
    EXISTS (SELECT FROM drain_batch WHERE broker = %(broker)s AND queue = %(queue)s AND acknowledged_at IS NULL);

-- name: lock_queue: until this transaction ends nobody else stores letters of this queue; a process that stands still in it loses it
SELECT set_config('idle_in_transaction_session_timeout', '60000', true), pg_advisory_xact_lock(hashtextextended(%(broker)s || chr(10) || %(queue)s, 6));

-- name: stored: letters that are stored already under these ids of the broker, and whether their page was acknowledged
SELECT l.broker_id, l.topic, l.consumer_group, l.message_id, l.died_at, l.batch_id, b.acknowledged_at, b.run_id = %(run_id)s
FROM dead_letter l JOIN drain_batch b USING (batch_id)
WHERE l.broker = %(broker)s AND l.queue = %(queue)s AND l.broker_id = ANY (%(ids)s::text[]);

-- name: insert_batch: one page, whose acknowledged_at comes after the broker's own acknowledgement; the broker has removed what
-- the pages of batches stored
WITH acknowledged AS (
    UPDATE drain_batch SET acknowledged_at = clock_timestamp() WHERE batch_id = ANY (%(batches)s::bigint[]) AND acknowledged_at IS NULL)
INSERT INTO drain_batch (run_id, broker, queue, letters) VALUES (%(run_id)s, %(broker)s, %(queue)s, %(letters)s)
RETURNING batch_id;

-- name: copy_letters: the rows of a page, in the order of the queue
COPY dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id, queue_id, queue_offset, queue_epoch,
    tag, partition_key, headers, content, content_bytes, aside, properties, cause_text, error, deliveries, died_at, invalid)
FROM STDIN WITH (FORMAT binary);

-- name: ids_of_batch: the numbers of letters whose contents are kept beside them
SELECT broker_id, dead_letter_id FROM dead_letter WHERE batch_id = %(batch_id)s AND aside;

-- name: copy_asides: large contents
COPY dead_letter_aside (dead_letter_id, content) FROM STDIN WITH (FORMAT binary);

-- name: mark_acknowledged: the broker has removed what these pages stored
UPDATE drain_batch SET acknowledged_at = clock_timestamp() WHERE batch_id = ANY (%(batches)s::bigint[]) AND acknowledged_at IS NULL;

-- name: mark_earlier: pages of the queue that a crash left open; nothing of them is in the broker any more
UPDATE drain_batch SET acknowledged_at = clock_timestamp()
WHERE broker = %(broker)s AND queue = %(queue)s AND acknowledged_at IS NULL AND stored_at < %(began)s;

-- name: mark_drained: everything that was in the queue at this instant is stored
INSERT INTO drain_mark (broker, queue, drained_until, run_id) VALUES (%(broker)s, %(queue)s, %(began)s, %(run_id)s)
ON CONFLICT (broker, queue) DO UPDATE SET drained_until = excluded.drained_until, run_id = excluded.run_id
WHERE drain_mark.drained_until < excluded.drained_until;
