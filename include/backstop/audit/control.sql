-- Invariants of the control database. Each query answers (subject, topic, message_id, consumer_group) of what breaks one:
-- ids, never a content. `day_from` and `day_to` bound what belongs to the audited day; `patient_since` is so long ago that
-- whatever was begun before it should have ended.

-- name: exhausted_delivery_has_case: every delivery that a run of the day found EXHAUSTED is before a person, or was
SELECT DISTINCT v.topic || '/' || v.message_id || '/' || v.consumer_group, v.topic, v.message_id, v.consumer_group
FROM verdict v JOIN run r USING (run_id)
WHERE r.finished_at >= %(day_from)s AND r.finished_at < %(day_to)s AND NOT r.dry_run
    AND r.state IN ('done', 'incomplete') AND v.verdict = 'EXHAUSTED' AND NOT EXISTS (
        SELECT 1 FROM case_member m
        WHERE m.topic = v.topic AND m.message_id = v.message_id AND m.consumer_group IN (v.consumer_group, '*'));

-- name: case_has_alert: every case that waits for a person, or was opened on the day, has an alert
SELECT c.case_id::text, c.topic, NULL::text, c.consumer_group
FROM case_file c
WHERE (c.state = 'open' OR c.opened_at >= %(day_from)s AND c.opened_at < %(day_to)s)
    AND NOT EXISTS (SELECT 1 FROM alert a WHERE a.case_id = c.case_id AND a.ended IS DISTINCT FROM 'given_up');

-- name: alert_was_told: no alert that somebody wants waits for long
-- One that was given up before anybody was told is not told. Where `alerts_wanted` is false, a person has said that none are.
SELECT a.alert_id::text, NULL::text, NULL::text, NULL::text
FROM alert a
WHERE %(alerts_wanted)s AND a.delivered_at IS NULL AND a.severity <> 'info' AND (
    a.ended IS NULL AND a.created_at < %(patient_since)s
    OR a.ended = 'given_up' AND a.ended_at >= %(day_from)s AND a.ended_at < %(day_to)s);

-- name: letters_acknowledged: every page of dead letters that was stored was acknowledged to its broker
SELECT b.batch_id::text, NULL::text, NULL::text, NULL::text
FROM drain_batch b WHERE b.acknowledged_at IS NULL AND b.stored_at < %(patient_since)s;

-- name: letters_decided: no dead letter stays undecided for long: it is replayed, discarded, waits until a time or for a person
SELECT d.dead_letter_id::text, d.topic, d.message_id, d.consumer_group
FROM dead_letter d
WHERE d.state = 'open' AND d.drained_at < %(patient_since)s
    AND d.case_id IS NULL AND coalesce(d.look_at, d.drained_at) < %(patient_since)s;

-- name: replay_has_request: every dead letter that is being replayed, or was on the day, has its request
SELECT d.dead_letter_id::text, d.topic, d.message_id, d.consumer_group
FROM dead_letter d
WHERE (d.state = 'replaying' OR d.state = 'replayed' AND d.closed_at >= %(day_from)s AND d.closed_at < %(day_to)s)
    AND NOT EXISTS (
        SELECT 1 FROM resend_request r
        WHERE r.topic = d.topic AND r.message_id = d.message_id AND r.send_number = d.send_number);

-- name: discard_has_proof: a machine discards a dead letter only with a proof that nothing was left to do
SELECT d.dead_letter_id::text, d.topic, d.message_id, d.consumer_group
FROM dead_letter d
WHERE d.state = 'discarded' AND d.closed_at >= %(day_from)s AND d.closed_at < %(day_to)s
    AND (d.proof IS NULL OR d.proof = '{}'::jsonb OR d.proof = 'null'::jsonb);

