-- Named queries on the control database: the console in Airflow. They change nothing, and read no content.
-- `of_teams`: the topics that belong to a team (null: everything may be seen); `readable`: those of them that the visitor may see;
-- `others`: whether the visitor may see what belongs to no team. Every filter may be null: any. `after…`: the last key of the page
-- before; null: the first page. One row more than `limit` says that there is a next page.
-- `topic` and `group` of a dead letter may be `*`: it names none, as counts say it. `cause` 0 and `category` none: not classified.
-- Columns are compared with now(), which an index can look up once; clock_timestamp() is asked again for each row of a table.
-- An id without a topic is looked for in each topic that the table knows, one step of its index each: no index begins with the id.

-- name: tallies: how many open deliveries, dead letters and requests there are, by topic, group and state
SELECT t.subject, t.topic, t.consumer_group AS "group", t.state, t.day, sum(t.number)::bigint AS number
FROM tally t
WHERE (t.subject <> 'request' OR t.state IN ('open', 'claimed') OR t.day = (now() AT TIME ZONE 'UTC')::date)
    AND (t.subject <> 'dead_letter' OR t.state IN ('open', 'replaying'))
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN t.topic = ANY (%(of_teams)s) THEN t.topic = ANY (%(readable)s) ELSE %(others)s END)
GROUP BY 1, 2, 3, 4, 5
HAVING sum(t.number) > 0
ORDER BY 1, 2, 3, 4, 5;

-- name: open_cases: how many, by topic, kind and severity, and since when
SELECT c.topic, c.kind, c.severity, count(*) AS number, min(c.opened_at) AS oldest
FROM case_file c
WHERE c.state = 'open'
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN c.topic = ANY (%(of_teams)s) THEN c.topic = ANY (%(readable)s) ELSE %(others)s END)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: findings: what the watch sees now
SELECT f.finding_id AS finding, f.rule, f.topic, f.consumer_group AS "group", f.severity, f.title, f.began_at, f.last_seen_at
FROM watch_finding f
WHERE f.over_at IS NULL
    AND (%(of_teams)s::text[] IS NULL OR f.rule IN ('duty_overdue', 'heartbeat')
        OR CASE WHEN f.topic = ANY (%(of_teams)s) THEN f.topic = ANY (%(readable)s) ELSE %(others)s END)
ORDER BY f.severity, f.began_at LIMIT 200;

-- name: pauses: what is paused
SELECT p.topic, p.paused_at, p.paused_by, p.why FROM pause p
WHERE p.topic = '*' OR %(of_teams)s::text[] IS NULL
    OR CASE WHEN p.topic = ANY (%(of_teams)s) THEN p.topic = ANY (%(readable)s) ELSE %(others)s END
ORDER BY p.topic;

-- name: newest_reconcile: what the newest complete run read, by verdict, of the topics that the visitor sees
SELECT r.run_id AS run, r.as_of, c.verdict, sum(c.deliveries)::bigint AS deliveries
FROM (SELECT run_id, as_of FROM run WHERE duty = 'reconcile' AND scope = '*' AND state = 'done' AND NOT dry_run
    ORDER BY started_at DESC LIMIT 1) r
LEFT JOIN verdict_count c ON c.run_id = r.run_id
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN c.topic = ANY (%(of_teams)s) THEN c.topic = ANY (%(readable)s) ELSE %(others)s END)
GROUP BY 1, 2, 3 ORDER BY 3;

-- name: newest_look: when the watch last looked at all of it
SELECT max(taken_at) AS taken_at FROM watch_shard;

-- name: history: deliveries by hour and verdict
SELECT h.hour, h.verdict, sum(h.deliveries)::bigint AS deliveries
FROM delivery_hour h
WHERE h.hour >= date_trunc('hour', now(), 'UTC') - make_interval(hours => %(hours)s)
    AND (%(topic)s::text IS NULL OR h.topic = %(topic)s) AND (%(group)s::text IS NULL OR h.consumer_group = %(group)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN h.topic = ANY (%(of_teams)s) THEN h.topic = ANY (%(readable)s) ELSE %(others)s END)
