-- Named queries on the control database: what the watch saw and found, and how the duties are.

-- name: topic_looks: what earlier looks saw of every topic, oldest first
SELECT topic, taken_at, life, stored, counted_until, recorded, attempted, positioned, delayed, resent
FROM watch_topic
WHERE taken_at >= %(since)s AND taken_at < %(before)s
ORDER BY topic, taken_at;

-- name: group_looks: the same of every group
SELECT topic, consumer_group, taken_at, life, passed, waiting, expired, backlog_seconds, counted_until, logged
FROM watch_group
WHERE taken_at >= %(since)s AND taken_at < %(before)s
ORDER BY topic, consumer_group, taken_at;

-- name: save_topic: one look at a topic
INSERT INTO watch_topic (topic, taken_at, life, stored, counted_until, recorded, attempted, positioned, delayed, resent)
VALUES (%(topic)s, %(taken_at)s, %(life)s, %(stored)s, %(counted_until)s, %(recorded)s, %(attempted)s, %(positioned)s,
    %(delayed)s, %(resent)s);

-- name: save_group: one look at a group
INSERT INTO watch_group (topic, consumer_group, taken_at, life, passed, waiting, expired, backlog_seconds, counted_until, logged)
VALUES (%(topic)s, %(group)s, %(taken_at)s, %(life)s, %(passed)s, %(waiting)s, %(expired)s, %(backlog_seconds)s,
    %(counted_until)s, %(logged)s);

-- name: save_queues: where a group is in each queue of a topic, and since when; a look after a long pause begins anew
INSERT INTO watch_queue AS w (topic, consumer_group, queue_id, epoch, passed, stands_since, stored_then, moved, taken_at)
SELECT %(topic)s, %(group)s, q.queue_id, q.epoch, q.passed, %(taken_at)s, q.stored, false, %(taken_at)s
FROM unnest(%(queues)s::integer[], %(epochs)s::text[], %(passed)s::bigint[], %(stored)s::bigint[])
    AS q (queue_id, epoch, passed, stored)
ON CONFLICT (topic, consumer_group, queue_id) DO UPDATE SET
    (epoch, passed, stands_since, stored_then, moved, logged, taken_at) = (
        SELECT excluded.epoch, excluded.passed,
            CASE WHEN stands THEN w.stands_since ELSE excluded.stands_since END,
            CASE WHEN stands THEN w.stored_then ELSE excluded.stored_then END,
            CASE WHEN stands THEN w.moved ELSE known END,
            CASE WHEN stands THEN w.logged END,
            excluded.taken_at
        FROM (SELECT w.epoch = excluded.epoch AND w.taken_at >= %(paused)s AS known) k,
            LATERAL (SELECT k.known AND w.passed = excluded.passed AS stands) s)
RETURNING queue_id, stands_since, stored_then, moved, logged;

-- name: save_logged: how far a group that stands had logged when it was asked
UPDATE watch_queue w SET logged = q.logged
FROM unnest(%(queues)s::integer[], %(logged)s::bigint[]) AS q (queue_id, logged)
WHERE w.topic = %(topic)s AND w.consumer_group = %(group)s AND w.queue_id = q.queue_id;

-- name: open_blocked: the open case of a group's blocked queues, and the queues that its alerts named; in a case that an earlier
-- version opened, those that it lists
SELECT case_id, coalesce(
    (SELECT array_agg(a::integer) FROM jsonb_array_elements_text(evidence -> 'announced') AS a),
    (SELECT array_agg((q ->> 'queue')::integer) FROM jsonb_array_elements(evidence -> 'queues') AS q
        WHERE NOT evidence ? 'announced'), '{}')
FROM case_file
WHERE kind = 'queue_blocked' AND topic = %(topic)s AND consumer_group = %(group)s AND state = 'open';

-- name: causes_blocked: whose queues are blocked by the cases that are not closed
SELECT topic, consumer_group, subject FROM case_file WHERE kind = 'queue_blocked' AND closed_at IS NULL;

-- name: newest_parked: the newest case of each parked key, how it stands, which parking it was seen of, and whether an answer may be applied in part
SELECT DISTINCT ON (topic, consumer_group, subject) topic, consumer_group, subject, state, decision, decided_at,
    evidence ->> 'parked_at', evidence ->> 'messages', coalesce((intention ->> 'reached')::boolean, false)
