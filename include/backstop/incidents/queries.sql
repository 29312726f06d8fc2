-- Named queries on the control database: replays by hand.

-- name: begin: a plan that is being made
INSERT INTO incident (run_id, wanted, planned_by, why)
VALUES (%(run_id)s, %(wanted)s::jsonb, %(who)s, %(why)s);

-- name: plan_in: which run in Airflow makes it; not for people's own logins
UPDATE incident SET planned_in = %(planned_in)s WHERE run_id = %(run_id)s;

-- name: unknown_causes: which of these causes there are not
SELECT w.cause_id FROM unnest(%(causes)s::bigint[]) WITH ORDINALITY AS w (cause_id, place)
WHERE NOT EXISTS (SELECT FROM cause c WHERE c.cause_id = w.cause_id)
ORDER BY w.place;

-- name: case_of_dead_letters: whether there is such a case
SELECT FROM case_file WHERE case_id = %(case_id)s AND kind = 'dead_letters';

-- name: planned: which of these deliveries are in the plan already: two pages of letters, or both ways of choosing, found them
SELECT message_id, consumer_group
FROM incident_delivery
WHERE run_id = %(run_id)s AND topic = %(topic)s
    AND (message_id, consumer_group) IN (SELECT * FROM unnest(%(ids)s::text[], %(groups)s::text[]));

-- name: add_letters: further letters of deliveries that are in the plan
UPDATE incident_delivery i
SET letters = i.letters || x.letters, seen = i.seen || x.seen
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x(topic text, message_id text, consumer_group text, letters bigint[], seen jsonb)
WHERE i.run_id = %(run_id)s AND i.topic = x.topic AND i.message_id = x.message_id AND i.consumer_group = x.consumer_group;

-- name: plan: deliveries of a plan
INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason, letters,
    seen)
VALUES %s;

-- name: end: the plan is whole
UPDATE incident SET whole = true, left_out = %(left_out)s::jsonb, too_wide = %(too_wide)s WHERE run_id = %(run_id)s;

-- name: letters: open letters of a topic in a window of their deaths, a page at a time
WHERE d.state = 'open' AND d.dead_letter_id > %(after)s AND d.topic = %(topic)s
    AND (%(group)s::text IS NULL OR d.consumer_group = %(group)s::text)
    AND (%(causes)s::bigint[] IS NULL OR d.cause_id = ANY (%(causes)s::bigint[]))
    AND (%(category)s::text IS NULL OR d.category = %(category)s::text) AND (%(case)s::bigint IS NULL OR d.case_id = %(case)s::bigint)
    AND (%(start)s::timestamptz IS NULL OR coalesce(d.died_at, d.drained_at) >= %(start)s::timestamptz)
    AND (%(end)s::timestamptz IS NULL OR coalesce(d.died_at, d.drained_at) < %(end)s::timestamptz)
ORDER BY d.dead_letter_id
LIMIT %(limit)s;

-- name: candidates: messages of which a run since then stored such a verdict, a page at a time; they are judged again
-- A message that was created since an instant has no verdict of an earlier run.
SELECT v.message_id, array_agg(DISTINCT v.consumer_group)
FROM verdict v
WHERE v.run_id >= %(first)s AND v.topic = %(topic)s AND v.message_id > %(after)s AND v.verdict = ANY (%(verdicts)s)
    AND (%(group)s::text IS NULL OR v.consumer_group = %(group)s::text)
GROUP BY v.message_id
ORDER BY v.message_id
LIMIT %(limit)s;

-- name: first_run: the first run since an instant
SELECT min(run_id) FROM run WHERE started_at >= %(since)s;

-- name: by_group: how much a plan sends to each group; by its canary, with what was asked for of it already
SELECT topic, consumer_group, count(*) FROM incident_delivery
WHERE run_id = %(run_id)s AND (%(until)s::integer IS NULL OR place <= %(until)s::integer OR asked_at IS NOT NULL)
GROUP BY 1, 2;

-- name: newly_confirmed: how much of a topic was done for a group in the window
SELECT coalesce(sum(c.newly), 0)
FROM verdict_count c JOIN run r USING (run_id)
WHERE c.topic = %(topic)s AND c.consumer_group = %(group)s AND r.as_of >= %(as_of)s - make_interval(secs => %(seconds)s);

-- name: asked_before: how much of a topic other plans asked for, for a group, in the window; a send that this one asks for too is one
SELECT count(*)
FROM incident_delivery a
WHERE a.topic = %(topic)s AND a.consumer_group = %(group)s AND a.run_id <> %(run_id)s
    AND a.asked_at >= %(as_of)s - make_interval(secs => %(seconds)s)
    AND NOT EXISTS (
        SELECT 1 FROM incident_delivery i
        WHERE i.run_id = %(run_id)s AND i.topic = a.topic AND i.message_id = a.message_id
            AND i.consumer_group = a.consumer_group AND i.send_number = a.send_number);

