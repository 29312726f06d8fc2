-- Named queries on the control database: cases, their members, and what people decided.

-- name: covered: members that a person has already dealt with, so that the same finding makes no second case
-- Left on purpose, or on their way because a decision asked for a resend that has not ended.
SELECT m.topic, m.message_id, m.consumer_group, m.case_id
FROM case_member m JOIN case_file c USING (case_id)
WHERE c.kind = %(kind)s AND c.topic = %(topic)s AND c.consumer_group = %(group)s AND c.subject = %(subject)s
    AND c.state = 'decided'
    AND (c.decision = 'leave' OR EXISTS (
        SELECT 1 FROM resend_request q
        WHERE q.topic = m.topic AND q.message_id = m.message_id AND q.state IN ('open', 'claimed')
            AND q.requested_by = 'case ' || c.case_id))
    AND (m.topic, m.message_id, m.consumer_group)
        IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(groups)s::text[]));

-- name: left_without_members: a case of this cause that has no members and was left on purpose
SELECT c.case_id FROM case_file c
WHERE c.kind = %(kind)s AND c.topic = %(topic)s AND c.consumer_group = %(group)s AND c.subject = %(subject)s
    AND c.state = 'decided' AND c.decision = 'leave'
    AND NOT EXISTS (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id)
ORDER BY c.case_id DESC
LIMIT 1;

-- name: open: a new case, or the open one of the same cause, which it joins
INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary, evidence, opened_by_run)
VALUES (%(kind)s, %(topic)s, %(group)s, %(subject)s, %(severity)s, %(summary)s, %(evidence)s::jsonb, %(run_id)s)
ON CONFLICT (kind, topic, consumer_group, subject) WHERE state = 'open' DO UPDATE SET
    last_seen_at = clock_timestamp(), summary = excluded.summary, evidence = case_file.evidence || excluded.evidence,
    severity = CASE WHEN excluded.severity = 'critical' THEN excluded.severity ELSE case_file.severity END
RETURNING case_id, reopened;

-- name: alert_worse: a case that people were told of as less than critical is critical now; told once
INSERT INTO alert (case_id, dedup_key, severity, title, body)
SELECT %(case_id)s, a.dedup_key || '/critical', %(severity)s, %(title)s, %(body)s
FROM alert a
WHERE a.dedup_key = %(thread)s AND a.severity <> 'critical'
ON CONFLICT (dedup_key) DO NOTHING;

-- name: reopen: the last case of a cause that has no open one is open again; when it was opened first stays in its evidence
UPDATE case_file c
SET state = 'open', reopened = c.reopened + 1, opened_at = clock_timestamp(), last_seen_at = clock_timestamp(),
    closed_at = NULL, decided_at = NULL, decision = NULL, decided_by = NULL, why = NULL, intention = NULL,
    evidence = jsonb_build_object('first_opened_at', c.opened_at) || c.evidence
WHERE c.state <> 'open' AND c.case_id = (
        SELECT max(l.case_id) FROM case_file l
        WHERE l.kind = %(kind)s AND l.topic = %(topic)s AND l.consumer_group = %(group)s AND l.subject = %(subject)s)
    AND NOT EXISTS (
        SELECT 1 FROM case_file o
        WHERE o.kind = %(kind)s AND o.topic = %(topic)s AND o.consumer_group = %(group)s AND o.subject = %(subject)s
            AND o.state = 'open')
RETURNING c.case_id, c.reopened;

-- name: add_members: deliveries of a case, each once; one that had settled is open again
INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group) VALUES %s
ON CONFLICT (case_id, topic, message_id, consumer_group) DO UPDATE SET settled_at = NULL, added_at = clock_timestamp()
WHERE case_member.settled_at IS NOT NULL;

-- name: alert: tells people, once for each key
INSERT INTO alert (case_id, dedup_key, severity, title, body)
VALUES (%(case_id)s, %(dedup_key)s, %(severity)s, %(title)s, %(body)s)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: settle_by_run: members whose message this run found closed
UPDATE case_member m SET settled_at = clock_timestamp()
FROM case_file c, staged_stub s JOIN run r ON r.run_id = s.run_id AND r.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.topic = m.topic AND s.message_id = m.message_id AND s.new_status IN ('confirmed', 'voided')
    AND c.case_id = m.case_id AND c.closed_at IS NULL AND m.settled_at IS NULL;

