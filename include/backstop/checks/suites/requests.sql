-- What a promotion wrote: requests, cases, alerts and counts.

-- name: only_eligible_requested: every request of the run is for a delivery that the run found eligible
SELECT r.topic, r.message_id, r.send_number
FROM {batch} AS run
JOIN resend_request AS r USING (run_id)
WHERE NOT EXISTS (
    SELECT 1 FROM verdict AS v
    WHERE v.run_id = r.run_id AND v.topic = r.topic AND v.message_id = r.message_id AND v.eligible);

-- name: next_send_number: every request of the run asks for the number after the last one handed out
SELECT r.topic, r.message_id, r.send_number
FROM {batch} AS run
JOIN resend_request AS r USING (run_id)
JOIN verdict AS v USING (run_id, topic, message_id)
WHERE v.eligible AND r.send_number <> v.send_count + 1;

-- name: exhausted_has_case: a person is asked about every EXHAUSTED delivery of the run, or has discarded it meanwhile
SELECT v.topic, v.message_id, v.consumer_group
FROM {batch} AS run
JOIN verdict AS v USING (run_id)
WHERE v.verdict = 'EXHAUSTED' AND NOT EXISTS (
    SELECT 1
    FROM case_member AS m
    JOIN case_file AS c USING (case_id)
    WHERE m.topic = v.topic AND m.message_id = v.message_id AND m.consumer_group IN (v.consumer_group, '*')
      AND (c.state IN ('open', 'decided') OR greatest(c.decided_at, c.closed_at) > run.as_of))
  AND NOT EXISTS (
    SELECT 1 FROM delivery_decision AS d
    WHERE d.topic = v.topic AND d.message_id = v.message_id AND d.consumer_group = v.consumer_group);

-- name: case_has_alert: every case that the run opened has told a person
SELECT c.case_id::text AS case_id, c.kind, c.topic
FROM {batch} AS run
JOIN case_file AS c ON c.opened_by_run = run.run_id
WHERE NOT EXISTS (SELECT 1 FROM alert AS a WHERE a.case_id = c.case_id);

-- name: verdicts_promoted: what was promoted is what was counted
SELECT coalesce(kept.topic, counted.topic) AS topic,
    coalesce(kept.consumer_group, counted.consumer_group) AS consumer_group,
    coalesce(kept.verdict, counted.verdict) AS verdict
FROM (
    SELECT v.topic, v.consumer_group, v.verdict, count(*) AS deliveries,
        sum(CASE WHEN v.eligible THEN 1 ELSE 0 END) AS eligible
    FROM {batch} AS run
    JOIN verdict AS v USING (run_id)
    GROUP BY v.topic, v.consumer_group, v.verdict
) AS kept
FULL JOIN (
    SELECT c.topic, c.consumer_group, c.verdict, c.deliveries, c.eligible
    FROM {batch} AS run
    JOIN verdict_count AS c USING (run_id)
    WHERE c.verdict NOT IN ('CONFIRMED', 'WAITING')
) AS counted USING (topic, consumer_group, verdict)
WHERE coalesce(kept.deliveries, 0) <> coalesce(counted.deliveries, 0)
   OR coalesce(kept.eligible, 0) <> coalesce(counted.eligible, 0);

-- name: counts_promoted: the counts kept are those that were audited, as long as those are staged
SELECT coalesce(kept.topic, staged.topic) AS topic,
    coalesce(kept.consumer_group, staged.consumer_group) AS consumer_group,
    coalesce(kept.verdict, staged.verdict) AS verdict
FROM (
    SELECT c.topic, c.consumer_group, c.verdict, c.deliveries
    FROM {batch} AS run
    JOIN verdict_count AS c USING (run_id)
    WHERE EXISTS (SELECT 1 FROM staged_count AS s WHERE s.run_id = run.run_id AND s.stage = run.stage)
) AS kept
FULL JOIN (
    SELECT c.topic, c.consumer_group, c.verdict, c.deliveries
    FROM {batch} AS run
    JOIN staged_count AS c USING (run_id, stage)
) AS staged USING (topic, consumer_group, verdict)
WHERE coalesce(kept.deliveries, 0) <> coalesce(staged.deliveries, 0);
