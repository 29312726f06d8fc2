-- Named queries on the control database: deciding dead letters, and applying what was decided.

-- name: clock: the instant of a look
SELECT clock_timestamp();

-- name: letter_columns: an open letter as a decision sees it, without its content
SELECT d.dead_letter_id, d.broker, d.queue, d.consumer_group, d.topic, d.message_id, d.cause_text, d.error, d.deliveries,
    d.died_at, d.drained_at, d.invalid, d.category, c.fingerprint, c.shown, d.left_in_case, d.barred,
    d.classified_at, d.decided_at, d.case_id
FROM dead_letter d LEFT JOIN cause c USING (cause_id);

-- name: due: open letters to look at now: new, waited long enough, or of another category than when they were decided
-- Each case names whether there is a cause, because each index of open letters is of those with a cause, or of those without.
WHERE d.state = 'open' AND d.dead_letter_id > %(after)s
    AND (d.cause_id IS NULL AND (d.look_at IS NULL OR d.look_at <= %(cut)s)
        OR d.cause_id IS NOT NULL AND d.look_at IS NULL
        OR d.cause_id IS NOT NULL AND d.look_at <= %(cut)s
        OR d.classified_at > d.decided_at)
    AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
ORDER BY d.dead_letter_id
LIMIT %(limit)s;

-- name: of_case: open letters of a case: all, or those of some messages or with some numbers
WHERE d.state = 'open' AND d.case_id = %(case_id)s
    AND (%(ids)s::text[] IS NULL OR d.message_id = ANY (%(ids)s::text[]))
    AND (%(letters)s::bigint[] IS NULL OR d.dead_letter_id = ANY (%(letters)s::bigint[]))
ORDER BY d.dead_letter_id;

-- name: first_of_case: the first few open letters of a case; without `left` those that nobody left
WHERE d.state = 'open' AND d.case_id = %(case_id)s AND (%(left)s OR d.left_in_case IS NULL)
ORDER BY d.dead_letter_id
LIMIT %(limit)s;

-- name: count_of_case: how many of them there are, counted up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM dead_letter d
    WHERE d.state = 'open' AND d.case_id = %(case_id)s AND (%(left)s OR d.left_in_case IS NULL)
    LIMIT %(limit)s) AS c;

-- name: came_after: open letters that were not in the case when a person was shown it, or moved since; none without an instant
SELECT d.dead_letter_id
FROM dead_letter d
WHERE d.state = 'open' AND d.case_id = %(case_id)s
    AND (d.dead_letter_id > %(letter)s
        OR d.decided_at > %(at)s::timestamptz AND NOT EXISTS (
            SELECT 1 FROM case_member m
            WHERE m.case_id = d.case_id AND m.topic = d.topic AND m.message_id = d.message_id
                AND m.consumer_group = coalesce(d.consumer_group, '*') AND m.added_at <= %(at)s::timestamptz));

-- name: discards: deliveries among these messages that a person gave up
SELECT topic, message_id, consumer_group, decided_by, why, case_id
FROM delivery_decision
WHERE decision = 'discard' AND (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: withdrawals: messages among these that a person withdrew
SELECT topic, message_id, decided_by, why, case_id
FROM withdrawal
WHERE (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: replays: how often dead letters of each delivery were replayed; letters of one send count once
SELECT topic, message_id, consumer_group, count(DISTINCT send_number)
FROM dead_letter
WHERE state = 'replayed' AND consumer_group IS NOT NULL
    AND (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]))
GROUP BY topic, message_id, consumer_group;

