-- What was read of the producers' stubs for this run, before anything is built on it.
-- A stub that was set aside (quarantine) is staged without deliveries: what is wrong with it stops nothing else.

-- name: ids_not_empty: every stub has a shard, a topic and a message id
SELECT s.shard, s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.deliveries > 0 AND (s.shard = '' OR s.topic = '' OR s.message_id = '');

-- name: statuses_known: every stub's status is one that the contract names
SELECT s.topic, s.message_id, s.old_status, s.new_status
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.deliveries > 0
    AND (s.old_status NOT IN ('pending', 'confirmed', 'exhausted', 'voided', 'no_taker')
        OR s.new_status NOT IN ('pending', 'confirmed', 'exhausted', 'voided', 'no_taker'));

-- name: no_stub_twice: no message id is judged on two shards
SELECT s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.deliveries > 0
GROUP BY s.topic, s.message_id
HAVING count(*) > 1;

-- name: counts_not_negative: send numbers and deliveries are counted from 0
SELECT s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.send_count < 0 OR s.deliveries < 0;

-- name: reads_complete_or_named: a source that was not read to its end says why
SELECT r.subject
FROM {batch} AS run
JOIN staged_read AS r USING (run_id, stage)
WHERE NOT r.complete AND coalesce(r.detail, '') = '';

-- name: reads_counted: no source gave less than no rows
SELECT r.subject
FROM {batch} AS run
JOIN staged_read AS r USING (run_id, stage)
WHERE r.rows_read < 0 OR r.subject = '';

-- name: broken_rows_named: every row put into quarantine says where it lies and what it breaks
SELECT q.store, q.row_key, q.reason
FROM {batch} AS run
JOIN quarantine AS q ON q.first_run_id = run.run_id
WHERE q.store = '' OR q.row_key = '' OR q.reason = '';

-- name: broken_rows_not_judged: a stub that this run put into quarantine is not judged as well
-- IS TRUE keeps it one scan of either table: staged_stub has no key to be looked up by.
SELECT s.shard, s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.deliveries > 0 AND (('shard ' || s.shard, s.topic, s.message_id) IN (
        SELECT q.store, q.topic, q.message_id
        FROM {batch} AS broken_of
        JOIN quarantine AS q ON q.last_seen_at >= broken_of.started_at AND q.consumer_group IS NULL)) IS TRUE;