GROUP BY 1, 2 ORDER BY 1, 2;

-- name: deliveries: those that are open, by message
SELECT o.topic, o.message_id, o.consumer_group AS "group", o.shard, o.verdict, o.reason, o.eligible, o.case_kind, o.run_id AS run,
    o.since, o.judged_at, o.next_look_at
FROM open_delivery o
WHERE (%(topic)s::text IS NULL OR o.topic = %(topic)s) AND (%(group)s::text IS NULL OR o.consumer_group = %(group)s)
    AND (%(verdict)s::text IS NULL OR o.verdict = %(verdict)s) AND (%(shard)s::text IS NULL OR o.shard = %(shard)s)
    AND (%(reason)s::text IS NULL OR o.reason = %(reason)s) AND (%(id)s::text IS NULL OR (o.message_id = %(id)s AND o.topic = ANY (ARRAY(
        WITH RECURSIVE known (topic) AS (SELECT min(topic) FROM open_delivery
            UNION ALL SELECT (SELECT min(x.topic) FROM open_delivery x WHERE x.topic > known.topic) FROM known WHERE known.topic IS NOT NULL)
        SELECT topic FROM known WHERE topic IS NOT NULL))))
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN o.topic = ANY (%(of_teams)s) THEN o.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::text IS NULL OR (o.topic, o.message_id, o.consumer_group) > (%(after_1)s, %(after_2)s, %(after_3)s))
ORDER BY o.topic, o.message_id, o.consumer_group LIMIT %(limit)s;

-- name: cases: the newest first
SELECT c.case_id AS "case", c.kind, c.topic, c.consumer_group AS "group", c.severity, c.state, c.summary, c.opened_at, c.last_seen_at,
    c.decision, c.decided_by, c.decided_at, c.closed_at, c.reopened
FROM case_file c
WHERE (%(topic)s::text IS NULL OR c.topic = %(topic)s) AND (%(group)s::text IS NULL OR c.consumer_group = %(group)s)
    AND (%(kind)s::text IS NULL OR c.kind = %(kind)s) AND (%(state)s::text IS NULL OR c.state = %(state)s)
    AND (%(severity)s::text IS NULL OR c.severity = %(severity)s)
    AND (%(waits)s::text IS NULL OR c.state = 'open' AND (c.topic, c.kind) IN (SELECT * FROM unnest(%(my_topics)s::text[], %(my_kinds)s::text[])))
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN c.topic = ANY (%(of_teams)s) THEN c.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR c.case_id < %(after_1)s)
ORDER BY c.case_id DESC LIMIT %(limit)s;

-- name: case: one case; of many members only the first are counted
SELECT c.case_id AS "case", c.kind, c.topic, c.consumer_group AS "group", c.severity, c.state, c.summary, c.evidence, c.opened_at,
    c.opened_by_run AS run, c.last_seen_at, c.decision, c.decided_by, c.decided_at, c.why, c.closed_at, c.reopened,
    (SELECT count(*) FROM (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id LIMIT 10001) m) AS members,
    (SELECT count(*) FROM (SELECT 1 FROM case_member m WHERE m.case_id = c.case_id AND m.settled_at IS NULL LIMIT 10001) m)
        AS open_members,
    (SELECT count(*) FROM (SELECT 1 FROM dead_letter d WHERE d.case_id = c.case_id LIMIT 10001) d) AS dead_letters,
    q.dag_run_id AS dag_run, q.shown_at AS asked_at, coalesce((q.shown ->> 'answered')::boolean, false) AS answered,
    p.proposal_id AS proposal, p.action AS proposed, p.who AS proposed_by, p.why AS proposed_why, p.proposed_at,
    p.options, p.content_bytes AS proposed_content_bytes, p.content_sha256 AS proposed_content_sha256
FROM case_file c
LEFT JOIN case_question q ON q.case_id = c.case_id AND q.ended_at IS NULL
LEFT JOIN proposal p ON p.case_id = c.case_id AND p.ended_at IS NULL AND p.proposed_at >= c.opened_at
    AND (c.state = 'open' OR c.state = 'decided' AND c.decision = 'leave')
