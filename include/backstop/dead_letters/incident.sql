-- Named queries on the control database: replays by hand.

-- name: begin: a plan that is being made
INSERT INTO incident (run_id, wanted, planned_by, why)
VALUES (%(run_id)s, %(wanted)s::jsonb, %(who)s, %(why)s);

-- name: plan: deliveries of a plan; one that both ways of choosing found is in it once
INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason, letters,
    seen)
VALUES %s
ON CONFLICT (run_id, topic, message_id, consumer_group) DO NOTHING;

-- name: end: the plan is whole
UPDATE incident SET whole = true, left_out = %(left_out)s::jsonb, too_wide = %(too_wide)s WHERE run_id = %(run_id)s;

-- name: letters: open letters of a topic in a window of their deaths, a page at a time
WHERE d.state = 'open' AND d.dead_letter_id > %(after)s AND d.topic = %(topic)s
    AND (%(group)s::text IS NULL OR d.consumer_group = %(group)s::text)
    AND (%(causes)s::bigint[] IS NULL OR d.cause_id = ANY (%(causes)s::bigint[]))
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

-- name: by_group: how much a plan sends to each group
SELECT topic, consumer_group, count(*) FROM incident_delivery WHERE run_id = %(run_id)s GROUP BY 1, 2;

-- name: newly_confirmed: how much of a topic was done for a group in the window
SELECT coalesce(sum(c.newly), 0)
FROM verdict_count c JOIN run r USING (run_id)
WHERE c.topic = %(topic)s AND c.consumer_group = %(group)s AND r.as_of >= %(as_of)s - make_interval(secs => %(seconds)s);

-- name: read: a plan
SELECT planned_by, why, wanted, whole, too_wide, left_out FROM incident WHERE run_id = %(run_id)s;

-- name: read_counts: what is in it, and how much of it was asked for
SELECT consumer_group, reason, count(*), count(asked_at)
FROM incident_delivery WHERE run_id = %(run_id)s
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2;

-- name: read_examples: the first messages of a plan
SELECT message_id FROM incident_delivery WHERE run_id = %(run_id)s ORDER BY place LIMIT %(limit)s;

-- name: approve: who said yes first; the clock from which its rate counts
UPDATE incident SET approved_by = %(who)s, approved_at = clock_timestamp() WHERE run_id = %(run_id)s AND approved_at IS NULL;

-- name: next: deliveries of a plan that were not asked for yet; held until the transaction ends
SELECT i.place, i.shard, i.topic, i.message_id, i.consumer_group, i.send_number, i.route, i.reason, i.letters, i.seen
FROM incident_delivery i
WHERE i.run_id = %(run_id)s AND i.asked_at IS NULL AND i.place > %(after)s AND i.place <= coalesce(%(until)s, 2147483647)
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

-- name: pace: requests of a plan go out no faster than its rate
UPDATE resend_request r
SET not_before = greatest(r.not_before, n.approved_at + make_interval(secs => i.place / %(rate)s::float8))
FROM incident_delivery i JOIN incident n USING (run_id)
WHERE i.run_id = %(run_id)s AND i.place = ANY (%(places)s) AND r.state = 'open' AND r.topic = i.topic
    AND r.message_id = i.message_id AND r.send_number = i.send_number;

-- name: planned_letters: letters that the transaction holds already
WHERE d.state = 'open' AND d.dead_letter_id = ANY (%(letters)s)
ORDER BY d.dead_letter_id;
