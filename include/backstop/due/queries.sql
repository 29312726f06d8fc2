-- Named queries on the control database: what a look from outside a run asks.

-- name: runs: of each duty the newest run over everything: seconds since it began, and whether it still works
SELECT d.duty, extract(epoch FROM clock_timestamp() - r.started_at)::float8,
    coalesce(r.finished_at IS NULL AND r.heartbeat_at > clock_timestamp() - %(dead_after)s, false)
FROM unnest(%(duties)s::text[]) AS d (duty)
LEFT JOIN LATERAL (
    SELECT started_at, finished_at, heartbeat_at FROM run
    WHERE run.duty = d.duty AND run.scope = '*' AND NOT run.dry_run
    ORDER BY started_at DESC
    LIMIT 1) AS r ON true;

-- name: clock: this database's instant
SELECT clock_timestamp();

-- name: undecided: whether a case waits for a person
SELECT EXISTS (SELECT 1 FROM case_file WHERE state = 'open');