WHERE c.case_id = %(case_id)s
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN c.topic = ANY (%(of_teams)s) THEN c.topic = ANY (%(readable)s) ELSE %(others)s END);

-- name: members: a case's deliveries
SELECT m.topic, m.message_id, m.consumer_group AS "group", m.shard, m.added_at, m.settled_at
FROM case_member m
WHERE m.case_id = %(case_id)s
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN m.topic = ANY (%(of_teams)s) THEN m.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::text IS NULL OR (m.topic, m.message_id, m.consumer_group) > (%(after_1)s, %(after_2)s, %(after_3)s))
ORDER BY m.topic, m.message_id, m.consumer_group LIMIT %(limit)s;

-- name: notes: what people wrote about a case
SELECT n.note_id AS number, n.written_at, n.written_by, n.note FROM case_note n WHERE n.case_id = %(case_id)s ORDER BY n.note_id LIMIT 500;

-- name: questions: when people were asked, and what they answered
SELECT q.number, q.dag_run_id AS dag_run, q.asked_at, q.shown_at, q.answered_by, q.answer, q.ended_at, q.how, q.said
FROM case_question q WHERE q.case_id = %(case_id)s ORDER BY q.number DESC LIMIT 100;

-- name: causes: what undecided dead letters died of, the most frequent first; those that are not classified yet under no cause
SELECT t.cause_id AS cause, t.category, c.shown AS template, c.fingerprint, c.first_seen_at, c.last_seen_at, t.number AS dead_letters,
    t.places, CASE WHEN h.counted THEN h.dead_letters END AS day_ago,
    (SELECT l.classified_by FROM dead_letter l WHERE l.cause_id = t.cause_id AND l.state = 'open' LIMIT 1) AS rule
FROM (
    SELECT t.cause_id, t.category, sum(t.number)::bigint AS number, count(DISTINCT (t.topic, t.consumer_group)) AS places
    FROM tally t
    WHERE t.subject = 'dead_letter' AND t.state IN ('open', 'replaying')
        AND (%(topic)s::text IS NULL OR t.topic = %(topic)s) AND (%(group)s::text IS NULL OR t.consumer_group = %(group)s)
        AND (%(category)s::text IS NULL OR t.category = %(category)s OR %(category)s = 'none' AND t.category IS NULL)
        AND (%(of_teams)s::text[] IS NULL
            OR CASE WHEN t.topic = ANY (%(of_teams)s) THEN t.topic = ANY (%(readable)s) ELSE %(others)s END)
    GROUP BY 1, 2 HAVING sum(t.number) > 0
) t
LEFT JOIN cause c ON c.cause_id = t.cause_id
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT 1 FROM cause_hour x WHERE x.hour = date_trunc('hour', now(), 'UTC') - interval '24 hours') AS counted,
        coalesce(sum(x.dead_letters), 0)::bigint AS dead_letters
    FROM cause_hour x
    WHERE x.hour = date_trunc('hour', now(), 'UTC') - interval '24 hours'
        AND x.cause_id = coalesce(t.cause_id, 0) AND x.category = coalesce(t.category, '')
        AND (%(topic)s::text IS NULL OR x.topic = %(topic)s) AND (%(group)s::text IS NULL OR x.consumer_group = %(group)s)
        AND (%(of_teams)s::text[] IS NULL
            OR CASE WHEN x.topic = ANY (%(of_teams)s) THEN x.topic = ANY (%(readable)s) ELSE %(others)s END)) h
WHERE %(after_1)s::bigint IS NULL OR (-t.number, coalesce(t.cause_id, 0), coalesce(t.category, ''))
    > (-%(after_1)s::bigint, %(after_2)s::bigint, %(after_3)s::text)
ORDER BY -t.number, coalesce(t.cause_id, 0), coalesce(t.category, '') LIMIT %(limit)s;

