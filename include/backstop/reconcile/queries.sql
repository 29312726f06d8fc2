-- Named queries on the control database: staging and promotion.

-- name: stage_count: how many deliveries of a topic and group got a verdict
INSERT INTO staged_count (run_id, stage, topic, consumer_group, verdict, deliveries, eligible, newly)
VALUES (%(run_id)s, %(stage)s, %(topic)s, %(consumer_group)s, %(verdict)s, %(deliveries)s, %(eligible)s, %(newly)s);

-- name: stage_read: whether a store or broker was read whole
INSERT INTO staged_read (run_id, stage, subject, rows_read, complete, detail, lineage, topics, read_at)
VALUES (%(run_id)s, %(stage)s, %(subject)s, %(rows_read)s, %(complete)s, %(detail)s, %(lineage)s, %(topics)s, %(read_at)s);

-- name: scanned_stores: whose logs the run scanned, the lineage that they had before, and the topics that rest on it (all of the
-- run's where a version before revision 0053 staged it)
SELECT r.subject, r.lineage, coalesce(r.topics, ARRAY(SELECT DISTINCT s.topic FROM staged_stub s WHERE s.run_id = r.run_id))
FROM staged_read r JOIN run ON run.run_id = r.run_id AND run.stage = r.stage
WHERE r.run_id = %(run_id)s AND r.lineage IS NOT NULL;

-- name: leave_topics: nothing of these topics is promoted
WITH stubs AS (
    DELETE FROM staged_stub WHERE run_id = %(run_id)s AND topic = ANY (%(topics)s::text[])
), counts AS (
    DELETE FROM staged_count WHERE run_id = %(run_id)s AND topic = ANY (%(topics)s::text[])
)
DELETE FROM staged_verdict WHERE run_id = %(run_id)s AND topic = ANY (%(topics)s::text[]);

-- name: lapse_confirmations: what rests on work that was found done is judged again
DELETE FROM staged_stub
WHERE run_id = %(run_id)s AND topic = ANY (%(topics)s::text[]) AND new_status IN ('confirmed', 'exhausted')
    AND new_status <> old_status;

-- name: incomplete_reads: what the run could not read
SELECT r.subject, coalesce(r.detail, 'no reason given')
FROM staged_read r JOIN run ON run.run_id = r.run_id AND run.stage = r.stage
WHERE r.run_id = %(run_id)s AND NOT r.complete
ORDER BY r.subject;

-- name: save_phases: seconds of each phase, added to those of phases before
UPDATE run SET phases = phases || %(phases)s::jsonb WHERE run_id = %(run_id)s;

-- name: quarantine: broken rows, once for each (store, row, reason)
INSERT INTO quarantine (store, row_key, reason, topic, message_id, consumer_group, first_run_id) VALUES %s
ON CONFLICT (store, row_key, reason) DO UPDATE SET last_seen_at = clock_timestamp();

-- name: set_aside: broken stubs that this run met, how long ago an earlier run met them first, and for which groups a person discarded
-- the delivery; a log names its group. As much of a text is read as shows that no case can list it.
SELECT substr(q.store, length('shard ') + 1), q.row_key, q.reason, left(coalesce(q.topic, ''), %(topic_bytes)s + 1),
    left(coalesce(q.message_id, ''), %(id_bytes)s + 1), r.as_of - f.as_of, ARRAY(
        SELECT d.consumer_group FROM delivery_decision d WHERE d.topic = q.topic AND d.message_id = q.message_id)
FROM quarantine q JOIN run f ON f.run_id = q.first_run_id JOIN run r ON r.run_id = %(run_id)s
WHERE q.last_seen_at >= r.started_at AND q.consumer_group IS NULL AND f.as_of < r.as_of
ORDER BY q.store, q.row_key;

-- name: promote_verdicts: what the run found of deliveries that are neither CONFIRMED nor WAITING
INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, case_kind,
    next_look_at, evidence)
SELECT s.run_id, s.shard, s.topic, s.message_id, s.consumer_group, s.verdict, s.reason, s.eligible, s.send_count,
    s.case_kind, s.next_look_at, s.evidence
FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.verdict NOT IN ('CONFIRMED', 'WAITING')
ON CONFLICT DO NOTHING;

-- name: close_deliveries: deliveries that the run judged and that are not open any more, or not owed
DELETE FROM open_delivery o
USING staged_stub s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND o.topic = s.topic AND o.message_id = s.message_id AND o.run_id <= s.run_id AND NOT EXISTS (
    SELECT 1 FROM staged_verdict v
    WHERE v.run_id = s.run_id AND v.stage = s.stage AND v.topic = o.topic AND v.message_id = o.message_id
        AND v.consumer_group = o.consumer_group AND v.verdict NOT IN ('CONFIRMED', 'WAITING', 'VOIDED'));

-- name: open_deliveries: the present verdict of each delivery that is open
INSERT INTO open_delivery AS o (topic, message_id, consumer_group, shard, verdict, reason, eligible, case_kind, run_id, next_look_at)
SELECT s.topic, s.message_id, s.consumer_group, s.shard, s.verdict, s.reason, s.eligible, s.case_kind, s.run_id, s.next_look_at
FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.verdict NOT IN ('CONFIRMED', 'WAITING', 'VOIDED')
    -- What a person withdrew since it was judged is looked at by no later run.
    AND NOT EXISTS (
        SELECT FROM withdrawal w
        WHERE w.shard = s.shard AND w.topic = s.topic AND w.message_id = s.message_id AND w.applied_at IS NOT NULL)
ON CONFLICT (topic, message_id, consumer_group) DO UPDATE SET
    shard = excluded.shard, verdict = excluded.verdict, reason = excluded.reason, eligible = excluded.eligible,
    case_kind = excluded.case_kind, run_id = excluded.run_id, judged_at = excluded.judged_at, next_look_at = excluded.next_look_at,
    since = CASE WHEN o.verdict = excluded.verdict THEN o.since ELSE excluded.since END
WHERE o.run_id <= excluded.run_id;

-- name: forget_unowned: open deliveries to groups that no topic names any more
DELETE FROM open_delivery o
USING (
    SELECT DISTINCT t.topic, t.consumer_group FROM tally t WHERE t.subject = 'delivery'
    EXCEPT SELECT * FROM unnest(%(topics)s::text[], %(groups)s::text[])
) gone
WHERE o.topic = gone.topic AND o.consumer_group = gone.consumer_group;

-- name: promote_counts: every verdict's count, once; what became confirmed also by the hour, for the console
WITH counted AS (
    INSERT INTO verdict_count (run_id, topic, consumer_group, verdict, deliveries, eligible, newly)
    SELECT s.run_id, s.topic, s.consumer_group, s.verdict, s.deliveries, s.eligible, s.newly
    FROM staged_count s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
    WHERE s.run_id = %(run_id)s
    ON CONFLICT DO NOTHING
    RETURNING topic, consumer_group, verdict, newly
)
INSERT INTO delivery_hour AS h (hour, topic, consumer_group, verdict, deliveries)
SELECT date_trunc('hour', clock_timestamp(), 'UTC'), c.topic, c.consumer_group, c.verdict, c.newly
FROM counted c WHERE c.verdict = 'CONFIRMED' AND c.newly > 0
ON CONFLICT (hour, topic, consumer_group, verdict) DO UPDATE SET deliveries = h.deliveries + excluded.deliveries;

-- name: counted_again: what earlier runs saw newly confirmed and have not brought to their shards is judged, and counted, again
UPDATE verdict_count c SET newly = 0
FROM run r
WHERE r.run_id = c.run_id AND r.duty = 'reconcile' AND r.run_id <> %(run_id)s AND c.newly > 0
    AND EXISTS (SELECT FROM staged_stub s WHERE s.run_id = r.run_id AND s.stage = r.stage)
    AND (r.finished_at IS NOT NULL OR NOT EXISTS (SELECT FROM duty_lease l WHERE l.run_id = r.run_id));