FROM case_file WHERE kind = 'key_parked' AND consumer_group = ANY (%(groups)s)
ORDER BY topic, consumer_group, subject, case_id DESC;

-- name: tell_of_further: queues that joined an open case; at most once an hour
INSERT INTO alert (case_id, dedup_key, severity, title, body)
VALUES (%(case_id)s, %(dedup_key)s, 'warning', %(title)s, %(body)s)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: forget_books: what was kept of these groups' consumers
DELETE FROM watch_consumer WHERE consumer_group = ANY (%(groups)s);

-- name: forget_owners: what was kept of who owns these groups' queues
DELETE FROM watch_owner WHERE consumer_group = ANY (%(groups)s);

-- name: save_books: one consumer's books as it wrote them last
INSERT INTO watch_consumer (consumer_group, member, counts, in_process, difference, has_ended, started_at, written_at, taken_at)
VALUES (%(group)s, %(member)s, %(counts)s::jsonb, %(in_process)s, %(difference)s, %(has_ended)s, %(started_at)s, %(written_at)s,
    %(taken_at)s);

-- name: save_owner: who owns one queue, and how far behind its group is in it
INSERT INTO watch_owner (topic, consumer_group, queue_id, owner, state, since, waiting, age_seconds, taken_at)
VALUES (%(topic)s, %(group)s, %(queue_id)s, %(owner)s, %(state)s, %(since)s, %(waiting)s, %(age)s, %(taken_at)s);

-- name: save_shard: what is due in a shard
INSERT INTO watch_shard (shard, oldest_due_at, taken_at) VALUES (%(shard)s, %(oldest)s, %(taken_at)s)
ON CONFLICT (shard) DO UPDATE SET oldest_due_at = excluded.oldest_due_at, taken_at = excluded.taken_at;

-- name: forget_topics: looks that no rule needs any more
DELETE FROM watch_topic WHERE taken_at < %(before)s;

-- name: forget_groups: the same, of groups
DELETE FROM watch_group WHERE taken_at < %(before)s;

-- name: forget_queues: the same, of queues
DELETE FROM watch_queue WHERE taken_at < %(before)s;

-- name: forget_runs: the watch's own runs that went well, a day later, but for the newest: one a minute would bury the others
-- A case names the run that opened it.
DELETE FROM run WHERE duty = 'watch' AND state = 'done' AND started_at < %(before)s
    AND NOT EXISTS (SELECT FROM case_file c WHERE c.opened_by_run = run.run_id)
    AND run_id < (SELECT max(r.run_id) FROM run r WHERE r.duty = 'watch' AND r.scope = '*' AND r.state = 'done' AND NOT r.dry_run);

-- name: resent: copies that resend runs published and ended since an instant; null while one is under way
SELECT CASE WHEN bool_or(finished_at IS NULL) THEN NULL ELSE coalesce(sum(coalesce((counts ->> 'published')::bigint,
    coalesce((counts ->> 'closed_sent')::bigint, 0) + coalesce((counts ->> 'closed_unknown')::bigint, 0))), 0) END
FROM run
WHERE duty = 'resend' AND started_at >= %(since)s::timestamptz - interval '1 day'
    AND (finished_at IS NULL OR finished_at >= %(since)s::timestamptz);

-- name: yardsticks: what was usual when the findings that are open began
SELECT rule, topic, consumer_group, yardstick FROM watch_finding WHERE over_at IS NULL AND yardstick IS NOT NULL;

-- name: subjects_found: what every open finding is about
SELECT rule, topic, consumer_group FROM watch_finding WHERE over_at IS NULL ORDER BY finding_id;

-- name: lock_finding: what is open of a rule and subject
SELECT finding_id, severity FROM watch_finding
WHERE rule = %(rule)s AND topic = %(topic)s AND consumer_group = %(group)s AND over_at IS NULL
FOR UPDATE;

-- name: open_finding: a rule holds for a subject from now on
INSERT INTO watch_finding (rule, topic, consumer_group, severity, title, body, yardstick)
VALUES (%(rule)s, %(topic)s, %(group)s, %(severity)s, %(title)s, %(body)s, %(yardstick)s)
RETURNING finding_id;

-- name: still_so: it holds still; the worst that it was stays
UPDATE watch_finding SET last_seen_at = clock_timestamp(), title = %(title)s, body = %(body)s,
    severity = CASE WHEN severity = 'critical' THEN severity ELSE %(severity)s END
