-- Named queries on the control database, for the command line.

-- name: pause: stops sending for a topic, or for all ('*'), between two batches
INSERT INTO pause (topic, paused_by, why) VALUES (%(topic)s, %(who)s, %(why)s)
ON CONFLICT (topic) DO NOTHING;

-- name: resume: sending goes on
DELETE FROM pause WHERE topic = %(topic)s;

-- name: resume_all: sending goes on for everything
DELETE FROM pause;

-- name: paused: what is paused now
SELECT topic, paused_at, paused_by, why FROM pause ORDER BY topic;

-- name: runs: runs of a duty, the newest first
SELECT run_id, duty, scope, state, dry_run, no_send, started_at, finished_at, heartbeat_at, counts, phases, stage, as_of,
    policy_version, code_version, error
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

-- name: requests_of_message: every request for a message
SELECT request_id, send_number, groups, reason, requested_by, route, state, not_before, claim_deadline, run_id,
    closed_by_run, error, created_at, updated_at
FROM resend_request WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY send_number;

-- name: decisions_of_message: what people gave up of it
SELECT consumer_group, decision, case_id, decided_by, decided_at, why
FROM delivery_decision WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY consumer_group;

-- name: cases_of_message: the cases it is in
SELECT c.case_id, c.kind, c.consumer_group, c.state, c.decision, c.decided_by, c.decided_at, c.why, m.settled_at
FROM case_member m JOIN case_file c USING (case_id)
WHERE m.topic = %(topic)s AND m.message_id = %(message_id)s ORDER BY c.case_id;

-- name: quarantine_of_message: broken rows of it
SELECT store, reason, consumer_group, detail, first_seen_at, last_seen_at
FROM quarantine WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY store, reason;

-- name: anomalies_of_message: what was odd about it
SELECT kind, consumer_group, detail, times, first_seen_at, last_seen_at
FROM anomaly WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY kind;
