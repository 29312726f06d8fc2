-- What a sweep met, before it changed anything.

-- name: no_lease_overdue: no lease ended more than two sweeps ago: the sweeps before this one did their work
SELECT l.place, l.overdue
FROM {batch} AS run
JOIN sweep_look AS l ON l.run_id = run.run_id AND l.moment = 'before'
WHERE l.overdue > 0
  AND EXISTS (SELECT 1 FROM run AS earlier WHERE earlier.duty = 'sweep' AND earlier.scope = '*' AND earlier.state = 'done'
      AND NOT earlier.dry_run AND earlier.run_id < run.run_id
      AND earlier.finished_at > run.started_at - interval '2 minutes');

-- name: done_has_a_time: no log is CONSUMED without a time
SELECT l.place, l.without_time
FROM {batch} AS run
JOIN sweep_look AS l ON l.run_id = run.run_id AND l.moment = 'before'
WHERE l.without_time > 0;
