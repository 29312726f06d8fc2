-- Named queries on the control database: what people see of cases, and what their decisions change.

-- name: list: cases, the newest first, with how many members are still open
SELECT c.case_id, c.kind, c.topic, c.consumer_group, c.subject, c.severity, c.state, c.summary, c.evidence,
    c.opened_at, c.opened_by_run, c.last_seen_at, c.decision, c.decided_by, c.decided_at, c.why, c.closed_at, c.reopened,
    (SELECT count(*) FROM case_member m WHERE m.case_id = c.case_id) AS members,
    (SELECT count(*) FROM case_member m WHERE m.case_id = c.case_id AND m.settled_at IS NULL) AS open_members,
    (SELECT p.proposal_id FROM proposal p WHERE p.case_id = c.case_id AND p.ended_at IS NULL AND p.proposed_at >= c.opened_at
        AND (c.state = 'open' OR c.state = 'decided' AND c.decision = 'leave')) AS proposal_id
FROM case_file c
WHERE (%(case_id)s::bigint IS NULL OR c.case_id = %(case_id)s)
    AND (%(state)s::text IS NULL OR c.state = %(state)s)
    AND (%(topic)s::text IS NULL OR c.topic = %(topic)s)
    AND (%(kind)s::text IS NULL OR c.kind = %(kind)s)
ORDER BY c.case_id DESC
LIMIT %(limit)s;

-- name: members: a case's deliveries and the last verdict that a run stored of each
SELECT m.shard, m.topic, m.message_id, m.consumer_group, m.settled_at, v.verdict, v.reason, v.run_id
FROM case_member m
LEFT JOIN LATERAL (
    SELECT w.verdict, w.reason, w.run_id FROM verdict w
    WHERE w.topic = m.topic AND w.message_id = m.message_id AND w.consumer_group = m.consumer_group
    ORDER BY w.run_id DESC LIMIT 1) v ON true
WHERE m.case_id = %(case_id)s
ORDER BY m.settled_at NULLS FIRST, m.topic, m.message_id, m.consumer_group
LIMIT %(limit)s;

-- name: open_members: the deliveries that a decision is about; `late`: it came after the person was shown the case
SELECT shard, topic, message_id, consumer_group, coalesce(added_at > %(shown_at)s::timestamptz, false) AS late FROM case_member
WHERE case_id = %(case_id)s AND settled_at IS NULL
ORDER BY topic, message_id, consumer_group;

-- name: first_members: the first few of these
SELECT shard, topic, message_id, consumer_group FROM case_member
WHERE case_id = %(case_id)s AND settled_at IS NULL
ORDER BY topic, message_id, consumer_group
LIMIT %(limit)s;

-- name: split: takes open deliveries out of a case: those that were not named, or that came after it was shown
DELETE FROM case_member
WHERE case_id = %(case_id)s AND settled_at IS NULL
    AND CASE WHEN %(ids)s::text[] IS NULL THEN added_at > %(shown_at)s::timestamptz ELSE message_id <> ALL (%(ids)s::text[]) END
RETURNING shard, topic, message_id, consumer_group;

-- name: discard: a delivery that no later run may act on
INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, case_id, decided_by, why)
SELECT t.topic, t.message_id, t.consumer_group, 'discard', %(case_id)s, %(who)s, %(why)s
FROM unnest(%(topics)s::text[], %(ids)s::text[], %(groups)s::text[]) AS t (topic, message_id, consumer_group)
ON CONFLICT (topic, message_id, consumer_group) DO NOTHING;

-- name: unaccepted_epochs: present lives of a topic's queues that nobody has accepted; `told`: the case was seen since
SELECT q.broker, q.topic, q.queue_id, q.epoch, q.first_seen_at <= least(c.last_seen_at, %(shown_at)s::timestamptz) AS told
FROM queue_epoch q JOIN case_file c ON c.topic = q.topic
WHERE c.case_id = %(case_id)s AND q.present AND NOT q.accepted
ORDER BY q.broker, q.queue_id;

-- name: accept_epoch: copies of older lives follow the time rule from now on
UPDATE queue_epoch SET accepted = true
WHERE broker = %(broker)s AND topic = %(topic)s AND queue_id = %(queue_id)s AND epoch = %(epoch)s AND present;

-- name: state_drained: what went to this broker is judged by the time of the topic's present one
INSERT INTO drained_broker (topic, broker, case_id, stated_by, why) VALUES (%(topic)s, %(broker)s, %(case_id)s, %(who)s, %(why)s)
ON CONFLICT (topic, broker) DO NOTHING;