WHERE finding_id = %(finding_id)s;

-- name: over: it holds no longer
UPDATE watch_finding SET over_at = clock_timestamp() WHERE finding_id = %(finding_id)s RETURNING title;

-- name: alert: tells people, once for each key
INSERT INTO alert (dedup_key, severity, title, body)
VALUES (%(dedup_key)s, %(severity)s, %(title)s, %(body)s)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: duties: of each duty the newest success (not: its window was shut) and failure over everything, no dry run, and from when on it may be late
SELECT d.duty, s.finished_at, s.run_id, f.finished_at, f.run_id, coalesce(s.finished_at, (SELECT min(started_at) FROM run))
FROM unnest(%(duties)s::text[]) AS d (duty)
LEFT JOIN LATERAL (
    SELECT r.run_id, r.finished_at FROM run r
    WHERE r.duty = d.duty AND r.scope = '*' AND r.state = 'done' AND NOT r.dry_run AND NOT r.counts ? 'window_is_shut'
    ORDER BY r.started_at DESC LIMIT 1) s ON true
LEFT JOIN LATERAL (
    SELECT r.run_id, r.finished_at FROM run r
    WHERE r.duty = d.duty AND r.scope = '*' AND r.state IN ('failed', 'incomplete', 'abandoned') AND NOT r.dry_run
    ORDER BY r.started_at DESC LIMIT 1) f ON true
ORDER BY d.duty;

-- name: now: this database's instant
SELECT clock_timestamp();

-- name: last_success_of: names the last success of a duty over everything; 0: none
SELECT coalesce(
    (SELECT extract(epoch FROM reached)::bigint FROM watermark WHERE subject = %(duty)s || ' went well'),
    (SELECT max(run_id) FROM run WHERE duty = %(duty)s AND scope = '*' AND state = 'done' AND NOT dry_run
        AND NOT counts ? 'window_is_shut'), 0);

-- name: went_well: the last success of what keeps no runs of its own
INSERT INTO watermark (subject, reached) VALUES (%(duty)s || ' went well', clock_timestamp())
ON CONFLICT (subject) DO UPDATE SET reached = excluded.reached;

-- name: told_since: seconds since this alert was written; no row: it was not
SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 FROM alert WHERE dedup_key = %(dedup_key)s;

-- name: failure: tells people of a duty that fails, once for each key
INSERT INTO alert (dedup_key, severity, title, body, facts)
VALUES (%(dedup_key)s, %(severity)s, %(title)s, %(body)s, %(facts)s::jsonb)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: add_up_tally: what changes of rows appended becomes one row for each count; what comes meanwhile stays for the next time
WITH taken AS (
    DELETE FROM tally RETURNING subject, topic, consumer_group, state, category, cause_id, day, number
)
INSERT INTO tally (subject, topic, consumer_group, state, category, cause_id, day, number)
SELECT subject, topic, consumer_group, state, category, cause_id, day, sum(number)
FROM taken GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING sum(number) <> 0;

-- name: add_up_totals: the same for what only grows
WITH taken AS (
    DELETE FROM total RETURNING metric, subject, outcome, bucket, number, seconds
)
INSERT INTO total (metric, subject, outcome, bucket, number, seconds)
SELECT metric, subject, outcome, bucket, sum(number), sum(seconds) FROM taken GROUP BY 1, 2, 3, 4;

-- name: note_counted_since: from when on totals count, once: the first run, which retention takes away one day
INSERT INTO watermark (subject, reached)
SELECT 'totals count', min(started_at) FROM run
WHERE NOT EXISTS (SELECT FROM watermark WHERE subject = 'totals count')
HAVING min(started_at) IS NOT NULL
ON CONFLICT (subject) DO NOTHING;

-- name: count_hour: the deliveries that are open now, by verdict, as the counts of this hour
INSERT INTO delivery_hour (hour, topic, consumer_group, verdict, deliveries)
SELECT date_trunc('hour', clock_timestamp(), 'UTC'), topic, consumer_group, state, greatest(sum(number), 0)
FROM tally WHERE subject = 'delivery' GROUP BY 2, 3, 4
ON CONFLICT (hour, topic, consumer_group, verdict) DO UPDATE SET deliveries = excluded.deliveries;

