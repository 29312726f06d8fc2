-- Named queries on the control database: what metrics show. They change nothing.

-- name: oldest_due: by shard, as last looked at, when that is not older than an hour
SELECT shard, extract(epoch FROM coalesce(oldest_due_at, taken_at))::float8 FROM watch_shard
WHERE taken_at >= clock_timestamp() - interval '1 hour';

-- name: duties: when runs of each duty and scope last succeeded and last did not, dry runs aside
SELECT duty, scope,
    extract(epoch FROM max(finished_at) FILTER (WHERE state = 'done' AND NOT counts ? 'window_is_shut'))::float8,
    extract(epoch FROM max(finished_at) FILTER (WHERE state IN ('failed', 'incomplete', 'abandoned')))::float8
FROM run
WHERE NOT dry_run
GROUP BY duty, scope
ORDER BY duty, scope;

-- name: open_findings: what the watch sees now
SELECT rule, topic, consumer_group, severity, count(*) FROM watch_finding
WHERE over_at IS NULL
GROUP BY 1, 2, 3, 4;

-- name: open_cases: what waits for a person
SELECT kind, topic, consumer_group, severity, count(*), extract(epoch FROM min(opened_at))::float8 FROM case_file
WHERE state = 'open'
GROUP BY 1, 2, 3, 4;

-- name: open_requests: resends asked for and not ended
SELECT topic, state, count(*) FROM resend_request
WHERE state IN ('open', 'claimed')
GROUP BY 1, 2;

-- name: newest_groups: what the newest look saw of each group, when it is not older than an hour
SELECT DISTINCT ON (topic, consumer_group) topic, consumer_group, waiting, backlog_seconds
FROM watch_group
WHERE taken_at >= clock_timestamp() - interval '1 hour'
ORDER BY topic, consumer_group, taken_at DESC;

-- name: undelivered_alerts: what nobody was told of and somebody should be
SELECT severity, count(*) FROM alert WHERE delivered_at IS NULL AND ended IS NULL GROUP BY severity;

-- name: verdicts_now: what the newest promoted runs found open, by topic, group and verdict
SELECT c.topic, c.consumer_group, c.verdict, c.deliveries
FROM verdict_count c
JOIN (SELECT run_id FROM run WHERE duty = 'reconcile' AND scope = '*' AND state = 'done' AND NOT dry_run
    AND EXISTS (SELECT 1 FROM verdict_count v WHERE v.run_id = run.run_id)
    ORDER BY started_at DESC LIMIT 1) newest USING (run_id);

-- name: open_now: deliveries that are open, by their newest verdict
SELECT topic, consumer_group, state, sum(number) FROM tally WHERE subject = 'delivery'
GROUP BY 1, 2, 3 HAVING sum(number) > 0;

-- name: undecided_now: dead letters that nobody has decided, and those that are being replayed
SELECT topic, consumer_group, state, sum(number) FROM tally WHERE subject = 'dead_letter' AND state IN ('open', 'replaying')
GROUP BY 1, 2, 3 HAVING sum(number) > 0;

-- name: totals: sends and dead letters that ever were, by outcome
SELECT subject, outcome, sum(number) FROM total WHERE metric = %(metric)s GROUP BY 1, 2 ORDER BY 1, 2;

-- name: durations: how long runs, or answers of stores, took, by the bound that each fitted into
SELECT subject, outcome, bucket, sum(number)::float8, sum(seconds) FROM total WHERE metric = %(metric)s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: database_size: of the control database, in bytes
SELECT pg_database_size(current_database());

-- name: table_sizes: of its largest tables with indexes and large values, and their dead rows that vacuum has not taken yet
SELECT s.relname, pg_total_relation_size(s.relid), s.n_live_tup, s.n_dead_tup
FROM pg_stat_user_tables s
WHERE s.schemaname = current_schema()
ORDER BY 2 DESC, 1
LIMIT 20;

-- name: connections: to the whole server: used, and the most there may be
SELECT sum(numbackends), current_setting('max_connections')::integer FROM pg_stat_database;

-- name: books_now: what does not balance in each consumer's books, when it wrote them not long ago
SELECT consumer_group, member, difference FROM watch_consumer
WHERE taken_at > clock_timestamp() - interval '1 hour' AND written_at > clock_timestamp() - interval '1 hour'
ORDER BY 1, 2;

-- name: in_process_now: what each consumer processes now
SELECT consumer_group, member, in_process FROM watch_consumer
WHERE taken_at > clock_timestamp() - interval '1 hour' AND written_at > clock_timestamp() - interval '1 hour' AND NOT has_ended
ORDER BY 1, 2;

-- name: owners_now: who owns each queue, and how far behind its group is in it
SELECT topic, consumer_group, queue_id::text, coalesce(owner, ''), state, coalesce(waiting, 0), coalesce(age_seconds, 0)
FROM watch_owner WHERE taken_at > clock_timestamp() - interval '1 hour'
ORDER BY 1, 2, queue_id;

-- name: counted_since: nanoseconds of the epoch since which totals count: as the watch wrote it down, until then the first run, else now
SELECT (extract(epoch FROM coalesce(
    (SELECT reached FROM watermark WHERE subject = 'totals count'), (SELECT min(started_at) FROM run), clock_timestamp())) * 1000000)::bigint
    * 1000;
