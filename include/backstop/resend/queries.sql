-- Named queries on the control database: resend requests. Everything that a worker writes names its own claim token.

-- name: clock: the instant up to which this worker takes what is due
SELECT clock_timestamp();

-- name: due_topic_shards: what is due, by shard and topic; paused topics wait, and so does what a ramp holds (a dry run shows it)
SELECT r.topic, r.shard, count(*)
FROM resend_request r
WHERE r.state = 'open' AND r.not_before <= %(cut)s
    AND r.topic = ANY (ARRAY(SELECT t.topic FROM unnest(%(topics)s::text[]) AS t (topic)
        WHERE NOT EXISTS (SELECT 1 FROM stopped_topic p WHERE p.topic IN (t.topic, '*'))))
    AND (NOT r.held OR %(with_held)s) AND (%(ids)s::text[] IS NULL OR r.message_id = ANY (%(ids)s::text[]))
    AND NOT EXISTS (SELECT 1 FROM resend_batch b WHERE b.batch_id = r.batch_id AND b.state IN ('stopped', 'given_up'))
GROUP BY r.topic, r.shard
ORDER BY min(r.not_before), r.topic, r.shard;

-- name: due: how much a run would find: requests that may go out, claims that nobody ended, batches that are under way
WITH wanted AS (
    SELECT t.topic FROM unnest(%(topics)s::text[]) AS t (topic)
    WHERE NOT EXISTS (SELECT 1 FROM stopped_topic AS p WHERE p.topic IN (t.topic, '*'))
)
SELECT (SELECT count(*) FROM resend_request AS r JOIN wanted USING (topic)
        WHERE r.state = 'open' AND r.not_before <= clock_timestamp()
            AND NOT EXISTS (SELECT 1 FROM resend_batch AS b WHERE b.topic = r.topic AND b.state = 'stopped'
                AND (r.held OR r.batch_id = b.batch_id))
            OR r.state = 'claimed' AND r.claim_deadline <= clock_timestamp())
    -- A live batch is looked at by every run, also when nothing of it is held any more: its last step may go wrong.
    + (SELECT count(*) FROM resend_batch AS b JOIN wanted USING (topic) WHERE b.state = 'ramping');

-- name: any_due: whether a run would find a request, one that waits for a ramp to begin, a claim that nobody ended, or a batch
-- that is under way
WITH wanted AS (
    SELECT t.topic FROM unnest(%(topics)s::text[]) AS t (topic)
    WHERE NOT EXISTS (SELECT 1 FROM stopped_topic AS p WHERE p.topic IN (t.topic, '*'))
)
SELECT EXISTS (SELECT 1 FROM resend_request AS r JOIN wanted USING (topic)
        WHERE r.state = 'open' AND NOT r.held AND r.not_before <= clock_timestamp()
            AND NOT EXISTS (SELECT 1 FROM resend_batch AS b WHERE b.batch_id = r.batch_id AND b.state = 'stopped'))
    -- By topic: behind a stopped batch a million may be held.
    OR EXISTS (SELECT 1 FROM wanted AS w
        WHERE NOT EXISTS (SELECT 1 FROM resend_batch AS b WHERE b.topic = w.topic AND b.state = 'stopped')
            AND EXISTS (SELECT 1 FROM resend_request AS r
                WHERE r.topic = w.topic AND r.state = 'open' AND r.held AND r.not_before <= clock_timestamp()))
    OR EXISTS (SELECT 1 FROM resend_request AS r JOIN wanted USING (topic)
        WHERE r.state = 'claimed' AND r.claim_deadline <= clock_timestamp())
    OR EXISTS (SELECT 1 FROM resend_batch AS b JOIN wanted USING (topic) WHERE b.state = 'ramping');

-- name: begin_rate: a topic that was never limited before
INSERT INTO watermark (subject, reached) VALUES (%(subject)s, clock_timestamp()) ON CONFLICT (subject) DO NOTHING;

-- name: lock_rate: in how many seconds the topic's rate has room again; the row is the queue of all workers
SELECT greatest(extract(epoch FROM reached - clock_timestamp()), 0)::float8
FROM watermark WHERE subject = %(subject)s
FOR UPDATE;