-- name: causes_count_letters: a cause's count is the number of its stored dead letters
SELECT c.cause_id::text, NULL::text, NULL::text, NULL::text
FROM cause c
LEFT JOIN (
    SELECT d.cause_id, count(*) AS letters FROM dead_letter d WHERE d.cause_id IS NOT NULL GROUP BY d.cause_id
) n USING (cause_id)
WHERE c.dead_letters <> coalesce(n.letters, 0);

-- name: discard_is_honoured: nothing was sent to a group after a person discarded its delivery
SELECT r.topic || '/' || r.message_id || '/' || r.send_number, r.topic, r.message_id, d.consumer_group
FROM delivery_decision d
JOIN resend_request r ON r.topic = d.topic AND r.message_id = d.message_id
WHERE r.updated_at >= %(day_from)s AND r.updated_at < %(day_to)s AND r.state IN ('sent', 'unknown')
    AND r.created_at > d.decided_at AND (r.groups IS NULL OR d.consumer_group = ANY (r.groups));

-- name: decisions_are_whole: no entry of the log of decisions was changed, taken away or put in between
SELECT d.entry::text, NULL::text, NULL::text, NULL::text
FROM (
    SELECT l AS line, l.entry, l.hash, l.previous,
        lag(l.entry, 1, (SELECT coalesce(max(c.entry), 0) FROM decision_checkpoint c)) OVER chain AS entry_before,
        lag(l.hash, 1, coalesce((SELECT c.hash FROM decision_checkpoint c ORDER BY c.entry DESC LIMIT 1), '')) OVER chain AS hash_before
    FROM decision_log l WINDOW chain AS (ORDER BY l.entry)
) d
WHERE d.entry <> d.entry_before + 1 OR d.previous <> d.hash_before OR d.hash <> decision_hash(d.line)
UNION ALL
-- Off the end: an earlier audit saw it, and nobody forgot it since.
SELECT s.entry::text, NULL, NULL, NULL
FROM decision_seen s
WHERE NOT EXISTS (SELECT FROM decision_log l WHERE (l.entry, l.hash) = (s.entry, s.hash))
    AND NOT EXISTS (SELECT FROM decision_checkpoint c WHERE c.entry > s.entry OR (c.entry, c.hash) = (s.entry, s.hash));

-- name: requests_end: no request stays claimed for long after its claim's deadline
SELECT r.request_id::text, r.topic, r.message_id, NULL::text
FROM resend_request r WHERE r.state = 'claimed' AND r.claim_deadline < %(patient_since)s;

-- name: withdrawals_end: no withdrawal of a message is left half done
SELECT w.topic || '/' || w.message_id, w.topic, w.message_id, NULL::text
FROM withdrawal w JOIN case_file c USING (case_id)
WHERE w.applied_at IS NULL AND w.begun_at < %(patient_since)s AND c.state <> 'open';

-- name: runs_end: no open run has been silent for long
SELECT r.run_id::text, NULL::text, NULL::text, NULL::text
FROM run r WHERE r.finished_at IS NULL AND r.heartbeat_at < %(patient_since)s;

-- name: progress_grows: within one epoch no offset of a group went back, unless a REGRESSION is recorded
SELECT concat_ws('/', p.consumer_group, p.topic, p.queue_id, p.epoch), p.topic, NULL::text, p.consumer_group
FROM (
    SELECT h.*, lag(h.next_offset) OVER (
        PARTITION BY h.consumer_group, h.broker, h.topic, h.queue_id, h.epoch ORDER BY h.recorded_at, h.run_id) AS before
    FROM progress_history h
    WHERE h.recorded_at >= %(day_from)s AND h.recorded_at < %(day_to)s) p
WHERE p.next_offset < p.before AND NOT EXISTS (
    SELECT 1 FROM anomaly a
    WHERE a.kind = 'REGRESSION' AND a.consumer_group = p.consumer_group AND a.topic = p.topic
        AND starts_with(a.subject, concat_ws('/', p.consumer_group, p.topic, p.queue_id::text, p.epoch) || '/')
        AND a.last_seen_at >= %(day_from)s)
