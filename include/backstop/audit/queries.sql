-- Named queries on the control database: what an audit asks of it about other databases' rows, and what it writes down.

-- name: record_look: what was looked at; a look that is made again takes the place of the one before
INSERT INTO audit_look (run_id, invariant, place, rows_read, breaches, complete, detail)
VALUES (%(run_id)s, %(invariant)s, %(place)s, %(rows_read)s, %(breaches)s, %(complete)s, %(detail)s)
ON CONFLICT (run_id, invariant, place) DO UPDATE SET
    rows_read = excluded.rows_read, breaches = excluded.breaches, complete = excluded.complete, detail = excluded.detail,
    looked_at = clock_timestamp();

-- name: forget_findings: of a look that is made again
DELETE FROM audit_finding WHERE run_id = %(run_id)s AND invariant = %(invariant)s AND place = %(place)s;

-- name: record_findings: the first ones, by id
INSERT INTO audit_finding (run_id, invariant, place, subject, topic, message_id, consumer_group) VALUES %s
ON CONFLICT (run_id, invariant, place, subject) DO NOTHING;

-- name: alert: tells people of an invariant that does not hold, once a day
INSERT INTO alert (dedup_key, severity, title, body) VALUES (%(dedup_key)s, %(severity)s, %(title)s, %(body)s)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: without_case: of these messages, those that no case names
SELECT k.topic, k.message_id
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
WHERE NOT EXISTS (SELECT 1 FROM case_member m WHERE m.topic = k.topic AND m.message_id = k.message_id);

-- name: without_withdrawal: of these messages, those that nobody withdrew
SELECT k.topic, k.message_id
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
WHERE NOT EXISTS (SELECT 1 FROM withdrawal w WHERE w.topic = k.topic AND w.message_id = k.message_id);

-- name: withdrawn: a page of a shard's messages that a person withdrew
SELECT w.topic, w.message_id FROM withdrawal w
WHERE w.shard = %(shard)s AND w.applied_at IS NOT NULL AND (w.topic, w.message_id) > (%(after_topic)s, %(after_id)s)
ORDER BY w.topic, w.message_id
LIMIT %(limit)s;

-- name: sent_requests: a page of requests that took their number on the day
SELECT r.request_id, r.topic, r.message_id, r.send_number
FROM resend_request r
WHERE r.state IN ('sent', 'refused', 'unknown') AND r.updated_at >= %(day_from)s AND r.updated_at < %(day_to)s
    AND r.request_id > %(after)s
ORDER BY r.request_id
LIMIT %(limit)s;

-- name: discarded: of these messages, the deliveries that a person discarded
SELECT d.topic, d.message_id, d.consumer_group
FROM delivery_decision d
JOIN unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id) USING (topic, message_id);

-- name: looks: what this run looked at
SELECT l.invariant, l.place, l.rows_read, l.breaches, l.complete, l.detail
FROM audit_look l WHERE l.run_id = %(run_id)s
ORDER BY l.invariant, l.place;

-- name: findings: the first ids of what breaks an invariant
SELECT f.subject FROM audit_finding f
WHERE f.run_id = %(run_id)s AND f.invariant = %(invariant)s
ORDER BY f.place, f.subject
LIMIT %(limit)s;

-- name: erased: a page of the messages that were erased on request
SELECT DISTINCT e.topic, e.message_id
FROM erasure e
WHERE e.done_at IS NOT NULL AND (e.topic, e.message_id) > (%(after_topic)s, %(after_id)s)
ORDER BY e.topic, e.message_id
LIMIT %(limit)s;

-- name: see_decisions: keeps the newest entry of the log of decisions; one that an earlier audit saw under this number stays as it was
INSERT INTO decision_seen (entry, hash) SELECT l.entry, l.hash FROM decision_log l ORDER BY l.entry DESC LIMIT 1
ON CONFLICT (entry) DO NOTHING;

-- name: newest_decision: the end of the log of decisions
SELECT l.entry, l.hash FROM decision_log l ORDER BY l.entry DESC LIMIT 1;
