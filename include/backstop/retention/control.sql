-- What is over in the control database. Each query answers the ctid of a step's rows (locked, those in somebody's hands left
-- out); `before` is the instant up to which what is over goes, `limit` the rows of a step. Nothing that an open case, an open
-- request or an undecided letter points at is among them.

-- name: verdict: verdicts of runs that ended long ago, but for those of a delivery that a person has still to decide
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (
    SELECT w.ctid FROM verdict w
    WHERE w.run_id = old.run_id AND NOT EXISTS (
        SELECT 1 FROM case_member m JOIN case_file c USING (case_id)
        WHERE m.topic = w.topic AND m.message_id = w.message_id AND c.closed_at IS NULL AND m.settled_at IS NULL)
    LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: verdict_count: counts of runs that ended long ago
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM verdict_count w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: staged_verdict: what a run staged and nobody will promote any more
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM staged_verdict w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: staged_stub: as staged_verdict
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM staged_stub w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: staged_part: as staged_verdict
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM staged_part w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: staged_count: as staged_verdict
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM staged_count w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: staged_read: as staged_verdict
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM staged_read w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: staged_letter: as staged_verdict
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM staged_letter w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: data_check: results of checks of runs that ended long ago
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM data_check w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: incident: plans of replays by hand, with their deliveries; letters and requests keep what became of them
SELECT v.ctid
FROM (SELECT r.run_id FROM run r WHERE r.finished_at < %(before)s ORDER BY r.run_id) old
CROSS JOIN LATERAL (SELECT w.ctid FROM incident w WHERE w.run_id = old.run_id LIMIT %(limit)s) v
LIMIT %(limit)s;

-- name: progress_history: of topics that no run reads any more; the others are kept shorter by reconcile
SELECT p.ctid FROM progress_history p WHERE p.recorded_at < %(before)s LIMIT %(limit)s;

-- name: retry_place: the same for places in retry queues
SELECT p.ctid FROM retry_place p WHERE p.recorded_at < %(before)s LIMIT %(limit)s;

-- name: delay_look: the same for looks at delay storage
SELECT p.ctid FROM delay_look p WHERE p.recorded_at < %(before)s LIMIT %(limit)s;

-- name: watch_finding: findings of the watch that are over
SELECT f.ctid FROM watch_finding f WHERE f.over_at < %(before)s LIMIT %(limit)s;

-- name: open_delivery: verdicts that no run has given again for long, of deliveries that no open case is about
SELECT o.ctid FROM open_delivery o
WHERE o.judged_at < %(before)s AND NOT EXISTS (
    SELECT 1 FROM case_member m JOIN case_file c USING (case_id)
    WHERE m.topic = o.topic AND m.message_id = o.message_id AND c.closed_at IS NULL AND m.settled_at IS NULL)
LIMIT %(limit)s;

-- name: quarantine: broken rows that nobody has met for long
SELECT q.ctid FROM quarantine q WHERE q.last_seen_at < %(before)s LIMIT %(limit)s;

-- name: anomaly: oddities that nobody has met for long
SELECT a.ctid FROM anomaly a WHERE a.last_seen_at < %(before)s LIMIT %(limit)s;

-- name: alert: alerts that were delivered, or that nobody was to be told, and whose case or finding, if any, is over: its end goes
-- to the channels that were told of its beginning
SELECT a.ctid FROM alert a
WHERE coalesce(a.delivered_at, a.ended_at) < %(before)s AND NOT EXISTS (
    SELECT 1 FROM case_file c WHERE c.case_id = a.case_id AND (c.closed_at IS NULL OR c.closed_at >= %(before)s))
    AND NOT EXISTS (
        SELECT 1 FROM watch_finding f
        WHERE 'watch/' || f.finding_id = a.thread AND (f.over_at IS NULL OR f.over_at >= %(before)s))
LIMIT %(limit)s;

-- name: alert_message: what channels were told, once nothing refers to it
SELECT t.ctid FROM alert_message t WHERE t.sent_at < %(before)s;

-- name: case_file: cases that were closed long ago, with their members and notes
SELECT t.ctid FROM case_file t WHERE t.state = 'closed' AND t.closed_at < %(before)s;

-- name: resend_batch: resends in steps that are over
SELECT t.ctid FROM resend_batch t WHERE t.state IN ('done', 'given_up') AND t.ended_at < %(before)s;

-- name: cause: what no stored letter died of any more, nobody has seen for long, and no case is kept of
SELECT t.ctid FROM cause t
WHERE t.last_seen_at < %(before)s AND NOT EXISTS (
    SELECT 1 FROM case_file c WHERE c.kind = 'dead_letters' AND c.subject = t.fingerprint);

-- name: drain_batch: pages of which no letter is left
SELECT t.ctid FROM drain_batch t WHERE t.acknowledged_at < %(before)s;

-- name: run: runs that nothing speaks of any more; of the scheduled ones the newest stays, by which a duty is judged
SELECT t.ctid FROM run t
WHERE t.finished_at < %(before)s AND (t.scope <> '*' OR EXISTS (
    SELECT 1 FROM run n WHERE n.duty = t.duty AND n.scope = '*' AND n.started_at > t.started_at AND n.state = 'done'));

-- name: unless_named: leaves those out that a table still points at (column: the one that points, key: what it points at)
AND NOT EXISTS (SELECT 1 FROM {table} o WHERE o.{column} = t.{key});

-- name: one_step: ends such a query
LIMIT %(limit)s;

-- name: passing_by: ... and leaves out what somebody is at work on; who only counts may not lock
FOR UPDATE SKIP LOCKED;

-- name: pointing_at: the tables whose rows point at a table and do not go with its rows
SELECT c.conrelid::regclass::text, a.attname, f.attname
FROM pg_constraint c
JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
JOIN pg_attribute f ON f.attrelid = c.confrelid AND f.attnum = c.confkey[1]
WHERE c.contype = 'f' AND c.confrelid = to_regclass(%(table)s) AND c.confdeltype <> 'c'
ORDER BY 1, 2;

-- name: delete: takes a step's rows away
WITH chosen AS MATERIALIZED ({chosen}) DELETE FROM {table} t USING chosen c WHERE t.ctid = c.ctid;

-- name: old_requests: a page of requests that were closed long ago, by when, and of which messages
SELECT r.updated_at::text, r.request_id, r.topic, r.message_id
FROM resend_request r
WHERE r.state NOT IN ('open', 'claimed') AND r.updated_at < %(before)s
    AND (r.updated_at, r.request_id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
ORDER BY r.updated_at, r.request_id
LIMIT %(limit)s;

-- name: delete_requests: those of them that are still closed
DELETE FROM resend_request r
WHERE r.request_id = ANY (%(ids)s::bigint[]) AND r.state NOT IN ('open', 'claimed') AND r.updated_at < %(before)s;

-- name: old_delivery_decision: a page of messages of which a person discarded a delivery long ago
SELECT DISTINCT d.topic, d.message_id FROM delivery_decision d
WHERE d.decided_at < %(before)s AND (d.topic, d.message_id) > (%(after_topic)s, %(after_id)s)
ORDER BY d.topic, d.message_id LIMIT %(limit)s;

-- name: delete_delivery_decision: of messages that no producer has any more
DELETE FROM delivery_decision d USING unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
WHERE d.topic = k.topic AND d.message_id = k.message_id AND d.decided_at < %(before)s;

-- name: old_withdrawal: a page of messages that a person withdrew long ago
SELECT DISTINCT w.topic, w.message_id FROM withdrawal w
WHERE w.applied_at < %(before)s AND (w.topic, w.message_id) > (%(after_topic)s, %(after_id)s)
ORDER BY w.topic, w.message_id LIMIT %(limit)s;

-- name: delete_withdrawal: of messages that no producer has any more
DELETE FROM withdrawal w USING unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
WHERE w.topic = k.topic AND w.message_id = k.message_id AND w.applied_at < %(before)s;

-- name: old_message_version: a page of messages that a person edited long ago
SELECT DISTINCT v.topic, v.message_id FROM message_version v
WHERE v.written_at < %(before)s AND (v.topic, v.message_id) > (%(after_topic)s, %(after_id)s)
ORDER BY v.topic, v.message_id LIMIT %(limit)s;

-- name: delete_message_version: of messages that no producer has any more
DELETE FROM message_version v USING unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
WHERE v.topic = k.topic AND v.message_id = k.message_id AND v.written_at < %(before)s;

-- name: full_versions: a page of messages whose edited contents are kept shorter than the edits
SELECT DISTINCT v.topic, v.message_id
FROM message_version v
JOIN unnest(%(kept_topics)s::text[], %(instants)s::timestamptz[]) AS k (topic, before) ON k.topic = v.topic
WHERE v.emptied_at IS NULL AND v.written_at < k.before AND (v.topic, v.message_id) > (%(after_topic)s, %(after_id)s)
ORDER BY v.topic, v.message_id LIMIT %(limit)s;

-- name: empty_versions: of messages that are over, each when its own time has come: a restore may ask for a newer one
UPDATE message_version v SET content = '', emptied_at = clock_timestamp()
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
JOIN unnest(%(kept_topics)s::text[], %(instants)s::timestamptz[]) AS b (topic, before) ON b.topic = k.topic
WHERE v.topic = k.topic AND v.message_id = k.message_id AND v.emptied_at IS NULL AND v.written_at < b.before;
