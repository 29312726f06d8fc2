-- What crosses tables; the expectations over single rows are in log_contract.yaml.

-- name: broken_logs_decide_nothing: a delivery whose log row this run put into quarantine is not eligible for a resend
SELECT v.topic, v.message_id, v.consumer_group
FROM {batch} AS run
JOIN staged_verdict AS v USING (run_id, stage)
JOIN quarantine AS q
    ON q.consumer_group = v.consumer_group AND q.topic = v.topic AND q.message_id = v.message_id
WHERE v.eligible AND q.last_seen_at >= run.started_at;
