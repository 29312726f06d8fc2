-- Named queries on the control database: which cases people are asked about, and what became of it.

-- name: one_chooser: two choosers wait for each other, so that the bound holds
SELECT pg_advisory_xact_lock(hashtextextended('backstop.case_question', 0));

-- name: places: questions for the most severe open cases of each team, the oldest first, until so many are live
-- Critical ones have as many places again: they do not wait until somebody has time for what is mild.
-- Dead letters that are all on their way leave their case nothing to decide, until it closes or one comes back.
-- A case whose last question was lost is not asked about again at once: what ended that run may still be there.
-- Nobody can take the name of a run before it is started.
SELECT w.case_id, n.number, 'case-' || w.case_id || '-' || n.number || '-' || left(gen_random_uuid()::text, 8)
FROM (
    SELECT c.case_id, c.severity, coalesce(%(teams)s::jsonb ->> c.topic, '') AS team,
        row_number() OVER (
            PARTITION BY coalesce(%(teams)s::jsonb ->> c.topic, '')
            ORDER BY array_position(ARRAY['critical', 'warning', 'info'], c.severity), c.opened_at, c.case_id) AS place
    FROM case_file c
    WHERE (c.state = 'open' OR c.state = 'decided' AND c.decision = 'leave' AND EXISTS (
            SELECT FROM proposal p WHERE p.case_id = c.case_id AND p.ended_at IS NULL AND p.proposed_at >= c.opened_at))
        AND (c.kind <> 'dead_letters' OR EXISTS (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id AND d.state = 'open'))
        AND NOT EXISTS (
            SELECT 1 FROM case_question q
            WHERE q.case_id = c.case_id
                AND (q.ended_at IS NULL OR q.how = 'lost' AND q.ended_at > clock_timestamp() - %(after_lost)s))
) AS w
LEFT JOIN (
    SELECT coalesce(%(teams)s::jsonb ->> o.topic, '') AS team, count(*) AS number
    FROM case_question q JOIN case_file o USING (case_id) WHERE q.ended_at IS NULL GROUP BY 1
) AS live USING (team)
CROSS JOIN LATERAL (SELECT coalesce(max(q.number), 0) + 1 AS number FROM case_question q WHERE q.case_id = w.case_id) AS n
WHERE w.place <= CASE w.severity WHEN 'critical' THEN 2 ELSE 1 END * %(limit)s - coalesce(live.number, 0)
ORDER BY w.place, w.case_id;

-- name: live: questions without an end, and whether their case still needs an answer
SELECT q.case_id, q.number, q.dag_run_id, c.state = coalesce(q.shown ->> 'state', 'open')
    AND coalesce((q.shown ->> 'reopened')::int, c.reopened) = c.reopened
    AND (q.shown_at IS NULL OR (q.shown ->> 'proposal')::bigint IS NOT DISTINCT FROM (SELECT p.proposal_id FROM proposal p
        WHERE p.case_id = c.case_id AND p.ended_at IS NULL AND p.proposed_at >= c.opened_at))
    AND (c.kind <> 'dead_letters'
        OR EXISTS (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id AND d.state = 'open')) AS needed,
    q.given IS NOT NULL AS answered
FROM case_question q JOIN case_file c USING (case_id)
WHERE q.ended_at IS NULL
ORDER BY q.case_id;

-- name: topics: what the cases are about
SELECT case_id, topic FROM case_file WHERE case_id = ANY(%(case_ids)s);

-- name: of_run: the question that a run in Airflow shows
SELECT case_id, number, dag_run_id, shown, given, how, said
FROM case_question WHERE dag_run_id = %(dag_run_id)s;

-- name: live_of_case: the run that shows the live question of a case
SELECT dag_run_id FROM case_question WHERE case_id = %(case_id)s AND ended_at IS NULL;

-- name: ask_by_hand: a question that somebody started themselves
INSERT INTO case_question (case_id, number, dag_run_id)
SELECT %(case_id)s, coalesce(max(number), 0) + 1, %(dag_run_id)s FROM case_question WHERE case_id = %(case_id)s
ON CONFLICT DO NOTHING;

-- name: ask_again: a run that had ended is cleared in Airflow
UPDATE case_question q SET ended_at = NULL, how = NULL, answered_by = NULL, answer = NULL, shown_at = NULL, shown = '{}',
    given = NULL
WHERE q.dag_run_id = %(dag_run_id)s AND q.ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM case_question o WHERE o.case_id = q.case_id AND o.ended_at IS NULL);

-- name: last_said: what became of the answer before
SELECT said FROM case_question
WHERE case_id = %(case_id)s AND number < %(number)s AND how IN ('not_applied', 'partly', 'lost') AND said IS NOT NULL
ORDER BY number DESC LIMIT 1;

-- name: present: what a person would see now
SELECT c.state, c.reopened, c.decision, c.decided_by,
    (SELECT count(*) FROM case_member m WHERE m.case_id = c.case_id AND m.settled_at IS NULL)
    + (SELECT count(*) FROM dead_letter d WHERE d.case_id = c.case_id AND d.state = 'open' AND d.message_id IS NULL) AS open,
    (c.kind <> 'dead_letters'
        OR EXISTS (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id AND d.state = 'open')) AS undecided,
    (SELECT p.proposal_id FROM proposal p
     WHERE p.case_id = c.case_id AND p.ended_at IS NULL AND p.proposed_at >= c.opened_at) AS proposal
FROM case_file c WHERE c.case_id = %(case_id)s;

-- name: hold_case: nothing joins the case until the transaction ends
SELECT 1 FROM case_file WHERE case_id = %(case_id)s FOR SHARE;

-- name: bound: the instant; at it, the newest letter of a case, and of a parked key the head and the last number
SELECT clock_timestamp(), (SELECT coalesce(max(d.dead_letter_id), 0) FROM dead_letter d WHERE d.case_id = c.case_id),
    c.evidence -> 'head', c.evidence -> 'last_number'
FROM case_file c WHERE c.case_id = %(case_id)s;

-- name: shown: the form is about to be written
UPDATE case_question SET shown_at = clock_timestamp(), shown = %(shown)s::jsonb, given = NULL
WHERE dag_run_id = %(dag_run_id)s AND ended_at IS NULL;

-- name: given: the answer to the form that was written last
UPDATE case_question SET given = %(given)s::jsonb, shown = shown || '{"answered": true}'
WHERE dag_run_id = %(dag_run_id)s AND ended_at IS NULL AND shown_at IS NOT NULL
    AND coalesce(shown ->> 'asked_by', %(asked_by)s) = %(asked_by)s;

-- name: ended: the question is over, once
UPDATE case_question
SET ended_at = clock_timestamp(), how = %(how)s, said = left(%(said)s, 4000), answered_by = %(who)s, answer = %(answer)s,
    -- A new content is with the message now, and nowhere else.
    given = given #- '{inputs,secret_content}' #- '{inputs,secret_content_base64}'
WHERE dag_run_id = %(dag_run_id)s AND ended_at IS NULL;