-- name: settle_discarded: members whose delivery a person discarded
UPDATE case_member m SET settled_at = clock_timestamp()
FROM case_file c
WHERE c.case_id = m.case_id AND c.closed_at IS NULL AND m.settled_at IS NULL
    AND EXISTS (
        SELECT 1 FROM delivery_decision d
        WHERE d.topic = m.topic AND d.message_id = m.message_id AND d.consumer_group = m.consumer_group);

-- name: settle_members: members that were seen to be done
UPDATE case_member m SET settled_at = clock_timestamp()
FROM case_file c
WHERE c.case_id = m.case_id AND c.closed_at IS NULL AND m.settled_at IS NULL
    AND (m.topic, m.message_id, m.consumer_group)
        IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(groups)s::text[]));

-- name: lock_cases_with_all_settled: those that may be over; what joins one of them meanwhile is seen by the statement after this
SELECT c.case_id
FROM case_file c
WHERE c.closed_at IS NULL
    AND (EXISTS (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id) OR c.kind = 'dead_letters')
    AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id AND d.state IN ('open', 'replaying'))
    AND NOT EXISTS (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id AND m.settled_at IS NULL)
ORDER BY c.case_id
FOR UPDATE;

-- name: close_settled: cases all of whose members have settled; a dead letter may be without a member, because it has no id
UPDATE case_file c
SET state = 'closed', closed_at = clock_timestamp()
WHERE c.closed_at IS NULL AND c.case_id = ANY (%(cases)s)
    AND (EXISTS (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id) OR c.kind = 'dead_letters')
    AND NOT EXISTS (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id AND d.state IN ('open', 'replaying'))
    AND NOT EXISTS (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id AND m.settled_at IS NULL)
RETURNING c.case_id, c.kind, c.topic, c.consumer_group, c.decision, c.reopened;

-- name: lock_cases_left: cases of dead letters that may have nothing undecided but what a person left; as lock_cases_with_all_settled
SELECT c.case_id
FROM case_file c
WHERE c.kind = 'dead_letters' AND c.state = 'open' AND c.intention IS NULL
    AND EXISTS (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id AND d.state = 'open')
    AND NOT EXISTS (
        SELECT 1 FROM dead_letter d
        WHERE d.case_id = c.case_id AND (d.state = 'open' AND d.left_in_case IS NULL OR d.state = 'replaying'))
ORDER BY c.case_id
FOR UPDATE;

-- name: leave_rest: ... they are left now, as the last answer to leave said
UPDATE case_file c
SET state = 'decided', decision = 'leave', decided_at = clock_timestamp(), decided_by = l.said ->> 'by', why = l.said ->> 'why'
FROM (
    SELECT o.case_id, (
        SELECT e.said FROM jsonb_array_elements(o.evidence -> 'decisions') WITH ORDINALITY AS e (said, place)
        WHERE e.said ->> 'action' = 'leave' ORDER BY e.place DESC LIMIT 1) AS said
    FROM case_file o WHERE o.case_id = ANY (%(cases)s)) l
WHERE c.case_id = l.case_id AND l.said IS NOT NULL AND c.state = 'open' AND c.intention IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM dead_letter d
        WHERE d.case_id = c.case_id AND (d.state = 'open' AND d.left_in_case IS NULL OR d.state = 'replaying'))
RETURNING c.case_id, c.kind, c.topic, c.reopened;

-- name: of_kind: cases of a kind that are not closed, and of which groups
SELECT c.case_id, c.kind, c.topic, c.consumer_group, c.subject, c.reopened
FROM case_file c
WHERE c.kind = %(kind)s AND c.closed_at IS NULL
    AND (%(groups)s::text[] IS NULL OR c.consumer_group = ANY(%(groups)s::text[]));

-- name: close: the cause is gone
UPDATE case_file SET state = 'closed', closed_at = clock_timestamp() WHERE case_id = %(case_id)s AND closed_at IS NULL;

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

-- name: cases_of_message: the cases that a message is in
SELECT DISTINCT m.case_id, m.consumer_group, m.settled_at
FROM case_member m
WHERE m.topic = %(topic)s AND m.message_id = %(message_id)s
ORDER BY m.case_id, m.consumer_group;

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