-- name: dead_letters: the newest first
SELECT l.dead_letter_id AS dead_letter, l.broker, l.queue, l.topic, l.consumer_group AS "group", l.message_id, l.state, l.category,
    l.cause_id AS cause, l.classified_by, l.decision, l.reason, l.decided_by, l.decided_at, l.case_id AS "case", l.deliveries,
    l.content_bytes, l.died_at, l.drained_at, l.invalid IS NOT NULL AS invalid
FROM dead_letter l
WHERE (%(topic)s::text IS NULL OR l.topic = %(topic)s OR %(topic)s = '*' AND l.topic IS NULL) AND (%(group)s::text IS NULL OR l.consumer_group = %(group)s OR %(group)s = '*' AND l.consumer_group IS NULL)
    AND (%(state)s::text IS NULL OR l.state = %(state)s OR %(state)s = 'undecided' AND l.state IN ('open', 'replaying')) AND (%(category)s::text IS NULL OR l.category = %(category)s OR %(category)s = 'none' AND l.category IS NULL)
    AND (%(cause)s::bigint IS NULL OR l.cause_id = %(cause)s OR %(cause)s = 0 AND l.cause_id IS NULL) AND (%(case)s::bigint IS NULL OR l.case_id = %(case)s)
    AND (%(id)s::text IS NULL OR (l.message_id = %(id)s AND (l.topic IS NULL OR l.topic = ANY (ARRAY(
        WITH RECURSIVE known (topic) AS (SELECT min(topic) FROM dead_letter
            UNION ALL SELECT (SELECT min(x.topic) FROM dead_letter x WHERE x.topic > known.topic) FROM known WHERE known.topic IS NOT NULL)
        SELECT topic FROM known WHERE topic IS NOT NULL)))))
    AND (%(since)s::interval IS NULL OR coalesce(l.died_at, l.drained_at) >= now() - %(since)s::interval)
    AND (%(of_teams)s::text[] IS NULL
        OR CASE WHEN l.topic = ANY (%(of_teams)s) THEN l.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR l.dead_letter_id < %(after_1)s)
ORDER BY l.dead_letter_id DESC LIMIT %(limit)s;

-- name: matching_dead_letters: how many match a filter, by case; only the first 10,001 are counted
SELECT d."case", count(*) AS number
FROM (
    SELECT l.case_id AS "case" FROM dead_letter l
    WHERE (%(topic)s::text IS NULL OR l.topic = %(topic)s OR %(topic)s = '*' AND l.topic IS NULL) AND (%(group)s::text IS NULL OR l.consumer_group = %(group)s OR %(group)s = '*' AND l.consumer_group IS NULL)
        AND (%(state)s::text IS NULL OR l.state = %(state)s OR %(state)s = 'undecided' AND l.state IN ('open', 'replaying')) AND (%(category)s::text IS NULL OR l.category = %(category)s OR %(category)s = 'none' AND l.category IS NULL)
        AND (%(cause)s::bigint IS NULL OR l.cause_id = %(cause)s OR %(cause)s = 0 AND l.cause_id IS NULL) AND (%(case)s::bigint IS NULL OR l.case_id = %(case)s)
        AND (%(id)s::text IS NULL OR (l.message_id = %(id)s AND (l.topic IS NULL OR l.topic = ANY (ARRAY(
        WITH RECURSIVE known (topic) AS (SELECT min(topic) FROM dead_letter
            UNION ALL SELECT (SELECT min(x.topic) FROM dead_letter x WHERE x.topic > known.topic) FROM known WHERE known.topic IS NOT NULL)
        SELECT topic FROM known WHERE topic IS NOT NULL)))))
        AND (%(since)s::interval IS NULL OR coalesce(l.died_at, l.drained_at) >= now() - %(since)s::interval)
        AND (%(of_teams)s::text[] IS NULL OR CASE WHEN l.topic = ANY (%(of_teams)s) THEN l.topic = ANY (%(readable)s) ELSE %(others)s END)
    LIMIT 10001
) d
GROUP BY 1 ORDER BY 2 DESC, 1;

