-- The sweep's own tables in the control database.

-- name: add_lines: what a run decided, added to what another process of it did
INSERT INTO sweep_count AS c (run_id, place, consumer_group, topic, owner_host, decision, leases, example)
SELECT %(run_id)s, g.* FROM unnest(%(places)s::text[], %(groups)s::text[], %(topics)s::text[], %(hosts)s::text[],
    %(decisions)s::text[], %(leases)s::integer[], %(examples)s::text[]) AS g
ON CONFLICT (run_id, place, consumer_group, topic, owner_host, decision) DO UPDATE SET leases = c.leases + excluded.leases;

-- name: add_differs: messages on which Redis and the database disagreed
INSERT INTO sweep_sample (run_id, place, consumer_group, topic, message_id, in_redis, in_database, repaired)
SELECT %(run_id)s, g.* FROM unnest(%(places)s::text[], %(groups)s::text[], %(topics)s::text[], %(message_ids)s::text[],
    %(redis)s::text[], %(database)s::text[], %(repaired)s::boolean[]) AS g
ON CONFLICT (run_id, place, consumer_group, topic, message_id) DO UPDATE SET
    in_redis = excluded.in_redis, in_database = excluded.in_database, repaired = excluded.repaired;

-- name: look: how many leases had ended at a place, before or after this run
INSERT INTO sweep_look (run_id, moment, place, expired, oldest_end, overdue, without_time)
VALUES (%(run_id)s, %(moment)s, %(place)s, %(expired)s, %(oldest_end)s, %(overdue)s, %(without_time)s)
ON CONFLICT (run_id, moment, place) DO UPDATE SET expired = excluded.expired, oldest_end = excluded.oldest_end,
    overdue = excluded.overdue, without_time = excluded.without_time, looked_at = clock_timestamp();

-- name: places: where walks go on
SELECT place, goes_on FROM sweep_place;

-- name: goes_on: where the next walk over a place goes on
INSERT INTO sweep_place (place, goes_on) VALUES (%(place)s, %(goes_on)s)
ON CONFLICT (place) DO UPDATE SET goes_on = excluded.goes_on, moved_at = clock_timestamp();

-- name: sampled_lately: whether a sample was compared within so many seconds; also by a run that failed, as it does when a check breaks
SELECT EXISTS (SELECT 1 FROM run WHERE duty = 'sweep' AND state IN ('done', 'failed', 'incomplete') AND counts ? 'sampled' AND NOT dry_run
    AND scope = '*'
    AND finished_at > clock_timestamp() - %(seconds)s::float8 * interval '1 second');

-- name: leaks: who lost leases in several runs lately: a host of a group, or a group's handler of a topic over all hosts
WITH lately AS (
    SELECT c.* FROM sweep_count AS c
    JOIN unnest(%(groups)s::text[], %(windows)s::float8[], %(sweeps)s::integer[]) AS p (consumer_group, seconds, sweeps)
        USING (consumer_group)
    WHERE c.decision = 'RECLAIM' AND c.place NOT LIKE 'front %%' AND c.swept_at > clock_timestamp() - p.seconds * interval '1 second'
), found AS (
    SELECT consumer_group, '*' AS topic, 'host ' || owner_host AS subject, count(DISTINCT run_id) AS runs, sum(leases) AS leases,
        min(swept_at) AS since, max(swept_at) AS last, (array_agg(DISTINCT topic || ' ' || example))[1:20] AS examples
    FROM lately WHERE owner_host NOT IN ('?', '') GROUP BY consumer_group, owner_host
    UNION ALL
    SELECT consumer_group, topic, 'handler', count(DISTINCT run_id), sum(leases), min(swept_at), max(swept_at),
        (array_agg(DISTINCT example))[1:20]
    FROM lately GROUP BY consumer_group, topic
)
SELECT f.consumer_group, f.topic, f.subject, f.runs, f.leases, f.since, f.last, f.examples
FROM found AS f
JOIN unnest(%(groups)s::text[], %(windows)s::float8[], %(sweeps)s::integer[]) AS p (consumer_group, seconds, sweeps)
    USING (consumer_group)
WHERE f.runs >= p.sweeps
ORDER BY f.leases DESC;

-- name: tell_of_newer: an alert for messages that were first received after their case was opened, and after those of the alert before
WITH announced AS (
    INSERT INTO alert (case_id, dedup_key, severity, title, body)
    SELECT c.case_id, %(dedup_key)s, 'warning', %(title)s, %(body)s
    FROM case_file AS c
    WHERE c.case_id = %(case_id)s AND c.state = 'open'
        AND %(newest)s::timestamptz > greatest(c.opened_at, (c.evidence ->> 'announced_until')::timestamptz)
    ON CONFLICT (dedup_key) DO NOTHING
    RETURNING case_id
)
UPDATE case_file AS c SET evidence = c.evidence || jsonb_build_object('announced_until', %(newest)s::timestamptz)
FROM announced AS a WHERE c.case_id = a.case_id;

-- name: drop_idle: runs that found nothing to do, of more than a day ago, but for the newest that succeeded, by which the duty is judged
DELETE FROM run WHERE duty = 'sweep' AND state = 'done' AND counts = '{"due": 0}' AND finished_at < clock_timestamp() - interval '1 day'
    AND run_id < (SELECT max(r.run_id) FROM run r WHERE r.duty = 'sweep' AND r.scope = '*' AND r.state = 'done' AND NOT r.dry_run);

-- name: drop_old: counts that no window needs any more; runs keep their own
DELETE FROM sweep_count WHERE swept_at < clock_timestamp() - interval '30 days';