-- name: blast: for each topic and group with eligible deliveries, what the blast radius is measured by
-- A delivery whose next number somebody already asked for is decided; only reconcile's own requests count as its past, and lists of ids.
-- Of runs beside one another only the first one's confirmed deliveries count: the others may have seen the same ones.
WITH mine AS (
    SELECT s.topic, s.consumer_group, count(*) FILTER (WHERE q.request_id IS NULL AND NOT EXISTS (
        SELECT 1 FROM resend_request g
        WHERE g.topic = s.topic AND g.message_id = s.message_id AND g.given_up_by IS NOT NULL
            AND g.given_up_groups && ARRAY[s.consumer_group, '*'])) AS eligible
    FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
    LEFT JOIN resend_request q ON q.topic = s.topic AND q.message_id = s.message_id
        AND q.send_number = s.send_count::bigint + 1
        AND q.state NOT IN ('not_needed', 'superseded')
        AND (q.groups IS NULL OR s.consumer_group = ANY (q.groups))
    WHERE s.run_id = %(run_id)s AND s.eligible
    GROUP BY s.topic, s.consumer_group
)
SELECT m.topic, m.consumer_group, m.eligible,
    (SELECT count(*) FROM resend_request q
     CROSS JOIN LATERAL (SELECT coalesce(q.asked_by ->> m.consumer_group, q.asked_by ->> '*', q.requested_by) AS who) AS a
     WHERE q.topic = m.topic AND (q.groups IS NULL OR m.consumer_group = ANY (q.groups))
         AND (a.who = 'reconcile' OR starts_with(a.who, 'person ')) AND q.state NOT IN ('not_needed', 'superseded')
         AND q.created_at >= %(as_of)s - make_interval(secs => windows.seconds)) AS asked_before,
    (SELECT coalesce(sum(c.newly), 0) FROM verdict_count c JOIN run r USING (run_id)
     WHERE c.topic = m.topic AND c.consumer_group = m.consumer_group
         AND NOT EXISTS (
             SELECT 1 FROM run o JOIN verdict_count p ON p.run_id = o.run_id
             WHERE p.topic = c.topic AND p.consumer_group = c.consumer_group AND p.newly > 0 AND o.run_id < r.run_id
                 AND o.as_of >= %(as_of)s - make_interval(secs => windows.seconds)
                 AND coalesce(o.finished_at, 'infinity') > r.as_of)
         AND r.as_of >= %(as_of)s - make_interval(secs => windows.seconds)) AS newly_confirmed
FROM mine m
JOIN unnest(%(topics)s::text[], %(groups)s::text[], %(seconds)s::float8[]) AS windows (topic, consumer_group, seconds)
    ON windows.topic = m.topic AND windows.consumer_group = m.consumer_group
WHERE m.eligible > 0
ORDER BY 1, 2;

-- name: eligible: each eligible delivery (of some topics and groups, or of all) and the standing of the message's other groups, message by
-- message; when logs were touched, in microseconds
SELECT s.shard, s.topic, s.message_id, s.send_count, s.reason, s.verdict, s.consumer_group,
    (SELECT coalesce(jsonb_object_agg(
        o.consumer_group, jsonb_build_array(o.verdict, (o.evidence ->> 'log_updated_at')::bigint)), '{}') FROM staged_verdict o
     WHERE o.run_id = s.run_id AND o.stage = s.stage AND o.shard = s.shard AND o.topic = s.topic
         AND o.message_id = s.message_id AND o.consumer_group <> s.consumer_group) AS others,
    -- No copy can be in the broker: no number was handed out, or the broker refused each.
    coalesce(s.send_count <= (s.evidence ->> 'refusals')::integer, false) AS never_sent,
    (s.evidence ->> 'log_updated_at')::bigint AS log_updated_at,
    -- No run sends it, however small the part is that it meets.
    EXISTS (
        SELECT FROM mass_loss_delivery l
        WHERE l.topic = s.topic AND l.message_id = s.message_id AND l.consumer_group = s.consumer_group) AS is_a_persons
FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.eligible
    AND (%(topics)s::text[] IS NULL
        OR (s.topic, s.consumer_group) IN (SELECT * FROM unnest(%(topics)s::text[], %(groups)s::text[])))
    -- What a person gave up is asked for again by a person only.
    AND NOT EXISTS (
        SELECT 1 FROM resend_request g
        WHERE g.topic = s.topic AND g.message_id = s.message_id AND g.given_up_by IS NOT NULL
            AND g.given_up_groups && ARRAY[s.consumer_group, '*'])
ORDER BY s.topic, s.message_id, s.consumer_group;

-- name: eligible_observed: messages of observed topics that a run promoted as eligible, but for a mass loss, in pages by key
-- Wider than mass_loss_delivery: what a person answered of one since the run judged is not asked about again, either.
SELECT DISTINCT v.shard, v.topic, v.message_id
FROM verdict v
WHERE v.run_id = %(run_id)s AND v.eligible AND v.topic = ANY (%(topics)s::text[])
    AND (v.topic, v.message_id) > (%(topic)s, %(message_id)s)
    AND NOT EXISTS (
        SELECT 1 FROM case_member m JOIN case_file c USING (case_id)
        WHERE c.kind = 'mass_loss' AND c.closed_at IS NULL AND m.topic = v.topic AND m.message_id = v.message_id
            AND m.consumer_group = v.consumer_group)
ORDER BY v.topic, v.message_id
LIMIT %(limit)s;

-- name: untaken: by topic, how many messages the run sets aside because no group owes them, some of their ids, and by which settings
-- that was judged
SELECT s.topic, count(*), (array_agg(s.message_id ORDER BY s.message_id))[1:5], run.policy_version
FROM staged_stub s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.new_status = 'no_taker' AND s.old_status <> 'no_taker'
GROUP BY s.topic, run.policy_version
ORDER BY s.topic;

-- name: note_untaken: the topic has messages that no group took, and these are its groups (empty: not known);
-- a look that is still to come stays so
INSERT INTO no_taker (topic, since, groups_hash, run_id) VALUES (%(topic)s, %(since)s, %(groups_hash)s, %(run_id)s)
ON CONFLICT (topic) DO UPDATE SET run_id = excluded.run_id,
    groups_hash = CASE WHEN excluded.groups_hash = '' THEN '' ELSE no_taker.groups_hash END;

-- name: topics_untaken: topics with messages that no group took, since when, and which groups they had when that was looked at last
SELECT topic, since, groups_hash, run_id FROM no_taker
WHERE %(topics)s::text[] IS NULL OR topic = ANY (%(topics)s::text[])
ORDER BY topic;

-- name: looked_at_untaken: ... they have these groups now, and some of the messages are still nobody's; what a run has set aside
-- and a shard has not heard of yet is still to be looked at
UPDATE no_taker SET groups_hash = %(groups_hash)s WHERE topic = %(topic)s AND run_id = %(noted_by)s
    AND NOT EXISTS (SELECT FROM staged_stub s JOIN run r USING (run_id, stage)
        WHERE s.topic = %(topic)s AND s.new_status = 'no_taker');

-- name: none_untaken: ... none is left, and none is on its way
DELETE FROM no_taker WHERE topic = %(topic)s AND run_id = %(noted_by)s
    AND NOT EXISTS (SELECT FROM staged_stub s JOIN run r USING (run_id, stage)
        WHERE s.topic = %(topic)s AND s.new_status = 'no_taker');

-- name: count_findings: how many deliveries need a person, by case
SELECT s.case_kind, s.topic, s.consumer_group, count(*)
FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.case_kind IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM case_member m JOIN case_file c USING (case_id)
        WHERE m.topic = s.topic AND m.message_id = s.message_id AND m.consumer_group = s.consumer_group
            AND c.kind = s.case_kind AND greatest(c.decided_at, m.settled_at) > run.as_of)
GROUP BY 1, 2, 3;