-- name: dead_letter: one, without its content and headers
SELECT l.dead_letter_id AS dead_letter, l.broker, l.queue, l.broker_id, l.topic, l.consumer_group AS "group", l.message_id, l.queue_id,
    l.queue_offset, l.queue_epoch, l.tag, l.state, l.category, l.cause_id AS cause, c.shown AS template, l.classified_by, l.classified_at,
    l.decision, l.reason, l.decided_by, l.decided_at, l.case_id AS "case", l.deliveries, l.content_bytes, l.died_at, l.drained_at,
    l.invalid IS NOT NULL AS invalid, l.shard, l.send_number AS send, l.look_at, l.closed_at, l.emptied_at
FROM dead_letter l LEFT JOIN cause c USING (cause_id)
WHERE l.dead_letter_id = %(dead_letter_id)s
    AND (%(of_teams)s::text[] IS NULL
        OR CASE WHEN l.topic = ANY (%(of_teams)s) THEN l.topic = ANY (%(readable)s) ELSE %(others)s END);

-- name: messages: the messages that an id or a broker's id names, wherever we know of one
SELECT f.topic, f.message_id, f.found_in FROM (
    (SELECT topic, message_id, 'open deliveries' AS found_in FROM open_delivery WHERE topic = ANY (%(topics)s) AND message_id = %(text)s LIMIT 50)
    UNION (SELECT topic, message_id, 'dead letters' FROM dead_letter WHERE topic = ANY (%(topics)s) AND message_id = %(text)s LIMIT 50)
    UNION (SELECT topic, message_id, 'dead letters' FROM dead_letter WHERE broker_id = %(text)s AND topic IS NOT NULL AND message_id IS NOT NULL LIMIT 50)
    UNION (SELECT topic, message_id, 'resends' FROM resend_request WHERE topic = ANY (%(topics)s) AND message_id = %(text)s LIMIT 50)
    UNION (SELECT topic, message_id, 'cases' FROM case_member WHERE topic = ANY (%(topics)s) AND message_id = %(text)s LIMIT 50)
) f
WHERE %(of_teams)s::text[] IS NULL OR CASE WHEN f.topic = ANY (%(of_teams)s) THEN f.topic = ANY (%(readable)s) ELSE %(others)s END
ORDER BY 1, 2, 3 LIMIT 100;

-- name: requests: resends, the newest first
SELECT q.request_id AS request, q.topic, q.message_id, q.send_number AS send, q.groups, q.reason, q.requested_by, q.route, q.state, q.held,
    q.batch_id AS batch, q.step, q.not_before, q.run_id AS run, q.closed_by_run, q.created_at, q.updated_at
FROM resend_request q
WHERE (%(topic)s::text IS NULL OR q.topic = %(topic)s) AND (%(state)s::text IS NULL OR q.state = %(state)s)
    AND (%(id)s::text IS NULL OR (q.message_id = %(id)s AND q.topic = ANY (ARRAY(
        WITH RECURSIVE known (topic) AS (SELECT min(topic) FROM resend_request
            UNION ALL SELECT (SELECT min(x.topic) FROM resend_request x WHERE x.topic > known.topic) FROM known WHERE known.topic IS NOT NULL)
        SELECT topic FROM known WHERE topic IS NOT NULL)))) AND (%(batch)s::bigint IS NULL OR q.batch_id = %(batch)s)
    AND (%(run)s::bigint IS NULL OR q.run_id = %(run)s) AND (%(held)s::text IS NULL OR q.held = (%(held)s = 'yes'))
    AND (%(plan)s::bigint IS NULL OR EXISTS (
        SELECT 1 FROM incident_delivery d
        WHERE d.run_id = %(plan)s AND d.asked_at IS NOT NULL
            AND (d.topic, d.message_id, d.send_number) = (q.topic, q.message_id, q.send_number)))
    AND (%(day)s::date IS NULL OR (q.updated_at >= %(day)s::date::timestamp AT TIME ZONE 'UTC'
        AND q.updated_at < (%(day)s::date + 1)::timestamp AT TIME ZONE 'UTC'))
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN q.topic = ANY (%(of_teams)s) THEN q.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR q.request_id < %(after_1)s)
ORDER BY q.request_id DESC LIMIT %(limit)s;

