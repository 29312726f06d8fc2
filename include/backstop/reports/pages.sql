-- Named queries on the control database: the pages in Airflow. They change nothing, and name their columns as the pages show them.

-- name: newest_runs: the list of runs
SELECT run_id AS run, duty, scope, state, started_at, finished_at, counts,
    CASE WHEN finished_at IS NULL THEN phase END AS phase,
    CASE WHEN finished_at IS NULL THEN
        CASE WHEN clock_timestamp() - heartbeat_at > %(dead_after)s THEN 'stuck: ' ELSE '' END
        || 'last heard of ' || extract(epoch FROM clock_timestamp() - heartbeat_at)::integer || ' s ago' END AS heartbeat
FROM run ORDER BY run_id DESC LIMIT 50;

-- name: run: one run
SELECT run_id, duty, scope, state, dry_run, no_send, started_at, finished_at, as_of, stage, policy_version, code_version,
    counts, phases, error,
    CASE WHEN finished_at IS NULL OR state = 'abandoned' THEN phase END AS phase,
    CASE WHEN finished_at IS NULL OR state = 'abandoned' THEN phase_at END AS phase_since,
    CASE WHEN finished_at IS NULL THEN nullif(concat_ws(' of ', phase_done, phase_of), '') END AS progress,
    CASE WHEN finished_at IS NULL THEN
        CASE WHEN clock_timestamp() - heartbeat_at > %(dead_after)s THEN 'stuck: ' ELSE '' END
        || 'last heard of ' || extract(epoch FROM clock_timestamp() - heartbeat_at)::integer || ' s ago' END AS heartbeat
FROM run WHERE run_id = %(run_id)s;

-- name: checks_of_run: its data checks
SELECT suite, passed, expectations, held, failed, report, checked_at FROM data_check WHERE run_id = %(run_id)s
ORDER BY checked_at;

-- name: verdicts_of_run: what it found
SELECT topic, consumer_group AS "group", verdict, deliveries, eligible, newly
FROM verdict_count WHERE run_id = %(run_id)s ORDER BY 1, 2, 3 LIMIT %(limit)s;

-- name: requests_made_by_run: the resends that it asked for
SELECT topic, message_id, send_number AS send, reason, state, coalesce(array_to_string(groups, ', '), 'all') AS groups, error
FROM resend_request WHERE run_id = %(run_id)s ORDER BY request_id LIMIT %(limit)s;

-- name: requests_closed_by_run: the resends that it ended
SELECT topic, message_id, send_number AS send, state, coalesce(array_to_string(groups, ', '), 'all') AS groups, error
FROM resend_request WHERE closed_by_run = %(run_id)s ORDER BY request_id LIMIT %(limit)s;

-- name: cases_opened_by_run: the cases that it opened
SELECT case_id AS "case", kind, topic, consumer_group AS "group", severity, state, summary
FROM case_file WHERE opened_by_run = %(run_id)s ORDER BY case_id LIMIT %(limit)s;

-- name: deliveries_planned_by_run: what the plan of an incident holds
SELECT topic, consumer_group AS "group", reason, count(*) AS deliveries, count(asked_at) AS "asked for",
    count(left_out) AS "left out"
FROM incident_delivery WHERE run_id = %(run_id)s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT %(limit)s;

-- name: incomplete_reads_of_run: what it could not read to the end
SELECT subject, detail FROM staged_read JOIN run USING (run_id, stage)
WHERE run_id = %(run_id)s AND NOT complete ORDER BY 1 LIMIT %(limit)s;

-- name: quarantined_by_run: the broken rows that it met first
SELECT store, row_key AS "row", reason, topic, message_id
FROM quarantine WHERE first_run_id = %(run_id)s ORDER BY 1, 2 LIMIT %(limit)s;

-- name: open_cases: the most severe first, of the topics that the visitor may see
SELECT case_id AS "case", severity, kind, topic, consumer_group AS "group", summary, opened_at, last_seen_at
FROM case_file WHERE state = 'open'
    AND CASE WHEN topic = ANY(%(of_teams)s) THEN topic = ANY(%(readable)s) ELSE %(others)s END
ORDER BY array_position(ARRAY['critical', 'warning', 'info'], severity), opened_at, case_id LIMIT %(limit)s;

-- name: causes: what dead letters died of, the latest first
SELECT cause_id AS cause, category, shown AS template, dead_letters AS letters, first_seen_at, last_seen_at, examples
FROM cause WHERE dead_letters > 0 ORDER BY last_seen_at DESC, 1 LIMIT %(limit)s;

-- name: case: one case, whole
SELECT * FROM case_file WHERE case_id = %(case_id)s;

-- name: deliveries_of_case: its deliveries, open ones first
SELECT topic, message_id, consumer_group AS "group", shard, added_at, settled_at
FROM case_member WHERE case_id = %(case_id)s ORDER BY settled_at NULLS FIRST, 1, 2, 3 LIMIT %(limit)s;

-- name: dead_letters_of_case: its dead letters
SELECT dead_letter_id AS letter, topic, message_id, consumer_group AS "group", category, state, reason, died_at
FROM dead_letter WHERE case_id = %(case_id)s ORDER BY 1 LIMIT %(limit)s;

-- name: notes_of_case: what people wrote about it
SELECT written_at, written_by, note FROM case_note WHERE case_id = %(case_id)s ORDER BY note_id LIMIT %(limit)s;

-- name: questions_of_case: when people were asked, and what they answered
SELECT number, dag_run_id AS run, asked_at, answered_by, answer, ended_at, how, said
FROM case_question WHERE case_id = %(case_id)s ORDER BY number LIMIT %(limit)s;