-- name: clear_hour: ... and none of those that were there earlier in this hour
UPDATE delivery_hour h SET deliveries = 0
WHERE h.hour = date_trunc('hour', clock_timestamp(), 'UTC') AND h.verdict <> 'CONFIRMED' AND h.deliveries > 0 AND NOT EXISTS (
    SELECT 1 FROM tally t WHERE t.subject = 'delivery' AND t.topic = h.topic AND t.consumer_group = h.consumer_group
        AND t.state = h.verdict HAVING sum(t.number) > 0);

-- name: forget_hours: hours that no chart shows any more
DELETE FROM delivery_hour WHERE hour < clock_timestamp() - interval '35 days';

-- name: forget_causes: counts that no page shows any more
DELETE FROM cause_hour WHERE hour < clock_timestamp() - interval '27 hours';

-- name: count_causes: the dead letters that wait for a decision now, by cause, as the counts of this hour, once in it
INSERT INTO cause_hour (hour, topic, consumer_group, cause_id, category, dead_letters)
SELECT date_trunc('hour', clock_timestamp(), 'UTC'), topic, consumer_group, coalesce(cause_id, 0), coalesce(category, ''), sum(number)
FROM tally WHERE subject = 'dead_letter' AND state IN ('open', 'replaying')
    AND NOT EXISTS (SELECT 1 FROM cause_hour WHERE hour = date_trunc('hour', clock_timestamp(), 'UTC'))
GROUP BY 1, 2, 3, 4, 5 HAVING sum(number) > 0;

-- name: count_answers: how long stores and brokers took to answer
INSERT INTO total (metric, subject, outcome, bucket, number, seconds)
SELECT 'stores', t.* FROM unnest(%(subjects)s::text[], %(outcomes)s::text[], %(bounds)s::float8[], %(numbers)s::bigint[],
    %(seconds)s::float8[]) AS t;

-- name: note_looked: somebody looks for due work
INSERT INTO watermark (subject, reached) VALUES (%(subject)s, clock_timestamp())
ON CONFLICT (subject) DO UPDATE SET reached = excluded.reached;

-- name: note_unseen: since when these places have not answered; all others answer
WITH answers AS (
    DELETE FROM watermark WHERE starts_with(subject, %(unseen)s) AND subject <> ALL (%(subjects)s::text[])
)
INSERT INTO watermark (subject, reached)
SELECT s.subject, clock_timestamp() - make_interval(secs => s.seconds)
FROM unnest(%(subjects)s::text[], %(seconds)s::float8[]) AS s (subject, seconds)
ON CONFLICT (subject) DO NOTHING;

-- name: unseen: since when places have not answered; null: one answers again, and its finding is open
SELECT p.place, max(p.since) FROM (
    SELECT substr(subject, length(%(unseen)s) + 1) AS place, reached AS since FROM watermark WHERE starts_with(subject, %(unseen)s)
    UNION ALL
    SELECT topic, NULL FROM watch_finding WHERE rule = %(rule)s AND topic <> '*' AND over_at IS NULL
) p GROUP BY p.place ORDER BY p.place;

-- name: silence: how long ago somebody looked for due work, and whether anybody ever did; if not, how long ago the first run was
SELECT clock_timestamp() - coalesce(looked, (SELECT min(started_at) FROM run), clock_timestamp()), looked IS NOT NULL
FROM (SELECT (SELECT reached FROM watermark WHERE subject = %(subject)s) AS looked) AS l;

-- name: alert_waits: whether an alert that was written longer ago than this still waits for a channel
-- One that another channel took waits since its next try was due: there is nothing to do between two tries.
SELECT EXISTS (
        SELECT 1 FROM alert_delivery d JOIN alert a USING (alert_id)
        WHERE d.delivered_at IS NULL AND d.given_up_at IS NULL AND a.created_at <= clock_timestamp() - %(longer)s
            AND (a.delivered_at IS NULL OR d.next_try_at <= clock_timestamp() - %(longer)s))
    OR EXISTS (
        SELECT 1 FROM alert a
        WHERE a.delivered_at IS NULL AND a.ended IS NULL AND a.created_at <= clock_timestamp() - %(longer)s
            AND NOT EXISTS (SELECT 1 FROM alert_delivery d WHERE d.alert_id = a.alert_id));