-- name: batches: resends that go out in steps, the newest first; of live ones how many wait, and how many went out in a minute
SELECT b.batch_id AS batch, b.topic, b.state, b.step, b.step_size, b.released, b.released_at, b.created_at, b.ended_at, b.case_id AS "case",
    CASE WHEN b.state IN ('ramping', 'stopped') THEN (
        SELECT count(*) FROM (SELECT 1 FROM resend_request q WHERE q.topic = b.topic AND q.state = 'open' AND q.held LIMIT 10001) h) END
        AS held,
    CASE WHEN b.state IN ('ramping', 'stopped') THEN (
        SELECT count(*) FROM (SELECT 1 FROM resend_request q
            WHERE q.batch_id = b.batch_id AND q.state IN ('sent', 'refused', 'unknown') AND q.updated_at >= now() - interval '1 min'
            LIMIT 10001) r) END AS sent_last_minute
FROM resend_batch b
WHERE (%(topic)s::text IS NULL OR b.topic = %(topic)s) AND (%(state)s::text IS NULL OR b.state = %(state)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN b.topic = ANY (%(of_teams)s) THEN b.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR b.batch_id < %(after_1)s)
ORDER BY b.batch_id DESC LIMIT %(limit)s;

-- name: replays: plans to send again what an incident lost, the newest first
SELECT i.run_id AS plan, i.wanted ->> 'topic' AS topic, i.planned_by, i.planned_at, i.why, i.wanted, i.whole, i.too_wide, i.approved_by,
    i.approved_at, i.planned_in AS dag_run
FROM incident i
WHERE (%(topic)s::text IS NULL OR i.wanted ->> 'topic' = %(topic)s) AND (%(run)s::bigint IS NULL OR i.run_id = %(run)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN i.wanted ->> 'topic' = ANY (%(of_teams)s) THEN i.wanted ->> 'topic' = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR i.run_id < %(after_1)s)
ORDER BY i.run_id DESC LIMIT %(limit)s;

-- name: replay: one plan, by its number or the newest of a run in Airflow, and the answer that approves it
SELECT i.run_id AS plan, i.wanted ->> 'topic' AS topic, i.planned_by, i.planned_at, i.why, i.wanted, i.whole, i.too_wide, i.approved_by,
    i.approved_at, i.planned_in AS dag_run, i.left_out,
    CASE WHEN i.shown ->> 'answered' IS NULL THEN i.shown ->> 'yes' END AS yes
FROM incident i
WHERE CASE WHEN %(run)s::bigint IS NULL THEN i.planned_in = %(dag_run)s ELSE i.run_id = %(run)s END
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN i.wanted ->> 'topic' = ANY (%(of_teams)s) THEN i.wanted ->> 'topic' = ANY (%(readable)s) ELSE %(others)s END)
ORDER BY i.run_id DESC LIMIT 1;

-- name: replay_parts: what is in a plan, and how much of it was requested, or left out when it was to be
SELECT d.consumer_group AS "group", d.reason, count(*) AS deliveries, count(d.asked_at) AS requested, count(d.left_out) AS left_out
FROM incident_delivery d WHERE d.run_id = %(run)s GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 200;

-- name: replay_examples: its first messages
SELECT d.message_id FROM incident_delivery d WHERE d.run_id = %(run)s ORDER BY d.place LIMIT 5;

-- name: replay_deliveries: what is in a plan, in the order in which it is requested
SELECT d.place, d.topic, d.message_id, d.consumer_group AS "group", d.send_number AS send, d.route, d.reason, d.asked_at, d.left_out,
    CASE WHEN d.left_out IS NOT NULL THEN 'left_out' WHEN d.asked_at IS NOT NULL THEN 'requested' ELSE 'planned' END AS state
FROM incident_delivery d
WHERE d.run_id = %(plan)s AND (%(group)s::text IS NULL OR d.consumer_group = %(group)s)
    AND (%(reason)s::text IS NULL OR d.reason = %(reason)s)
    AND (%(state)s::text IS NULL OR %(state)s = CASE WHEN d.left_out IS NOT NULL THEN 'left_out'
        WHEN d.asked_at IS NOT NULL THEN 'requested' ELSE 'planned' END)
    AND (%(after_1)s::bigint IS NULL OR d.place > %(after_1)s)
