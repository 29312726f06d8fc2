-- What a sweep left behind.

-- name: counted_by_line: the lines by group and host add up to no less than what the run counted as taken back
SELECT r.run_id
FROM {batch} AS run
JOIN run AS r USING (run_id)
WHERE coalesce((r.counts ->> 'reclaim')::bigint, 0)
    > coalesce((SELECT sum(c.leases) FROM sweep_count AS c WHERE c.run_id = r.run_id AND c.decision = 'RECLAIM'), 0);