-- name: use_rate: so much of the rate is spoken for
UPDATE watermark SET reached = greatest(reached, clock_timestamp()) + make_interval(secs => %(seconds)s)
WHERE subject = %(subject)s;

-- name: claim: due requests of one shard and topic become this worker's until the deadline
-- The pause is read here, so that it is honoured between any two batches; so is a restore that was begun and is not done.
WITH due AS MATERIALIZED (
    SELECT r.request_id
    FROM resend_request r
    WHERE r.state = 'open' AND NOT r.held AND r.not_before <= %(cut)s AND r.topic = %(topic)s AND r.shard = %(shard)s
        AND (%(ids)s::text[] IS NULL OR r.message_id = ANY (%(ids)s::text[]))
        AND NOT EXISTS (SELECT 1 FROM stopped_topic p WHERE p.topic IN (%(topic)s, '*'))
        AND NOT EXISTS (SELECT 1 FROM resend_batch b WHERE b.batch_id = r.batch_id AND b.state IN ('stopped', 'given_up'))
    ORDER BY r.not_before, r.request_id
    LIMIT %(limit)s
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE resend_request r
SET state = 'claimed', claim_token = %(token)s, updated_at = clock_timestamp(),
    claim_deadline = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM due
WHERE r.request_id = due.request_id
RETURNING r.request_id, r.topic, r.message_id, r.send_number, r.groups, r.reason, r.requested_by, r.asked_by, r.held;

-- name: due_requests: the same requests, only read, for a dry run
SELECT r.request_id, r.topic, r.message_id, r.send_number, r.groups, r.reason, r.requested_by, r.asked_by, r.held
FROM resend_request r
WHERE r.state = 'open' AND r.not_before <= %(cut)s AND r.topic = %(topic)s AND r.shard = %(shard)s
    AND (%(ids)s::text[] IS NULL OR r.message_id = ANY (%(ids)s::text[]))
    AND NOT EXISTS (SELECT 1 FROM stopped_topic p WHERE p.topic IN (%(topic)s, '*'))
    AND r.request_id > %(after)s
ORDER BY r.request_id
LIMIT %(limit)s;

-- name: paused: is the topic, or everything, paused now, or a restore that was begun not done
SELECT EXISTS (SELECT 1 FROM stopped_topic p WHERE p.topic IN (%(topic)s, '*'));

-- name: only_ids: the list of ids that the run is limited to; null: it takes whatever is due
SELECT only_ids FROM run WHERE run_id = %(run_id)s;

-- name: limit_run: the run looks at these messages and nothing else
UPDATE run SET only_ids = %(ids)s WHERE run_id = %(run_id)s;

-- name: take_list: this run takes the list of a run in Airflow
UPDATE run SET listed_in = %(listed_in)s WHERE run_id = %(run_id)s;

-- name: listed_before: the run that took this list already
SELECT run_id FROM run WHERE listed_in = %(listed_in)s;

-- name: radius: how much of a topic lists and reconcile asked for, for a group, in the window, and how much was done for it
SELECT
    (SELECT count(*) FROM resend_request q
     CROSS JOIN LATERAL (SELECT coalesce(q.asked_by ->> %(group)s, q.asked_by ->> '*', q.requested_by) AS who) AS a
     WHERE q.topic = %(topic)s AND (q.groups IS NULL OR %(group)s = ANY (q.groups))
         AND (a.who = 'reconcile' OR starts_with(a.who, %(person)s) OR a.who ~ ' \(incident \d+\)$')
         AND q.state NOT IN ('not_needed', 'superseded')
         -- What is asked for now counts by itself.
         AND NOT (q.state = 'open' AND q.message_id = ANY (%(ids)s::text[]))
         AND q.created_at >= %(as_of)s - make_interval(secs => %(seconds)s)),
    (SELECT coalesce(sum(c.newly), 0) FROM verdict_count c JOIN run r USING (run_id)
     WHERE c.topic = %(topic)s AND c.consumer_group = %(group)s AND r.as_of >= %(as_of)s - make_interval(secs => %(seconds)s));

-- name: open_requests: which messages somebody has asked for and nobody has sent
-- Not where reconcile asked for a group that its blast radius holds by now: that will not be sent unless a person asks, too.
SELECT r.message_id FROM resend_request r
WHERE r.topic = %(topic)s AND r.message_id = ANY (%(ids)s::text[]) AND (r.state = 'claimed' OR r.state = 'open' AND NOT EXISTS (
    SELECT FROM mass_loss_delivery l
    WHERE l.topic = r.topic AND l.message_id = r.message_id AND (r.groups IS NULL OR l.consumer_group = ANY (r.groups))
        AND coalesce(r.asked_by ->> l.consumer_group, r.asked_by ->> '*', r.requested_by) = 'reconcile'));

-- name: a_persons: of these requests, those of a delivery that a person is asked about as one of a mass loss, or left
-- `topics`, `groups`: pairs of those that take a copy for other groups for their own.
SELECT r.request_id FROM resend_request r
WHERE r.request_id = ANY (%(ids)s::bigint[]) AND EXISTS (
    SELECT FROM mass_loss_delivery l
    WHERE l.topic = r.topic AND l.message_id = r.message_id AND (r.groups IS NULL OR l.consumer_group = ANY (r.groups)
        OR (l.topic, l.consumer_group) IN (SELECT * FROM unnest(%(topics)s::text[], %(groups)s::text[]))));

-- name: held_groups: of requests that several asked for, the groups of reconcile's that a person is asked about as a_persons
SELECT r.request_id, array_agg(DISTINCT l.consumer_group) FROM resend_request r
JOIN mass_loss_delivery l ON l.topic = r.topic AND l.message_id = r.message_id
    AND (r.groups IS NULL OR l.consumer_group = ANY (r.groups))
WHERE r.request_id = ANY (%(ids)s::bigint[])
    AND CASE
        -- An earlier version, which did not keep who asked, may have added reconcile's groups to triage's: those without a dead letter.
        WHEN r.asked_by IS NULL AND r.requested_by = 'triage' THEN NOT EXISTS (
            SELECT FROM dead_letter d
            WHERE d.state = 'replaying' AND d.topic = r.topic AND d.message_id = r.message_id AND d.send_number = r.send_number
                AND d.consumer_group = l.consumer_group)
        ELSE coalesce(r.asked_by ->> l.consumer_group, r.asked_by ->> '*', r.requested_by) = 'reconcile' END
GROUP BY r.request_id;

-- name: waiting: how much each group of a topic has before it, and how fast it goes
-- The rate is measured from the oldest progress within the window to the newest.
SELECT p.consumer_group,
    sum(greatest(e.next_offset - p.next_offset, 0))::bigint AS lag,
    sum(greatest(p.next_offset - h.next_offset, 0)
        / nullif(extract(epoch FROM p.recorded_at - h.recorded_at), 0))::float8 AS rate
FROM progress p
JOIN queue_epoch e USING (broker, topic, queue_id, epoch)
LEFT JOIN LATERAL (
    SELECT o.next_offset, o.recorded_at
    FROM progress_history o
    WHERE o.consumer_group = p.consumer_group AND o.broker = p.broker AND o.topic = p.topic AND o.queue_id = p.queue_id
        AND o.epoch = p.epoch AND o.recorded_at >= p.recorded_at - make_interval(secs => %(window)s)
    ORDER BY o.recorded_at
    LIMIT 1
) h ON true
WHERE p.topic = %(topic)s AND p.broker = %(broker)s AND e.present
GROUP BY p.consumer_group;

-- name: end: what became of claimed requests, where the claim is still this worker's
-- Most of a claim ends alike: `kinds` has each end once, and `ids` with `places` say which request ended how. One that comes back
-- unsent while all its groups were given up is closed: nobody would ever claim it again. Of one that comes back for some, the others
-- stay given up.
UPDATE resend_request r
SET state = CASE WHEN x.state = 'open' AND r.given_up_by IS NOT NULL AND coalesce(r.groups <@ r.given_up_groups, true)
        THEN 'not_needed' ELSE x.state END,
    error = CASE WHEN x.state = 'open' AND r.given_up_by IS NOT NULL AND coalesce(r.groups <@ r.given_up_groups, true)
        THEN r.error ELSE x.error END,
    claim_token = NULL, claim_deadline = NULL, updated_at = clock_timestamp(),
    not_before = coalesce(x.not_before, r.not_before),
    groups = CASE WHEN x.addressed THEN x.groups
        WHEN x.state = 'open' AND r.groups && r.given_up_groups AND NOT r.groups <@ r.given_up_groups
        THEN ARRAY(SELECT g FROM unnest(r.groups) AS g WHERE g <> ALL (r.given_up_groups) ORDER BY g) ELSE r.groups END,
    route = coalesce(x.route, r.route),
    closed_by_run = CASE WHEN x.state = 'open' THEN NULL ELSE %(run_id)s END
FROM (
    SELECT e.request_id, k.* FROM unnest(%(ids)s::bigint[], %(places)s::integer[]) AS e (request_id, place)
    JOIN jsonb_to_recordset(%(kinds)s::jsonb) AS k (place integer, state text, error text, not_before timestamptz,
        addressed boolean, groups text[], route text) ON k.place = e.place
    ORDER BY e.request_id) x
WHERE r.request_id = x.request_id AND r.state = 'claimed' AND r.claim_token = %(token)s;

-- name: left_behind: claimed requests whose worker is late, and whether the claim itself is over
SELECT r.request_id, r.shard, r.topic, r.message_id, r.send_number, r.claim_token::text,
    r.claim_deadline <= clock_timestamp() AS expired
FROM resend_request r
WHERE r.state = 'claimed' AND r.request_id > %(after)s
    AND (r.claim_deadline <= clock_timestamp() OR r.updated_at <= clock_timestamp() - make_interval(secs => %(seconds)s))
ORDER BY r.request_id
LIMIT %(limit)s;

-- name: recover: what became of requests whose worker is gone, where the claim is still that worker's
-- A stub of a database that lost its last commits says of a number that was taken that it was not: restores ask for reopened_at.
-- What was given up closes, as in `end`.
UPDATE resend_request r
SET state = CASE WHEN x.state = 'open' AND r.given_up_by IS NOT NULL AND coalesce(r.groups <@ r.given_up_groups, true)
        THEN 'not_needed' ELSE x.state END,
    error = CASE WHEN x.state = 'open' AND r.given_up_by IS NOT NULL AND coalesce(r.groups <@ r.given_up_groups, true)
        THEN r.error ELSE x.error END,
    -- As `end`: those that were really addressed.
    groups = CASE WHEN x.addressed THEN x.groups
        WHEN x.state = 'open' AND r.groups && r.given_up_groups AND NOT r.groups <@ r.given_up_groups
        THEN ARRAY(SELECT g FROM unnest(r.groups) AS g WHERE g <> ALL (r.given_up_groups) ORDER BY g) ELSE r.groups END,
    claim_token = NULL, claim_deadline = NULL, updated_at = clock_timestamp(),
    reopened_at = CASE WHEN x.state = 'open' THEN clock_timestamp() ELSE r.reopened_at END,
    closed_by_run = CASE WHEN x.state = 'open' THEN NULL ELSE %(run_id)s END
FROM jsonb_to_recordset(%(ends)s::jsonb) AS x(request_id bigint, state text, error text, claim_token uuid, addressed boolean,
    groups text[])
WHERE r.request_id = x.request_id AND r.state = 'claimed' AND r.claim_token = x.claim_token
    AND (x.state <> 'open' OR r.claim_deadline <= clock_timestamp());

-- name: wait_on: what waits for a producer's own relay is claimed for another while, so that it is looked at again by then and not sooner
UPDATE resend_request r SET claim_deadline = clock_timestamp() + make_interval(secs => x.seconds), error = %(why)s
FROM jsonb_to_recordset(%(waiting)s::jsonb) AS x(request_id bigint, claim_token uuid, seconds float8)
WHERE r.request_id = x.request_id AND r.state = 'claimed' AND r.claim_token = x.claim_token
    AND r.claim_deadline <= clock_timestamp();

-- name: stored_dead_letters_since: drained dead letters of a topic that are not decided, and died since then or nobody knows when
SELECT consumer_group, message_id FROM dead_letter
WHERE state = 'open' AND message_id IS NOT NULL AND (topic = %(topic)s OR topic IS NULL)
    AND (died_at IS NULL OR died_at >= %(since)s);
