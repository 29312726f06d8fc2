-- Named queries on the control database: cases, their members, and the intention of a decision.

-- name: hold: the open case of a cause, locked
SELECT 1 FROM case_file c
WHERE c.kind = %(kind)s AND c.topic = %(topic)s AND c.consumer_group = %(group)s AND c.subject = %(subject)s AND c.state = 'open'
FOR UPDATE;

-- name: covered: members that a person has already dealt with, so that the same finding makes no second case
-- Left on purpose, or on their way because a decision asked for a resend that has not ended.
SELECT m.topic, m.message_id, m.consumer_group, m.case_id
FROM case_member m JOIN case_file c USING (case_id)
WHERE c.kind = %(kind)s AND c.topic = %(topic)s AND c.consumer_group = %(group)s AND c.subject = %(subject)s
    AND c.state = 'decided'
    AND (c.decision = 'leave' OR EXISTS (
        SELECT 1 FROM resend_request q
        WHERE q.topic = m.topic AND q.message_id = m.message_id AND q.state IN ('open', 'claimed')
            AND coalesce(q.asked_by ->> m.consumer_group, q.asked_by ->> '*', q.requested_by) = 'case ' || c.case_id))
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

-- name: by_hash: the next statement joins by hash: no statistics know what was staged a moment ago, and no key finds it
SELECT set_config('enable_nestloop', 'off', true);

-- name: by_any_plan: ... and those after it as the planner likes
SELECT set_config('enable_nestloop', 'on', true);

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

-- name: intend: a person's decision is recorded before it is applied; it also reopens a case that was left, and one of a key whose release is to be cut short
UPDATE case_file
SET state = 'open', decided_at = NULL, decision = %(action)s, decided_by = %(who)s, why = %(why)s,
    intention = jsonb_build_object(
        'once', %(once)s::text,
        'reached', coalesce(intention ->> 'once' = %(once)s AND (intention ->> 'reached')::boolean, false),
        'before', CASE WHEN state = 'decided' THEN jsonb_build_object('decision', decision, 'decided_by', decided_by, 'why', why,
            'decided_at', decided_at, 'until', clock_timestamp()) ELSE intention -> 'before' END)
WHERE case_id = %(case_id)s AND closed_at IS NULL
    AND (state = 'open' OR (state = 'decided' AND (decision = 'leave'
        OR (kind = 'key_parked' AND %(action)s IN ('discard_head', 'discard_key')))));

-- name: still_mine: the case is open, and no other decision was begun meanwhile; held until the transaction ends
SELECT coalesce((intention ->> 'reached')::boolean, false) FROM case_file
WHERE case_id = %(case_id)s AND state = 'open' AND decision = %(action)s AND decided_by = %(who)s AND why = %(why)s
    AND intention ->> 'once' IS NOT DISTINCT FROM %(once)s
FOR UPDATE;

-- name: is_closed: whether nothing of the case is left to decide
SELECT state = 'closed' FROM case_file WHERE case_id = %(case_id)s;

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

-- name: decided_discards: which of these a person decided: the log of decisions says so of their case, in that name, for that reason
SELECT d.place
FROM unnest(%(groups)s::text[], %(topics)s::text[], %(keys)s::text[], %(bys)s::text[], %(whys)s::text[], %(case_ids)s::bigint[])
    WITH ORDINALITY AS d (consumer_group, topic, ordering_key, said, why, case_id, place)
JOIN case_file c ON c.case_id = d.case_id AND c.kind = 'key_parked'
    AND (c.consumer_group, c.topic, c.subject) = (d.consumer_group, d.topic, d.ordering_key)
WHERE EXISTS (
    SELECT FROM decision_log l
    WHERE l.subject = 'case ' || d.case_id AND l.action IN ('begin to discard_head', 'begin to discard_key') AND l.why = d.why
        AND (l.who = d.said OR EXISTS (
            SELECT FROM proposal p
            -- Another approver may have ended what this one began.
            WHERE p.case_id = d.case_id AND 'begin to ' || p.action = l.action AND p.why = l.why AND lower(p.who) <> lower(l.who)
                AND p.who || ', approved by ' || l.who = d.said)));

-- name: keep_discard: a delivery that a person discarded while it was parked
INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, case_id, decided_by, why)
VALUES (%(topic)s, %(message_id)s, %(group)s, 'discard', (SELECT case_id FROM case_file WHERE case_id = %(case_id)s), %(by)s,
    coalesce(nullif(%(why)s, ''), 'discarded while it was parked'))
ON CONFLICT (topic, message_id, consumer_group) DO NOTHING;

-- name: end_proposal: what was proposed is applied; its content is with the message now
UPDATE proposal SET ended_at = clock_timestamp(), how = 'approved', content = NULL
WHERE proposal_id = %(proposal)s AND ended_at IS NULL;