-- name: requests: sends of these messages that were asked for and have not ended
SELECT topic, message_id, send_number, state
FROM resend_request
WHERE state IN ('open', 'claimed') AND (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: given_up: deliveries among these messages whose resend a person gave up; group *: every group's
SELECT DISTINCT r.topic, r.message_id, g.consumer_group
FROM resend_request r CROSS JOIN LATERAL unnest(r.given_up_groups) AS g (consumer_group)
WHERE r.given_up_by IS NOT NULL AND (r.topic, r.message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: open_deliveries: the open letters of these messages, of whatever group; the case in which a person left them, and what bars machines
SELECT topic, message_id, consumer_group, left_in_case, barred
FROM dead_letter
WHERE state = 'open' AND (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: escalated: of these messages, those that have a letter which a person must decide
SELECT DISTINCT topic, message_id
FROM dead_letter
WHERE state = 'open' AND (decision = 'escalate' OR left_in_case IS NOT NULL)
    AND (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: lock: letters that are still as they were seen; held until the transaction ends
SELECT d.dead_letter_id
FROM dead_letter d
JOIN jsonb_to_recordset(%(seen)s::jsonb)
    AS s(dead_letter_id bigint, decided_at timestamptz, classified_at timestamptz) USING (dead_letter_id)
WHERE d.state = 'open' AND d.decided_at IS NOT DISTINCT FROM s.decided_at AND d.classified_at IS NOT DISTINCT FROM s.classified_at
ORDER BY d.dead_letter_id
FOR UPDATE OF d;

-- name: granted: requests of these numbers that are open now, in the transaction that asked for them
SELECT r.topic, r.message_id, r.send_number, r.groups
FROM resend_request r
WHERE r.state = 'open' AND (r.topic, r.message_id, r.send_number)
    IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(numbers)s::integer[]));

-- name: apply: what was decided of letters that the transaction holds
-- `answered`: a person took the letter up, or left it. Nothing else ends that it was left, or that machines are barred from it.
UPDATE dead_letter d
SET state = x.state, decision = x.decision, reason = x.reason,
    decided_by = CASE
        WHEN d.left_in_case IS NOT NULL AND x.state = 'open' AND x.answered IS NOT TRUE THEN d.decided_by
        ELSE x.decided_by
    END,
    left_in_case = CASE WHEN x.answered THEN x.left_in_case ELSE coalesce(d.left_in_case, x.left_in_case) END,
    barred = CASE WHEN x.answered AND x.left_in_case IS NULL THEN NULL ELSE d.barred END,
    -- A look that changes nothing is no new decision: an answer whose author saw this one still fits.
    decided_at = CASE
        WHEN (d.state, d.decision, d.reason, d.case_id) IS NOT DISTINCT FROM (x.state, x.decision, x.reason, x.case_id)
            AND d.classified_at <= d.decided_at THEN d.decided_at
        ELSE clock_timestamp()
    END,
    look_at = x.look_at, case_id = x.case_id, shard = x.shard, send_number = x.send_number, proof = x.proof,
    closed_at = CASE WHEN x.state = 'discarded' THEN clock_timestamp() END
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(dead_letter_id bigint, state text, decision text, reason text, decided_by text,
    look_at timestamptz, case_id bigint, shard text, send_number integer, proof jsonb, answered boolean, left_in_case bigint)
WHERE d.dead_letter_id = x.dead_letter_id AND d.state = 'open';

-- name: take_up: other letters of deliveries that are replayed are no longer left with those of this case
UPDATE dead_letter d SET left_in_case = NULL
WHERE d.state = 'open' AND d.left_in_case = %(case_id)s AND (d.topic, d.message_id, d.consumer_group)
    IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(groups)s::text[]));

-- name: postpone: letters that the transaction holds, of which the same was decided as before: only the next look is later
-- Not when the case of an escalated one is no longer open: then it is to be opened again.
UPDATE dead_letter d
SET look_at = x.look_at
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(dead_letter_id bigint, decision text, reason text, look_at timestamptz)
WHERE d.dead_letter_id = x.dead_letter_id AND d.state = 'open' AND d.decision = x.decision AND d.reason = x.reason
    AND d.classified_at <= d.decided_at
    AND (d.decision <> 'escalate'
        OR EXISTS (SELECT 1 FROM case_file c WHERE c.case_id = d.case_id AND c.kind = 'dead_letters' AND c.state = 'open'));

-- name: leave_case: members of these deliveries in these cases of which the case has no letter any more that is not discarded
UPDATE case_member m SET settled_at = clock_timestamp()
FROM case_file c
WHERE c.case_id = m.case_id AND c.kind = 'dead_letters' AND c.closed_at IS NULL AND m.settled_at IS NULL
    AND m.case_id = ANY (%(cases)s::bigint[]) AND (m.topic, m.message_id, m.consumer_group)
        IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(groups)s::text[]))
    AND NOT EXISTS (
        SELECT 1 FROM dead_letter d
        WHERE d.case_id = m.case_id AND d.topic = m.topic AND d.message_id = m.message_id
            AND coalesce(d.consumer_group, '*') = m.consumer_group AND d.state <> 'discarded');

-- name: count_case: what a case's undecided letters come to
SELECT count(*), min(d.died_at), max(d.died_at), min(d.drained_at), max(d.drained_at), max(d.deliveries),
    (SELECT jsonb_object_agg(r.reason, r.n) FROM (
        SELECT coalesce(o.reason, '?') AS reason, count(*) AS n FROM dead_letter o
        WHERE o.case_id = %(case_id)s AND o.state = 'open' GROUP BY 1) r),
    (SELECT jsonb_object_agg(r.category, r.n) FROM (
        SELECT coalesce(o.category, '?') AS category, count(*) AS n FROM dead_letter o
        WHERE o.case_id = %(case_id)s AND o.state = 'open' GROUP BY 1) r),
    (SELECT jsonb_agg(jsonb_build_object('letter', e.dead_letter_id, 'id', e.message_id)) FROM (
        SELECT o.dead_letter_id, o.message_id FROM dead_letter o
        WHERE o.case_id = %(case_id)s AND o.state = 'open' ORDER BY o.dead_letter_id LIMIT 5) e)