-- name: read: a plan
SELECT planned_by, why, wanted, whole, too_wide, left_out FROM incident WHERE run_id = %(run_id)s;

-- name: read_counts: what is in it, how much of it was asked for, and how much was left out when it was to be
SELECT consumer_group, reason, count(*), count(asked_at), count(left_out)
FROM incident_delivery WHERE run_id = %(run_id)s
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2;

-- name: read_left_out: why deliveries of a plan were left out when they were to be asked for
SELECT left_out, count(*) FROM incident_delivery WHERE run_id = %(run_id)s AND left_out IS NOT NULL GROUP BY 1;

-- name: read_examples: the first messages of a plan
SELECT message_id FROM incident_delivery WHERE run_id = %(run_id)s ORDER BY place LIMIT %(limit)s;

-- name: planned_in: the newest plan of a run in Airflow, and how many whole ones it made
SELECT max(run_id), count(*) FILTER (WHERE whole) FROM incident WHERE planned_in = %(planned_in)s;

-- name: digest: what a plan would send, in one short text
SELECT left(encode(sha256(convert_to(coalesce(string_agg(jsonb_build_array(
    i.place, i.shard, i.topic, i.message_id, i.consumer_group, i.send_number, i.route, i.letters)::text, ',' ORDER BY i.place), ''),
    'UTF8')), 'hex'), 12)
FROM incident_delivery i WHERE i.run_id = %(run_id)s;

-- name: shown: what somebody is asked to say yes to
UPDATE incident SET shown = %(shown)s::jsonb, given = NULL WHERE run_id = %(run_id)s;

-- name: given: their answer
UPDATE incident SET given = %(given)s::jsonb, shown = shown || '{"answered": true}' WHERE run_id = %(run_id)s AND shown IS NOT NULL;

-- name: read_given: the answer to what was shown
SELECT given FROM incident WHERE run_id = %(run_id)s AND shown IS NOT NULL;

-- name: approve: who said yes; a yes to all of it comes after one to its canary, and is what is kept
UPDATE incident SET approved_by = %(who)s, approved_at = clock_timestamp()
WHERE run_id = %(run_id)s AND (approved_at IS NULL OR %(full)s);

-- name: next: deliveries of a plan that are still to be asked for; held until the transaction ends
SELECT i.place, i.shard, i.topic, i.message_id, i.consumer_group, i.send_number, i.route, i.reason, i.letters, i.seen
FROM incident_delivery i
WHERE i.run_id = %(run_id)s AND i.asked_at IS NULL AND i.left_out IS NULL AND i.place > %(after)s AND i.place <= coalesce(%(until)s, 2147483647)
ORDER BY i.place
LIMIT %(limit)s
FOR UPDATE OF i;

-- name: other_letters: places of deliveries that have an open letter which the plan does not know: it died (again) since
SELECT DISTINCT i.place
FROM incident_delivery i
JOIN dead_letter d ON d.topic = i.topic AND d.message_id = i.message_id
    AND (d.consumer_group IS NULL OR d.consumer_group = i.consumer_group)
WHERE i.run_id = %(run_id)s AND i.place = ANY (%(places)s) AND d.state = 'open' AND d.dead_letter_id <> ALL (i.letters);

-- name: asked: these places of a plan were asked for
UPDATE incident_delivery SET asked_at = clock_timestamp() WHERE run_id = %(run_id)s AND place = ANY (%(places)s);

-- name: left_out: these places of a plan are not asked for any more, and why
UPDATE incident_delivery i SET left_out = x.why
FROM unnest(%(places)s::integer[], %(whys)s::text[]) AS x(place, why)
WHERE i.run_id = %(run_id)s AND i.place = x.place;

-- name: pace: requests of a plan go out no faster than its rate, counted from now, or from what went before
WITH n AS (
    UPDATE incident
    SET paced_until = greatest(paced_until, clock_timestamp())
        + make_interval(secs => cardinality(%(places)s::integer[]) / %(rate)s::float8)
    WHERE run_id = %(run_id)s
    RETURNING paced_until
)
UPDATE resend_request r
SET not_before = greatest(r.not_before,
    n.paced_until - make_interval(secs => (cardinality(%(places)s::integer[]) - p.nth + 1) / %(rate)s::float8))
FROM n, unnest(%(places)s::integer[]) WITH ORDINALITY AS p(place, nth), incident_delivery i
WHERE i.run_id = %(run_id)s AND i.place = p.place AND r.state = 'open' AND r.topic = i.topic
    AND r.message_id = i.message_id AND r.send_number = i.send_number;

-- name: planned_letters: letters that the transaction holds already
WHERE d.state = 'open' AND d.dead_letter_id = ANY (%(letters)s)
ORDER BY d.dead_letter_id;
