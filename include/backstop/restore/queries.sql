-- Named queries on the control database: what it still knows after another database was restored.

-- name: paused: whether every topic is paused
SELECT EXISTS (SELECT 1 FROM pause WHERE topic = '*');

-- name: alive: runs that may still promote or send
SELECT l.duty || ' ' || l.run_id FROM duty_lease l
WHERE l.duty IN ('reconcile', 'resend', 'sweep') AND l.heartbeat_at > clock_timestamp() - %(dead_after)s
ORDER BY 1;

-- name: forget_staged: what runs decided from the database as it was, and have not promoted yet; it is judged again
DELETE FROM staged_stub;

-- name: begin: a restore that was begun, and from when; one that was cut short goes on from the earlier instant
-- No row: no backup was taken at an instant that lies ahead. Nothing of ours is older than 1970.
INSERT INTO watermark (subject, reached)
SELECT 'restore ' || %(place)s, greatest(%(since)s, timestamptz '1970-01-01Z') WHERE %(since)s <= clock_timestamp()
ON CONFLICT (subject) DO UPDATE SET
    reached = greatest(least(watermark.reached, excluded.reached), timestamptz '1970-01-01Z')
RETURNING reached;

-- name: end: it is done from this instant, and not from an earlier one that somebody named meanwhile
DELETE FROM watermark WHERE subject = 'restore ' || %(place)s AND reached >= %(begun)s;

-- name: unfinished: restores that were begun and did not end
SELECT substr(subject, 9), reached FROM watermark WHERE starts_with(subject, 'restore ') ORDER BY 1;

-- name: control_restored: this database was restored: the dead letters of logs that were touched before now may be forgotten
INSERT INTO watermark (subject, reached) VALUES ('control restored', clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (subject) DO UPDATE SET reached = excluded.reached
RETURNING reached;

-- name: claimed: requests whose claim has not run out; one that waits for a relay is no worker's
SELECT count(*) FROM resend_request
WHERE state = 'claimed' AND claim_deadline > clock_timestamp() AND error IS DISTINCT FROM %(waits)s;

-- name: handed_out: the send numbers of one shard that were, or may have been, handed out since an instant, in pages
-- A claimed request whose worker is gone may have taken its number, whenever it was claimed, and sent until its claim ended. So may one
-- that a recovery opened again since: the stub that it asked had perhaps lost the number, after a failover that lost commits.
SELECT r.request_id, r.topic, r.message_id, r.send_number, r.groups,
    CASE WHEN r.state = 'claimed' THEN least(r.claim_deadline, clock_timestamp())
        WHEN r.state IN ('sent', 'refused', 'unknown') THEN r.updated_at ELSE r.reopened_at END AS at,
    CASE WHEN r.state = 'refused' AND r.reopened_at IS NULL THEN 'refused' ELSE 'unknown' END AS outcome
FROM resend_request r
WHERE r.shard = %(shard)s
    AND (r.state = 'claimed' OR r.reopened_at >= %(since)s
        OR (r.state IN ('sent', 'refused', 'unknown') AND r.updated_at >= %(since)s))
    AND r.request_id > %(after)s
ORDER BY r.request_id
LIMIT %(limit)s;

-- name: close_reopened: of these requests those that are open, and whose number now counts as a copy that may be there
UPDATE resend_request SET state = 'unknown', updated_at = clock_timestamp(),
    error = 'its number may have been handed out before the database was restored'
WHERE request_id = ANY (%(ids)s::bigint[]) AND state = 'open';

-- name: free_numbers: of these requests, whose stubs are not there any more, those that were published: whoever records such a message
-- again, under its id, begins with number 1, and its next numbers may be asked for
UPDATE resend_request SET state = 'not_needed', updated_at = clock_timestamp(), error = 'its stub is not there any more'
WHERE request_id = ANY (%(ids)s::bigint[]) AND state IN ('sent', 'refused', 'unknown');

-- name: edited: of each message of one shard whose content a person replaced since an instant the newest version, and whether it is gone
-- The plan is written moments before it is carried out. Of one whose end nobody wrote down it is not known whether it was.
SELECT DISTINCT ON (v.topic, v.message_id) v.topic, v.message_id, v.content_version, v.emptied_at IS NOT NULL
FROM message_version v
WHERE v.shard = %(shard)s AND v.content_version > 1 AND v.written_at >= %(since)s - interval '1 hour'
    AND v.carried_out IS NOT FALSE
ORDER BY v.topic, v.message_id, v.content_version DESC;

-- name: content: of one version
SELECT content FROM message_version
WHERE topic = %(topic)s AND message_id = %(message_id)s AND content_version = %(version)s;

-- name: held: messages of one shard that are a person's, because their right content is gone; undecided, or left so on purpose
SELECT m.topic, m.message_id FROM case_member m JOIN case_file c USING (case_id)
WHERE c.kind = %(kind)s AND c.subject = %(subject)s AND m.shard = %(shard)s AND m.settled_at IS NULL
    AND (c.state = 'open' OR c.state = 'decided' AND c.decision = 'leave')
ORDER BY 1, 2;

-- name: withdrawn: messages of one shard that a person withdrew, in pages by key
SELECT w.topic, w.message_id, w.applied_at IS NOT NULL
FROM withdrawal w
WHERE w.shard = %(shard)s AND (w.topic, w.message_id) > (%(topic)s, %(message_id)s)
ORDER BY w.topic, w.message_id
LIMIT %(limit)s;
