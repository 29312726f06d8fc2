-- What was read of the consumers' logs for this run: absence is not evidence unless everything was read.

-- name: deliveries_identified: every delivery names its topic, its message and its group
SELECT v.shard, v.topic, v.message_id, v.consumer_group
FROM {batch} AS run
JOIN staged_verdict AS v USING (run_id, stage)
WHERE v.shard = '' OR v.topic = '' OR v.message_id = '' OR v.consumer_group = '';

-- name: evidence_kept: every verdict shows the evidence that it rests on
SELECT v.topic, v.message_id, v.consumer_group
FROM {batch} AS run
JOIN staged_verdict AS v USING (run_id, stage)
WHERE v.reason = '' OR jsonb_typeof(v.evidence) <> 'object';

-- name: reads_complete_or_named: a source that was not read to its end says why
SELECT r.subject
FROM {batch} AS run
JOIN staged_read AS r USING (run_id, stage)
WHERE NOT r.complete AND coalesce(r.detail, '') = '';

-- name: broken_logs_identified: every log row put into quarantine by this run says whose it is and what it breaks
SELECT q.store, q.row_key, q.reason
FROM {batch} AS run
JOIN quarantine AS q ON q.first_run_id = run.run_id
WHERE q.consumer_group IS NOT NULL AND (q.consumer_group = '' OR q.reason = '' OR q.row_key = '');

-- name: broken_logs_decide_nothing: a delivery whose log row this run put into quarantine is not eligible for a resend
SELECT v.topic, v.message_id, v.consumer_group
FROM {batch} AS run
JOIN staged_verdict AS v USING (run_id, stage)
JOIN quarantine AS q
    ON q.consumer_group = v.consumer_group AND q.topic = v.topic AND q.message_id = v.message_id
WHERE v.eligible AND q.last_seen_at >= run.started_at;

-- name: anomalies_named: every anomaly that this run found says what it is about
SELECT a.kind, a.subject
FROM {batch} AS run
JOIN anomaly AS a ON a.first_run_id = run.run_id
WHERE a.subject = '' OR a.times < 1;
