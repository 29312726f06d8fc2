-- Named queries on the control database: batches that go out in steps. A topic's held requests are its live batch.

-- name: lock_topic: one run at a time decides about a topic's ramp; until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('backstop ramp ' || %(topic)s, 0));

-- name: topics: the topics in which something is held or a batch is live; paused ones wait
SELECT t.topic
FROM unnest(%(topics)s::text[]) AS t (topic)
WHERE NOT EXISTS (SELECT 1 FROM stopped_topic p WHERE p.topic IN (t.topic, '*'))
    AND (EXISTS (SELECT 1 FROM resend_request r WHERE r.topic = t.topic AND r.state = 'open' AND r.held)
        OR EXISTS (SELECT 1 FROM resend_batch b WHERE b.topic = t.topic AND b.state = 'ramping'))
ORDER BY t.topic;

-- name: close_a_persons: what waits of reconcile's requests for a step, and is a person's as one of a mass loss: a step of such would
-- send nothing and prove nothing
UPDATE resend_request r SET state = 'not_needed', error = %(why)s, updated_at = clock_timestamp(), closed_by_run = %(run_id)s
FROM (
    SELECT h.request_id FROM resend_request h
    WHERE h.topic = %(topic)s AND h.state = 'open' AND h.held AND h.requested_by = 'reconcile' AND EXISTS (
        SELECT FROM mass_loss_delivery l
        WHERE l.topic = h.topic AND l.message_id = h.message_id AND (h.groups IS NULL OR l.consumer_group = ANY (h.groups)))
    ORDER BY h.request_id
    FOR UPDATE OF h SKIP LOCKED) AS n
WHERE r.request_id = n.request_id;

-- name: live: the topic's live batch
SELECT batch_id, state, step, step_size, released, released_at, pardoned
FROM resend_batch WHERE topic = %(topic)s AND state IN ('ramping', 'stopped');

-- name: held: how many requests wait for their step, counted up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM resend_request r WHERE r.topic = %(topic)s AND r.state = 'open' AND r.held LIMIT %(limit)s) AS h;

-- name: begin: a new batch; nothing when there is a live one
INSERT INTO resend_batch (topic) VALUES (%(topic)s) ON CONFLICT (topic) WHERE state IN ('ramping', 'stopped') DO NOTHING
RETURNING batch_id;

-- name: release: the oldest held requests of the topic may be claimed; null batch: without one
UPDATE resend_request r SET held = false, batch_id = %(batch_id)s, step = %(step)s, error = NULL
FROM (
    SELECT h.request_id FROM resend_request h
    WHERE h.topic = %(topic)s AND h.state = 'open' AND h.held
    ORDER BY h.not_before, h.request_id
    LIMIT %(number)s
    FOR UPDATE) AS n
WHERE r.request_id = n.request_id;

-- name: first_step: what the canary came to
UPDATE resend_batch SET step_size = %(size)s, released = %(size)s, released_at = clock_timestamp() WHERE batch_id = %(batch_id)s;

-- name: next_step: the batch moves on, only from the step that was judged
UPDATE resend_batch
SET step = step + 1, step_size = %(size)s, released = released + %(size)s, released_at = clock_timestamp()
WHERE batch_id = %(batch_id)s AND step = %(step)s AND state = 'ramping';

-- name: close: the batch is over, only from the step that was judged
UPDATE resend_batch SET state = 'done', ended_at = clock_timestamp()
WHERE batch_id = %(batch_id)s AND step = %(step)s AND state = 'ramping';

-- name: still_ramping: the batch stands where it was judged; held until the transaction ends
SELECT 1 FROM resend_batch
WHERE batch_id = %(batch_id)s AND step = %(step)s AND state = 'ramping' AND pardoned = %(pardoned)s
FOR UPDATE;

-- name: stop: the batch sends nothing more until a person decides its case
UPDATE resend_batch SET state = 'stopped', case_id = %(case_id)s WHERE batch_id = %(batch_id)s;

-- name: hold_again: what a stopped batch had released and nobody has claimed yet waits as well
UPDATE resend_request SET held = true WHERE batch_id = %(batch_id)s AND state = 'open';

-- name: step: the requests of one step, in pages
SELECT r.request_id, r.topic, r.message_id, r.send_number, r.groups, r.state, r.error
FROM resend_request r
WHERE r.batch_id = %(batch_id)s AND r.step = %(step)s AND r.request_id > %(after)s
ORDER BY r.request_id
LIMIT %(limit)s;