-- name: intend: a person's decision is recorded before it is applied; it also reopens a case that was left
UPDATE case_file
SET state = 'open', decided_at = NULL, decision = %(action)s, decided_by = %(who)s, why = %(why)s,
    intention = jsonb_build_object(
        'once', %(once)s::text,
        'reached', coalesce(intention ->> 'once' = %(once)s AND (intention ->> 'reached')::boolean, false),
        'before', CASE WHEN state = 'decided' THEN jsonb_build_object('decision', decision, 'decided_by', decided_by, 'why', why,
            'decided_at', decided_at, 'until', clock_timestamp()) ELSE intention -> 'before' END)
WHERE case_id = %(case_id)s AND closed_at IS NULL
    AND (state = 'open' OR (state = 'decided' AND decision = 'leave'));

-- name: still_mine: the case is open, and no other decision was begun meanwhile; held until the transaction ends
SELECT coalesce((intention ->> 'reached')::boolean, false) FROM case_file
WHERE case_id = %(case_id)s AND state = 'open' AND decision = %(action)s AND decided_by = %(who)s AND why = %(why)s
    AND intention ->> 'once' IS NOT DISTINCT FROM %(once)s
FOR UPDATE;

-- name: reached: from here on the decision may have changed a producer's database
UPDATE case_file SET intention = intention || '{"reached": true}' WHERE case_id = %(case_id)s;

-- name: begun: whether this very answer may have changed something already, or was proposed
-- By this person alone: another may have written the same name of an answer.
SELECT coalesce(intention ->> 'once' = %(once)s AND (intention ->> 'reached')::boolean
        AND (decided_by = %(who)s OR right(decided_by, length(%(who)s) + 14) = ', approved by ' || %(who)s), false)
    OR EXISTS (
        SELECT FROM jsonb_array_elements(evidence -> 'decisions') AS d (said)
        WHERE d.said ->> 'once' = %(once)s
            AND (d.said ->> 'by' = %(who)s OR right(d.said ->> 'by', length(%(who)s) + 14) = ', approved by ' || %(who)s))
    OR EXISTS (SELECT FROM proposal p WHERE p.case_id = case_file.case_id AND p.who = %(who)s AND p.options ->> 'once' = %(once)s)
FROM case_file WHERE case_id = %(case_id)s;

-- name: record_decision: what a decision did, kept with the case
UPDATE case_file
SET evidence = jsonb_set(evidence, '{decisions}', coalesce(evidence -> 'decisions', '[]') || %(entry)s::jsonb)
WHERE case_id = %(case_id)s;

-- name: decided: nothing of the case waits for a person any more
UPDATE case_file SET state = 'decided', decided_at = clock_timestamp(), intention = NULL WHERE case_id = %(case_id)s;

-- name: stays_open: the decision did not cover everything, or nothing: the case waits for another
UPDATE case_file SET decision = NULL, decided_by = NULL, why = NULL, intention = NULL WHERE case_id = %(case_id)s;

-- name: put_back: the decision that an intention replaced stands again, unless something has joined the case since
UPDATE case_file
SET state = 'decided', decision = intention #>> '{before,decision}', decided_by = intention #>> '{before,decided_by}',
    why = intention #>> '{before,why}', decided_at = (intention #>> '{before,decided_at}')::timestamptz, intention = NULL
WHERE case_id = %(case_id)s AND last_seen_at <= (intention #>> '{before,until}')::timestamptz;

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

-- name: give_up_requests: what the batch held is closed, and reconcile does not open it again
UPDATE resend_request r
SET state = 'not_needed', held = false, given_up_by = %(case_id)s,
    given_up_groups = ARRAY(
        SELECT DISTINCT g FROM unnest(coalesce(r.given_up_groups, '{}') || coalesce(r.groups, %(groups)s::text[])) AS g ORDER BY g),
    updated_at = clock_timestamp(),
    error = 'given up by ' || %(who)s || ': ' || left(%(why)s, 500)
FROM resend_batch b
WHERE b.case_id = %(case_id)s AND b.state = 'given_up' AND r.topic = b.topic AND r.state = 'open'
    AND (r.held OR r.batch_id = b.batch_id);

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

-- name: end_proposal: what was proposed is applied; its content is with the message now
UPDATE proposal SET ended_at = clock_timestamp(), how = 'approved', content = NULL
WHERE proposal_id = %(proposal)s AND ended_at IS NULL;