-- name: batch_goes_on: the stopped batch of this case may release its next step, whatever the last one came to
UPDATE resend_batch SET state = 'ramping', pardoned = step WHERE case_id = %(case_id)s AND state = 'stopped';

-- name: batch_given_up: the stopped batch of this case is over
UPDATE resend_batch SET state = 'given_up', ended_at = clock_timestamp() WHERE case_id = %(case_id)s AND state = 'stopped';

-- name: give_up_requests: what the batch held when it was shown is closed, and reconcile does not open it again
-- What was asked for since is held still, and begins a batch of its own. What a worker has claimed is marked: it closes if it comes back
-- unsent (see end and recover in resend/queries.sql), which lock in this order, too.
WITH held AS MATERIALIZED (
    SELECT r.request_id
    FROM resend_request r JOIN resend_batch b ON r.topic = b.topic
    WHERE b.case_id = %(case_id)s AND b.state = 'given_up'
        AND (r.state = 'open' AND (r.held OR r.batch_id = b.batch_id) OR r.state = 'claimed' AND r.batch_id = b.batch_id)
        AND (%(shown_at)s::timestamptz IS NULL OR r.created_at <= %(shown_at)s::timestamptz)
    ORDER BY r.request_id FOR NO KEY UPDATE OF r)
UPDATE resend_request r
SET state = CASE WHEN r.state = 'open' THEN 'not_needed' ELSE r.state END, held = false, given_up_by = %(case_id)s,
    given_up_groups = ARRAY(
        SELECT DISTINCT g FROM unnest(coalesce(r.given_up_groups, '{}') || coalesce(r.groups, %(groups)s::text[])) AS g ORDER BY g),
    updated_at = CASE WHEN r.state = 'open' THEN clock_timestamp() ELSE r.updated_at END,
    error = 'given up by ' || %(who)s || ': ' || left(%(why)s, 500)
FROM held
WHERE r.request_id = held.request_id AND r.state IN ('open', 'claimed')
RETURNING r.state;

-- name: withdrawal_begun: messages whose stubs are about to be voided
INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)
SELECT w.shard, w.topic, w.message_id, %(case_id)s, %(who)s, %(why)s
FROM unnest(%(shards)s::text[], %(topics)s::text[], %(ids)s::text[]) AS w (shard, topic, message_id)
ORDER BY w.shard, w.topic, w.message_id
-- Whoever began last is who the next decision of the case looks for.
ON CONFLICT (shard, topic, message_id) DO UPDATE SET
    case_id = excluded.case_id, decided_by = excluded.decided_by, why = excluded.why, begun_at = clock_timestamp()
WHERE withdrawal.applied_at IS NULL;

-- name: withdrawal_applied: their stubs are voided; another decision may have taken the row for forgotten meanwhile
INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, applied_at)
SELECT w.shard, w.topic, w.message_id, %(case_id)s, %(who)s, %(why)s, clock_timestamp()
FROM unnest(%(shards)s::text[], %(topics)s::text[], %(ids)s::text[]) AS w (shard, topic, message_id)
ORDER BY w.shard, w.topic, w.message_id
ON CONFLICT (shard, topic, message_id) DO UPDATE SET applied_at = excluded.applied_at WHERE withdrawal.applied_at IS NULL;

-- name: withdrawal_was_applied: what another decision had begun was applied; it stays that decision's
UPDATE withdrawal w SET applied_at = clock_timestamp()
FROM unnest(%(shards)s::text[], %(topics)s::text[], %(ids)s::text[]) AS r (shard, topic, message_id)
WHERE (w.shard, w.topic, w.message_id) = (r.shard, r.topic, r.message_id) AND w.applied_at IS NULL;

-- name: withdrawal_refused: their stubs were not voided
DELETE FROM withdrawal w
USING unnest(%(shards)s::text[], %(topics)s::text[], %(ids)s::text[]) AS r (shard, topic, message_id)
WHERE (w.shard, w.topic, w.message_id) = (r.shard, r.topic, r.message_id) AND w.applied_at IS NULL;

-- name: withdrawals_begun: what a decision of this case began to withdraw and never finished
SELECT shard, topic, message_id FROM withdrawal
WHERE case_id = %(case_id)s AND applied_at IS NULL
ORDER BY shard, topic, message_id;

-- name: add_note: what somebody has to say about a case
INSERT INTO case_note (case_id, written_by, note) SELECT case_id, %(who)s, %(note)s FROM case_file WHERE case_id = %(case_id)s;

-- name: notes: of one case, the oldest first
SELECT written_at, written_by, note FROM case_note WHERE case_id = %(case_id)s ORDER BY note_id;