-- name: findings: they
-- What was decided of them since the run began, or seen to be done, it could not know: the next run finds what is left.
SELECT s.case_kind, s.topic, s.consumer_group, s.shard, s.message_id
FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.case_kind IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM case_member m JOIN case_file c USING (case_id)
        WHERE m.topic = s.topic AND m.message_id = s.message_id AND m.consumer_group = s.consumer_group
            AND c.kind = s.case_kind AND greatest(c.decided_at, m.settled_at) > run.as_of)
ORDER BY 1, 2, 3;

-- name: refused_for_good: open deliveries whose resend was refused in a way that asking again cannot help, by the broker or because
-- the content was erased
SELECT DISTINCT s.topic, s.consumer_group, s.shard, s.message_id
FROM staged_verdict s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
JOIN resend_request q ON q.topic = s.topic AND q.message_id = s.message_id
    AND (q.groups IS NULL OR s.consumer_group = ANY (q.groups))
WHERE s.run_id = %(run_id)s AND s.verdict <> 'VOIDED'
    AND q.state IN ('refused', 'not_needed') AND starts_with(q.error, %(for_good)s)
    -- A person who answered the case has allowed another send since: only a refusal after that answer is a new one.
    AND NOT EXISTS (
        SELECT 1 FROM case_member m JOIN case_file c USING (case_id)
        WHERE m.topic = s.topic AND m.message_id = s.message_id AND m.consumer_group = s.consumer_group
            AND c.kind = 'refused' AND c.state <> 'open' AND c.decision = 'raise' AND c.decided_at >= q.updated_at)
ORDER BY 1, 2;

-- name: begin_promotion: the control database's part is done; the shards follow
UPDATE run SET state = 'promoting' WHERE run_id = %(run_id)s;

-- name: limit_silence: this session is ended, and what it locks is free, once its transaction was silent for so long
SELECT set_config('idle_in_transaction_session_timeout', (extract(epoch FROM %(limit)s::interval) * 1000)::bigint::text, true);

-- name: staged_stubs: what was decided of one shard's stubs, in the order of the shard's primary key
-- A chunk of neighbours meets each page of that index once: sorting them here costs less than that saves there.
SELECT s.topic, s.message_id, s.old_status, s.new_status, s.send_count, s.next_look_at
FROM staged_stub s JOIN run ON run.run_id = s.run_id AND run.stage = s.stage
WHERE s.run_id = %(run_id)s AND s.shard = %(shard)s
ORDER BY s.topic, s.message_id;

-- name: staged_shards: the shards that a run's promotion still has to reach
-- From one to the next by the index: there are few, and each has rows by the million.
WITH RECURSIVE reached AS (
    SELECT r.run_id, r.stage,
        (SELECT min(s.shard) FROM staged_stub s WHERE s.run_id = r.run_id AND s.stage = r.stage) AS shard
    FROM run r WHERE r.run_id = %(run_id)s
    UNION ALL
    SELECT p.run_id, p.stage,
        (SELECT min(s.shard) FROM staged_stub s WHERE s.run_id = p.run_id AND s.stage = p.stage AND s.shard > p.shard)
    FROM reached p WHERE p.shard IS NOT NULL
)
SELECT shard FROM reached WHERE shard IS NOT NULL ORDER BY shard;

-- name: forget_shard: a shard has been promoted
DELETE FROM staged_stub WHERE run_id = %(run_id)s AND shard = %(shard)s;

-- name: half_promoted: earlier runs whose control part is committed and whose shards are not all reached
SELECT r.run_id, r.as_of, r.dry_run
FROM run r
WHERE r.duty = 'reconcile' AND r.run_id <> %(run_id)s
    AND EXISTS (SELECT 1 FROM staged_stub s WHERE s.run_id = r.run_id AND s.stage = r.stage)
    AND EXISTS (SELECT 1 FROM verdict_count c WHERE c.run_id = r.run_id)
    AND (r.finished_at IS NOT NULL OR NOT EXISTS (SELECT 1 FROM duty_lease l WHERE l.run_id = r.run_id))
ORDER BY r.run_id;