GROUP BY p.consumer_group, p.topic, p.queue_id, p.epoch;

-- name: counts_add_up: of every promoted run of the day, what was promoted is what was judged, by verdict and in all
SELECT r.run_id::text, NULL::text, NULL::text, NULL::text
FROM run r
WHERE r.duty = 'reconcile' AND r.state = 'done' AND NOT r.dry_run
    AND r.finished_at >= %(day_from)s AND r.finished_at < %(day_to)s
    AND (EXISTS (
            SELECT 1 FROM (
                SELECT c.topic, c.consumer_group, c.verdict, sum(c.deliveries) AS deliveries FROM verdict_count c
                WHERE c.run_id = r.run_id GROUP BY 1, 2, 3) k
            FULL JOIN (
                SELECT s.topic, s.consumer_group, s.verdict, sum(s.deliveries) AS deliveries FROM staged_count s
                WHERE s.run_id = r.run_id AND s.stage = r.stage GROUP BY 1, 2, 3) j USING (topic, consumer_group, verdict)
            WHERE coalesce(k.deliveries, 0) <> coalesce(j.deliveries, 0))
        OR (SELECT count(*) FROM verdict v WHERE v.run_id = r.run_id) <> (
            SELECT coalesce(sum(c.deliveries), 0) FROM verdict_count c
            WHERE c.run_id = r.run_id AND c.verdict NOT IN ('CONFIRMED', 'WAITING')));

-- name: duties_ran: every watched duty over everything succeeded on the day
SELECT d.duty, NULL::text, NULL::text, NULL::text
FROM unnest(%(duties)s::text[]) AS d (duty)
-- Runs that found nothing to do are kept for a day. One that works over midnight is a success of both days.
WHERE %(day_to)s > %(as_of)s - interval '1 day' AND (SELECT min(started_at) FROM run) < %(day_from)s AND NOT EXISTS (
    SELECT 1 FROM run r
    WHERE r.duty = d.duty AND r.scope = '*' AND r.state = 'done' AND NOT r.dry_run AND NOT r.counts ? 'window_is_shut'
        AND r.finished_at >= %(day_from)s AND r.started_at < %(day_to)s);

-- name: broken_rows_do_not_grow: on no day are there many more new broken rows than in the week before
SELECT q.store, NULL::text, NULL::text, NULL::text
FROM quarantine q
WHERE q.first_seen_at >= %(day_from)s - interval '7 days' AND q.first_seen_at < %(day_to)s
GROUP BY q.store
HAVING count(*) FILTER (WHERE q.first_seen_at >= %(day_from)s) > greatest(
    20, 3 * count(*) FILTER (WHERE q.first_seen_at < %(day_from)s) / 7.0);

-- name: erased_stays_erased: what was erased on request has not come back with a later dead letter, a restore or an error
SELECT d.dead_letter_id::text, d.topic, d.message_id, d.consumer_group
FROM erasure e JOIN dead_letter d ON d.topic = e.topic AND d.message_id = e.message_id
WHERE e.done_at IS NOT NULL AND d.emptied_at IS NULL
UNION ALL
SELECT 'request ' || r.request_id, r.topic, r.message_id, NULL
FROM (SELECT DISTINCT topic, message_id FROM erasure WHERE done_at IS NOT NULL) e
-- Why one was not needed, came too late or waits is Backstop's own sentence, such as that the message was erased: it quotes no broker and
-- no database. But of one whose row its shard refused to hand out.
JOIN resend_request r ON r.topic = e.topic AND r.message_id = e.message_id AND r.error IS NOT NULL
    AND r.state NOT IN ('not_needed', 'superseded') AND (r.state <> 'open' OR starts_with(r.error, %(not_claimed)s));

-- name: erasures_end: no erasure is left half done
SELECT e.topic || '/' || e.message_id, e.topic, e.message_id, NULL::text
FROM erasure e WHERE e.done_at IS NULL AND e.begun_at < %(patient_since)s;
