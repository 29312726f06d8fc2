-- What a sweep left behind.

-- name: no_lease_overdue: no lease that ended more than two sweeps ago is left
SELECT l.place, l.overdue
FROM {batch} AS run
JOIN sweep_look AS l ON l.run_id = run.run_id AND l.moment = 'after'
WHERE l.overdue > 0;

-- name: done_has_a_time: no log is CONSUMED without a time
SELECT l.place, l.without_time
FROM {batch} AS run
JOIN sweep_look AS l ON l.run_id = run.run_id AND l.moment = 'after'
WHERE l.without_time > 0;

-- name: redis_agrees: every message of the sample on which Redis and the database disagreed was corrected
SELECT s.consumer_group, s.topic, s.message_id
FROM {batch} AS run
JOIN sweep_sample AS s ON s.run_id = run.run_id
WHERE NOT s.repaired;

-- name: counted_by_line: the lines by group and host add up to no less than what the run counted as taken back
SELECT r.run_id
FROM {batch} AS run
JOIN run AS r USING (run_id)
WHERE coalesce((r.counts ->> 'reclaim')::bigint, 0)
    > coalesce((SELECT sum(c.leases) FROM sweep_count AS c WHERE c.run_id = r.run_id AND c.decision = 'RECLAIM'), 0);