-- name: finish_promotion: an earlier run's promotion was completed by this one, unless a shard was missed again
UPDATE run SET state = 'done', finished_at = coalesce(finished_at, clock_timestamp())
WHERE run_id = %(run_id)s AND state IN ('promoting', 'abandoned', 'failed')
    AND NOT EXISTS (SELECT 1 FROM staged_stub s WHERE s.run_id = run.run_id AND s.stage = run.stage);

-- name: forget_staging: what no run will promote any more; a failed run's staging is kept as evidence for a day. A later stage than
-- the run's is still being staged, or never counts
DELETE FROM staged_stub s USING run r
WHERE r.run_id = s.run_id AND (s.stage < r.stage OR r.finished_at < clock_timestamp() - interval '1 day');

-- name: forget_staged_verdicts: the same, for verdicts
DELETE FROM staged_verdict s USING run r
WHERE r.run_id = s.run_id AND (s.stage < r.stage OR r.finished_at < clock_timestamp() - interval '1 day');

-- name: promoted_staging: a promoted run's verdicts live in `verdict`
DELETE FROM staged_verdict WHERE run_id = %(run_id)s;

-- name: members_of_open_cases: the messages of cases that may have settled by themselves
SELECT DISTINCT m.topic, m.message_id
FROM case_member m JOIN case_file c USING (case_id)
WHERE c.state IN ('open', 'decided') AND c.kind IN ('exhausted', 'refused') AND c.closed_at IS NULL
    AND (%(topics)s::text[] IS NULL OR m.topic = ANY (%(topics)s::text[]))
ORDER BY 1, 2;

-- name: members_not_open: the messages of other cases' deliveries that no run found open when it judged them last
-- Their stub may stay pending for another group's sake, and then no run finds it closed. As many as there may be, other ones each run.
SELECT DISTINCT f.topic, f.message_id
FROM (
    SELECT m.topic, m.message_id
    FROM case_member m JOIN case_file c USING (case_id)
    WHERE c.kind IN ('backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'mass_loss') AND c.closed_at IS NULL
        AND m.settled_at IS NULL
        AND (%(topics)s::text[] IS NULL OR m.topic = ANY (%(topics)s::text[]))
        AND NOT EXISTS (
            SELECT FROM open_delivery o
            WHERE o.topic = m.topic AND o.message_id = m.message_id AND o.consumer_group = m.consumer_group
                -- A day after its next look was due no run judges it any more: one beside the last had said so too late.
                AND greatest(o.judged_at, o.next_look_at) > statement_timestamp() - interval '1 day')
        -- A broken stub is judged by nobody, and so never open: its case is a person's until the stub is repaired and judged.
        AND NOT EXISTS (
            SELECT FROM quarantine q
            WHERE q.store = 'shard ' || m.shard AND q.topic = m.topic AND q.message_id = m.message_id
                AND q.consumer_group IS NULL AND q.last_seen_at >= %(broken_since)s)
        AND NOT EXISTS (
            SELECT FROM quarantine q
            WHERE q.store = 'shard ' || m.shard AND q.row_key = m.message_id
                AND q.consumer_group IS NULL AND q.last_seen_at >= %(broken_since)s)
    ORDER BY hashtextextended(m.message_id, %(run_id)s::bigint)
    LIMIT %(limit)s::integer) f
ORDER BY 1, 2;

-- name: any_to_revisit: whether there is a message of members_of_open_cases, or a withdrawal that was cut short
SELECT EXISTS (SELECT 1 FROM case_file c
        WHERE c.state IN ('open', 'decided') AND c.kind IN ('exhausted', 'refused') AND c.closed_at IS NULL
            AND EXISTS (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id))
    OR EXISTS (SELECT 1 FROM withdrawal WHERE applied_at IS NULL AND begun_at < clock_timestamp() - interval '1 hour');

-- name: without_open_case: which of these messages no open case is about, nor one that a person left
SELECT k.topic, k.message_id
FROM unnest(%(topics)s::text[], %(ids)s::text[]) AS k (topic, message_id)
WHERE NOT EXISTS (
    SELECT 1 FROM case_member m JOIN case_file c USING (case_id)
    WHERE m.topic = k.topic AND m.message_id = k.message_id AND m.settled_at IS NULL AND c.closed_at IS NULL
        AND (c.state = 'open' OR c.decision = 'leave'));

-- name: asked_about: the deliveries of these messages that an open case is about, or one that a person left
SELECT m.topic, m.message_id, m.consumer_group
FROM case_member m JOIN case_file c USING (case_id)
WHERE (m.topic, m.message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]))
    AND m.settled_at IS NULL AND c.closed_at IS NULL AND (c.state = 'open' OR c.decision = 'leave');

