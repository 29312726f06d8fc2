-- Named queries on the control database: what runs did, for the command line and the end of a run. They change nothing.

-- name: runs: runs of a duty, the newest first
SELECT run_id, duty, scope, state, dry_run, no_send, started_at, finished_at, heartbeat_at, counts, phases, phase, phase_at,
    phase_done, phase_of, stage, as_of, policy_version, code_version, error, opened_by
FROM run
WHERE (%(duty)s::text IS NULL OR duty = %(duty)s) AND (%(run_id)s::bigint IS NULL OR run_id = %(run_id)s)
ORDER BY run_id DESC
LIMIT %(limit)s;

-- name: verdict_counts: what a run found
SELECT topic, consumer_group, verdict, deliveries, eligible, newly
FROM verdict_count WHERE run_id = %(run_id)s ORDER BY topic, consumer_group, verdict;

-- name: data_checks: what was checked of a run
SELECT suite, passed, expectations, failed, report, checked_at
FROM data_check WHERE run_id = %(run_id)s ORDER BY checked_at;

-- name: requests_of_run: the requests that a run made or closed, by state
SELECT topic, state, count(*) FILTER (WHERE run_id = %(run_id)s) AS made,
    count(*) FILTER (WHERE closed_by_run = %(run_id)s) AS closed
FROM resend_request
WHERE run_id = %(run_id)s OR closed_by_run = %(run_id)s
GROUP BY topic, state ORDER BY topic, state;

-- name: batches_of_run: the batches that go out in steps with requests that a run made or closed; held: those it made that wait
WITH mine AS (
    SELECT topic, batch_id, count(*) FILTER (WHERE held AND state = 'open' AND run_id = %(run_id)s) AS held
    FROM resend_request
    WHERE run_id = %(run_id)s OR closed_by_run = %(run_id)s
    GROUP BY topic, batch_id
)
SELECT b.topic, b.batch_id, b.step, b.released, b.state, b.case_id, sum(m.held)::bigint AS held
FROM mine m
-- What is held belongs to its topic's live batch, and is written down as its only when a step releases it.
JOIN resend_batch b ON b.batch_id = m.batch_id OR (m.held > 0 AND b.topic = m.topic AND b.state IN ('ramping', 'stopped'))
GROUP BY b.batch_id ORDER BY b.topic, b.batch_id;

-- name: counts: what a run judged, requested and opened, by name
SELECT lower(c.verdict), sum(c.deliveries)
FROM staged_count AS c JOIN run AS r USING (run_id, stage)
WHERE r.run_id = %(run_id)s
GROUP BY c.verdict
UNION ALL
SELECT 'requests', count(*) FROM resend_request WHERE run_id = %(run_id)s HAVING count(*) > 0
UNION ALL
SELECT 'cases', count(*) FROM case_file WHERE opened_by_run = %(run_id)s HAVING count(*) > 0
UNION ALL
SELECT 'closed_' || state, count(*) FROM resend_request WHERE closed_by_run = %(run_id)s GROUP BY state;

-- name: proof: the answer of a published proof, its sentence, and its deliveries by standing
SELECT p.answer, p.sentence, coalesce((
    SELECT jsonb_object_agg(c.standing, c.deliveries)
    FROM (SELECT standing, sum(deliveries) AS deliveries FROM proof_count WHERE run_id = p.run_id GROUP BY standing) AS c
), '{}')
FROM proof AS p
WHERE p.run_id = %(run_id)s AND p.published;