ORDER BY d.place LIMIT %(limit)s;

-- name: replay_sends: what became of its requests, of the first `most` deliveries; one request may be of several groups
SELECT q.state, count(*) AS number
FROM (
    SELECT DISTINCT f.topic, f.message_id, f.send_number
    FROM (
        SELECT d.topic, d.message_id, d.send_number FROM incident_delivery d
        WHERE d.run_id = %(run)s AND d.asked_at IS NOT NULL ORDER BY d.place LIMIT %(most)s) f
) d
JOIN resend_request q USING (topic, message_id, send_number)
GROUP BY 1 ORDER BY 1;

-- name: runs: the newest first; `busy` leaves out those that ended well and found nothing to do
SELECT r.run_id AS run, r.duty, r.scope, r.state, r.dry_run, r.started_at, r.finished_at, r.heartbeat_at, r.counts, r.phases, r.error,
    r.phase, r.phase_at, r.phase_done, r.phase_of,
    extract(epoch FROM clock_timestamp() - r.heartbeat_at)::float8 AS heartbeat_age,
    EXISTS (SELECT 1 FROM data_check k WHERE k.run_id = r.run_id AND NOT k.passed) AS check_failed
FROM run r
WHERE r.duty = ANY (%(duties)s) AND (%(duty)s::text IS NULL OR r.duty = %(duty)s) AND (%(state)s::text IS NULL OR r.state = %(state)s)
    AND (NOT %(busy)s OR (r.state <> 'done' OR jsonb_path_exists(r.counts, '$.* ? (@ != 0)')) AND (r.duty <> 'watch' OR r.state <> 'done'))
    AND (%(after_1)s::bigint IS NULL OR r.run_id < %(after_1)s)
ORDER BY r.run_id DESC LIMIT %(limit)s;

-- name: run: one run
SELECT r.run_id AS run, r.duty, r.scope, r.state, r.dry_run, r.no_send, r.started_at, r.finished_at, r.heartbeat_at, r.as_of, r.stage,
    r.policy_version, r.code_version, r.counts, r.phases, r.error, r.phase, r.phase_at, r.phase_done, r.phase_of,
    extract(epoch FROM clock_timestamp() - r.heartbeat_at)::float8 AS heartbeat_age
FROM run r WHERE r.run_id = %(run_id)s AND r.duty = ANY (%(duties)s);

-- name: checks: a run's data checks
SELECT k.suite, k.passed, k.expectations, k.failed, k.checked_at FROM data_check k WHERE k.run_id = %(run_id)s ORDER BY k.checked_at, k.suite;

-- name: verdicts_of_run: what it found, of the topics that the visitor sees
SELECT c.topic, c.consumer_group AS "group", c.verdict, c.deliveries, c.eligible, c.newly
FROM verdict_count c
WHERE c.run_id = %(run_id)s
    AND (%(topic)s::text IS NULL OR c.topic = %(topic)s) AND (%(group)s::text IS NULL OR c.consumer_group = %(group)s)
    AND (%(verdict)s::text IS NULL OR c.verdict = %(verdict)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN c.topic = ANY (%(of_teams)s) THEN c.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::text IS NULL OR (c.topic, c.consumer_group, c.verdict) > (%(after_1)s, %(after_2)s, %(after_3)s))
ORDER BY c.topic, c.consumer_group, c.verdict LIMIT %(limit)s;

-- name: reads_of_run: what it could not read to the end
SELECT s.subject, s.detail FROM staged_read s JOIN run USING (run_id, stage)
WHERE s.run_id = %(run_id)s AND NOT s.complete ORDER BY 1 LIMIT 200;

