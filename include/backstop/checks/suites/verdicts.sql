-- What the judge staged, before a verdict is promoted or a request is made.
-- No statistics know rows that were staged a moment ago. So what is joined has a plan that is never rows times rows: a FULL JOIN, which
-- is hashed or merged (a condition that is true of nothing would make another join of it, so the conditions are coalesced), or a look
-- into staged_verdict with every column of its key, each from staged_stub. (With USING the stage would be the run's, which an outer
-- join cannot look up by, and each row would be compared with all: 20,000 stubs took minutes.) staged_stub has no key: it is scanned,
-- by a check of verdicts only where there is one.

-- name: one_verdict_a_delivery: every delivery has exactly one verdict, on whatever shard its stub lies
-- Not expect_compound_columns_to_be_unique, which joins the rows with their counts: without statistics each row with every other.
SELECT v.topic, v.message_id, v.consumer_group
FROM {batch} AS run
JOIN staged_verdict AS v USING (run_id, stage)
GROUP BY v.topic, v.message_id, v.consumer_group
HAVING count(*) > 1;

-- name: deliveries_conserved: the verdicts counted for a topic add up to the deliveries that its stubs owe
SELECT coalesce(owed.topic, counted.topic) AS topic
FROM (
    SELECT s.topic, sum(s.deliveries) AS deliveries
    FROM {batch} AS run
    JOIN staged_stub AS s USING (run_id, stage)
    GROUP BY s.topic
) AS owed
FULL JOIN (
    SELECT c.topic, sum(c.deliveries) AS deliveries
    FROM {batch} AS run
    JOIN staged_count AS c USING (run_id, stage)
    GROUP BY c.topic
) AS counted USING (topic)
WHERE coalesce(owed.deliveries, 0) <> coalesce(counted.deliveries, 0);

-- name: verdicts_conserved: the verdicts staged are as many as were counted (CONFIRMED and WAITING are only counted)
SELECT coalesce(staged.topic, counted.topic) AS topic,
    coalesce(staged.consumer_group, counted.consumer_group) AS consumer_group,
    coalesce(staged.verdict, counted.verdict) AS verdict
FROM (
    SELECT v.topic, v.consumer_group, v.verdict, count(*) AS deliveries,
        sum(CASE WHEN v.eligible THEN 1 ELSE 0 END) AS eligible
    FROM {batch} AS run
    JOIN staged_verdict AS v USING (run_id, stage)
    WHERE v.verdict <> 'WAITING'
    GROUP BY v.topic, v.consumer_group, v.verdict
) AS staged
FULL JOIN (
    SELECT c.topic, c.consumer_group, c.verdict, c.deliveries, c.eligible
    FROM {batch} AS run
    JOIN staged_count AS c USING (run_id, stage)
    WHERE c.verdict NOT IN ('CONFIRMED', 'WAITING')
) AS counted USING (topic, consumer_group, verdict)
WHERE coalesce(staged.deliveries, 0) <> coalesce(counted.deliveries, 0)
   OR coalesce(staged.eligible, 0) <> coalesce(counted.eligible, 0);

-- name: verdicts_have_stubs: every verdict belongs to a stub of this run, as it was read
SELECT v.topic, v.message_id, min(v.consumer_group) AS consumer_group
FROM (
    SELECT v.shard, v.topic, v.message_id, v.send_count, v.consumer_group
    FROM {batch} AS run
    JOIN staged_verdict AS v USING (run_id, stage)
) AS v
FULL JOIN (
    SELECT s.shard, s.topic, s.message_id, s.send_count, true AS is_staged
    FROM {batch} AS run
    JOIN staged_stub AS s USING (run_id, stage)
    WHERE EXISTS (SELECT FROM {batch} AS judged JOIN staged_verdict USING (run_id, stage))
) AS s USING (shard, topic, message_id, send_count)
WHERE NOT coalesce(s.is_staged, false)
GROUP BY v.shard, v.topic, v.message_id, v.send_count;

-- name: confirmed_is_complete: a stub becomes confirmed only when every delivery is CONFIRMED or VOIDED
SELECT s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.new_status = 'confirmed' AND s.old_status <> 'confirmed' AND s.deliveries = 0
UNION ALL
SELECT s.topic, s.message_id
FROM (
    SELECT s.ctid AS place, s.shard, s.topic, s.message_id, true AS is_confirmed
    FROM {batch} AS run
    JOIN staged_stub AS s USING (run_id, stage)
    WHERE s.new_status = 'confirmed' AND s.old_status <> 'confirmed' AND s.deliveries <> 0
      AND EXISTS (SELECT FROM {batch} AS judged JOIN staged_verdict AS o USING (run_id, stage) WHERE o.verdict <> 'VOIDED')
) AS s
FULL JOIN (
    SELECT v.shard, v.topic, v.message_id, true AS is_open
    FROM {batch} AS run
    JOIN staged_verdict AS v USING (run_id, stage)
    WHERE v.verdict <> 'VOIDED'
) AS v USING (shard, topic, message_id)
WHERE coalesce(s.is_confirmed, false) AND coalesce(v.is_open, false)
GROUP BY s.place, s.topic, s.message_id;

-- name: exhausted_is_spent: a stub becomes exhausted only when what is open is EXHAUSTED, and something is
SELECT s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
LEFT JOIN staged_verdict AS v ON v.run_id = s.run_id AND v.stage = s.stage AND v.shard = s.shard AND v.topic = s.topic
    AND v.message_id = s.message_id
WHERE s.new_status = 'exhausted' AND s.old_status = 'pending'
GROUP BY s.shard, s.topic, s.message_id
HAVING count(*) FILTER (WHERE v.verdict = 'EXHAUSTED') = 0
    OR count(*) FILTER (WHERE v.verdict NOT IN ('EXHAUSTED', 'VOIDED')) > 0;

-- name: final_stays_final: a confirmed or voided stub keeps its status
SELECT s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.old_status IN ('confirmed', 'voided') AND s.new_status <> s.old_status;

-- name: progress_never_backwards: within one epoch no group went back, but where a REGRESSION isolates the queue
SELECT p.consumer_group, p.broker, p.topic, p.queue_id
FROM {batch} AS run
JOIN progress AS p ON p.run_id = run.run_id
WHERE EXISTS (
        SELECT 1 FROM progress_history AS h
        WHERE h.consumer_group = p.consumer_group AND h.broker = p.broker AND h.topic = p.topic
          AND h.queue_id = p.queue_id AND h.epoch = p.epoch
          AND h.recorded_at < p.recorded_at AND h.next_offset > p.next_offset
          AND EXISTS (
              SELECT 1 FROM run AS o JOIN run AS m ON m.run_id = p.run_id
              WHERE o.run_id = h.run_id AND (o.run_id = m.run_id OR o.finished_at <= m.as_of)))
  AND NOT EXISTS (
        SELECT 1 FROM anomaly AS a
        WHERE a.kind = 'REGRESSION' AND a.consumer_group = p.consumer_group AND a.topic = p.topic
          AND starts_with(a.subject, concat_ws('/', p.consumer_group, p.topic, p.queue_id::text, p.epoch) || '/'));