-- name: begun_withdrawals: decisions to withdraw that were cut short long ago, between the stub and the control database
SELECT topic, message_id FROM withdrawal
WHERE applied_at IS NULL AND begun_at < clock_timestamp() - interval '1 hour'
    AND (%(topics)s::text[] IS NULL OR topic = ANY (%(topics)s::text[]));

-- name: settle_withdrawals: ... are applied where the stub is voided, and forgotten where it is not
WITH read AS (
    SELECT * FROM unnest(%(shards)s::text[], %(topics)s::text[], %(ids)s::text[], %(voided)s::boolean[])
        AS r (shard, topic, message_id, voided)
), forgotten AS (
    DELETE FROM withdrawal w USING read r
    WHERE (w.shard, w.topic, w.message_id) = (r.shard, r.topic, r.message_id) AND NOT r.voided AND w.applied_at IS NULL
        AND w.begun_at < clock_timestamp() - interval '1 hour'
)
UPDATE withdrawal w SET applied_at = clock_timestamp() FROM read r
WHERE (w.shard, w.topic, w.message_id) = (r.shard, r.topic, r.message_id) AND r.voided AND w.applied_at IS NULL;

-- name: reached: how far a reader in time order has got
SELECT reached FROM watermark WHERE subject = %(subject)s;

-- name: reach: it has got farther
INSERT INTO watermark (subject, reached) VALUES (%(subject)s, %(reached)s)
ON CONFLICT (subject) DO UPDATE SET reached = greatest(watermark.reached, excluded.reached);

-- name: withdrawn: messages that a person withdrew since an instant, and when that was begun, in pages by the table's own key
SELECT w.topic, w.message_id, w.begun_at, w.shard FROM withdrawal w
WHERE w.applied_at >= %(since)s AND (w.shard, w.topic, w.message_id) > (%(shard)s, %(topic)s, %(id)s)
ORDER BY w.shard, w.topic, w.message_id LIMIT %(limit)s;

-- name: anomalies: counted once for each subject
INSERT INTO anomaly (kind, subject, topic, message_id, consumer_group, detail, times, first_run_id) VALUES %s
ON CONFLICT (kind, subject) DO UPDATE SET times = excluded.times, detail = excluded.detail, last_seen_at = clock_timestamp();

-- name: incomplete_proof: the sentence of a run's proof that says that not everything could be read
SELECT sentence FROM proof WHERE run_id = %(run_id)s AND answer = %(incomplete)s;

-- name: save_proof: what a proof of a window answered; nobody is shown it yet
INSERT INTO proof (run_id, topic, window_from, window_to, answer, sentence, stubs, owed_stubs, broken, deliveries, missed, digest,
    published)
VALUES (%(run_id)s, %(topic)s, %(start)s, %(end)s, %(answer)s, %(sentence)s, %(stubs)s, %(owed_stubs)s, %(broken)s,
    %(deliveries)s, %(missed)s, %(digest)s, false);

-- name: publish_proof: people are shown the run's proof, if its data check has passed
UPDATE proof p SET published = true
WHERE p.run_id = %(run_id)s
    AND EXISTS (SELECT FROM data_check c WHERE c.run_id = p.run_id AND c.suite = 'proof' AND c.passed)
RETURNING p.digest;

-- name: save_proof_count: its deliveries by group, standing, verdict and reason
INSERT INTO proof_count (run_id, consumer_group, standing, verdict, reason, deliveries)
VALUES (%(run_id)s, %(group)s, %(standing)s, %(verdict)s, %(reason)s, %(deliveries)s);