FROM dead_letter d
WHERE d.case_id = %(case_id)s AND d.state = 'open';

-- name: case_cause: whose letters a case is about
SELECT topic, consumer_group FROM case_file WHERE case_id = %(case_id)s;

-- name: refresh_case_summary: a case's summary and evidence as its letters are now
UPDATE case_file SET summary = coalesce(%(summary)s, summary), evidence = evidence || %(evidence)s::jsonb, last_seen_at = clock_timestamp()
WHERE case_id = %(case_id)s AND state = 'open';

-- name: ended: letters whose request has ended, and how; one that is not there any more has ended, too
-- A page costs what it gives: its index is in its order (closed_at names it), and each request is looked up by its key. A hash or a merge of all
-- requests, or a sort of all that is replaying, would cost every page as much as the backlog is large.
SELECT d.dead_letter_id, d.topic, d.message_id, r.send_number, r.updated_at, d.consumer_group, r.state, r.groups, r.error,
    CASE WHEN r.given_up_groups && ARRAY[d.consumer_group, '*'] THEN r.given_up_by END
FROM dead_letter d
LEFT JOIN LATERAL (
    SELECT q.* FROM resend_request q
    WHERE q.topic = d.topic AND q.message_id = d.message_id AND q.send_number = d.send_number
    LIMIT 1) r ON true
WHERE d.state = 'replaying' AND d.closed_at IS NULL AND d.dead_letter_id > %(after)s
    AND (r.state IS NULL OR r.state NOT IN ('open', 'claimed')
        OR r.groups IS NOT NULL AND NOT d.consumer_group = ANY (r.groups))
    AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
ORDER BY d.dead_letter_id
LIMIT %(limit)s
FOR UPDATE OF d SKIP LOCKED;

-- name: settle: letters that the transaction holds, whose request has ended: replayed, or open again
-- They are found by their numbers alone: by their state, every page would read all that is replaying.
-- The decision of one that is open again is gone: it is decided again. Its case, if it was in one, is still the case's.
UPDATE dead_letter d
SET state = x.state, reason = coalesce(x.reason, d.reason), barred = coalesce(x.barred, d.barred),
    closed_at = CASE WHEN x.state = 'replayed' THEN clock_timestamp() END,
    shard = CASE WHEN x.state = 'replayed' THEN d.shard END,
    send_number = CASE WHEN x.state = 'replayed' THEN d.send_number END,
    decision = CASE WHEN x.state = 'replayed' THEN d.decision END,
    look_at = x.look_at, decided_at = clock_timestamp()
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(dead_letter_id bigint, state text, reason text, barred text, look_at timestamptz)
WHERE d.dead_letter_id = x.dead_letter_id;

-- name: give_up: deliveries that no later run may act on
INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, case_id, decided_by, why)
SELECT t.topic, t.message_id, t.consumer_group, 'discard', %(case_id)s, %(who)s, %(why)s
FROM (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(groups)s::text[])
    AS u (topic, message_id, consumer_group) ORDER BY 1, 2, 3) AS t
ON CONFLICT (topic, message_id, consumer_group) DO NOTHING;

-- name: keep_version: a content as it is in the producer's database, once; so a planned one with this content was carried out
INSERT INTO message_version AS v (shard, topic, message_id, content_version, content, case_id, written_by, why)
VALUES (%(shard)s, %(topic)s, %(message_id)s, %(version)s, %(content)s, %(case_id)s, %(who)s, %(why)s)
ON CONFLICT (topic, message_id, content_version) DO UPDATE SET carried_out = true
WHERE v.carried_out IS NULL AND v.content = excluded.content;

-- name: plan_version: the content that the next version is to have; a plan that was not carried out is replaced
INSERT INTO message_version AS v (shard, topic, message_id, content_version, content, case_id, written_by, why)
VALUES (%(shard)s, %(topic)s, %(message_id)s, %(version)s, %(content)s, %(case_id)s, %(who)s, %(why)s)
ON CONFLICT (topic, message_id, content_version) DO UPDATE SET
    shard = excluded.shard, content = excluded.content, case_id = excluded.case_id, written_by = excluded.written_by,
    why = excluded.why, written_at = clock_timestamp(), carried_out = NULL
WHERE v.carried_out IS NOT TRUE;

-- name: carried_out: whether a version became the message's content
UPDATE message_version SET carried_out = %(carried_out)s
WHERE topic = %(topic)s AND message_id = %(message_id)s AND content_version = %(version)s
    AND carried_out IS DISTINCT FROM %(carried_out)s;

-- name: hold_version: the planned content, which nobody replaces until the transaction ends
SELECT content FROM message_version
WHERE topic = %(topic)s AND message_id = %(message_id)s AND content_version = %(version)s
FOR UPDATE;