-- name: groups: of each topic and group of two lists the newest look within an hour, and the one before it, for rates
SELECT g.topic, g.consumer_group AS "group", g.taken_at, g.waiting, g.expired, g.backlog_seconds,
    CASE WHEN b.life = g.life AND g.taken_at > b.taken_at
        THEN ((g.passed - b.passed) / extract(epoch FROM g.taken_at - b.taken_at))::float8 END AS rate
FROM unnest(%(topics)s::text[], %(groups)s::text[]) AS k (topic, consumer_group)
CROSS JOIN LATERAL (
    SELECT * FROM watch_group w
    WHERE w.topic = k.topic AND w.consumer_group = k.consumer_group AND w.taken_at >= now() - interval '1 hour'
    ORDER BY w.taken_at DESC LIMIT 1) g
LEFT JOIN LATERAL (
    SELECT w.life, w.passed, w.taken_at FROM watch_group w
    WHERE w.topic = g.topic AND w.consumer_group = g.consumer_group AND w.taken_at < g.taken_at
    ORDER BY w.taken_at DESC LIMIT 1) b ON true
WHERE %(of_teams)s::text[] IS NULL OR CASE WHEN g.topic = ANY (%(of_teams)s) THEN g.topic = ANY (%(readable)s) ELSE %(others)s END
ORDER BY 1, 2;

-- name: queues: where each group is in each queue, the ones that have stood longest first
SELECT w.topic, w.consumer_group AS "group", w.queue_id AS queue, w.passed, w.stored_then AS stored, w.stands_since, w.moved, w.taken_at,
    o.owner, o.state AS owner_state, o.since AS owner_since
FROM watch_queue w
LEFT JOIN watch_owner o ON (o.topic, o.consumer_group, o.queue_id) = (w.topic, w.consumer_group, w.queue_id)
WHERE (%(topic)s::text IS NULL OR w.topic = %(topic)s) AND (%(group)s::text IS NULL OR w.consumer_group = %(group)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN w.topic = ANY (%(of_teams)s) THEN w.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::text IS NULL OR (w.topic, w.consumer_group, w.queue_id) > (%(after_1)s, %(after_2)s, %(after_3)s::bigint))
ORDER BY w.topic, w.consumer_group, w.queue_id LIMIT %(limit)s;

-- name: parked: ordering keys that wait for a person, the newest case first
SELECT c.case_id AS "case", c.topic, c.consumer_group AS "group", c.subject AS key, c.state, (c.evidence ->> 'messages')::bigint AS messages,
    (c.evidence ->> 'queue')::integer AS queue, c.evidence ->> 'head' AS head, c.evidence ->> 'error' AS error,
    (c.evidence ->> 'parked_at')::timestamptz AS parked_at
FROM case_file c
WHERE c.kind = 'key_parked' AND c.state IN ('open', 'decided') AND c.closed_at IS NULL
    AND (%(topic)s::text IS NULL OR c.topic = %(topic)s) AND (%(group)s::text IS NULL OR c.consumer_group = %(group)s)
    AND (%(key)s::text IS NULL OR c.subject = %(key)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN c.topic = ANY (%(of_teams)s) THEN c.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR c.case_id < %(after_1)s)
ORDER BY c.case_id DESC LIMIT %(limit)s;

-- name: proofs: published ones, the newest first
SELECT p.run_id AS run, p.topic, p.window_from, p.window_to, p.answer, p.sentence, p.deliveries, p.digest, p.proved_at
FROM proof p
WHERE p.published AND (%(topic)s::text IS NULL OR p.topic = %(topic)s) AND (%(run)s::bigint IS NULL OR p.run_id = %(run)s)
    AND (%(of_teams)s::text[] IS NULL OR CASE WHEN p.topic = ANY (%(of_teams)s) THEN p.topic = ANY (%(readable)s) ELSE %(others)s END)
    AND (%(after_1)s::bigint IS NULL OR p.run_id < %(after_1)s)
ORDER BY p.run_id DESC LIMIT %(limit)s;

-- name: proof_counts: a proof's deliveries
SELECT consumer_group AS "group", standing, verdict, reason, deliveries FROM proof_count WHERE run_id = %(run_id)s ORDER BY 1, 2, 3, 4;
