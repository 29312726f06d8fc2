-- What triage decided: requests, proofs, cases and alerts. Ids only.

-- name: decided_or_waits: every classified letter that the run looked at is decided, or says when it is looked at again
SELECT d.dead_letter_id::text AS dead_letter_id, d.topic, d.message_id
FROM {batch} AS run
JOIN run AS whole USING (run_id)
JOIN dead_letter AS d ON d.state = 'open' AND d.classified_at IS NOT NULL AND d.drained_at <= run.as_of
WHERE (whole.scope = '*' OR whole.scope LIKE '[%' AND whole.scope::jsonb ? d.topic)
    AND (d.decided_at IS NULL OR d.decision IN ('wait', 'escalate') AND d.reason IS DISTINCT FROM 'left' AND d.look_at IS NULL);

-- name: replaying_has_request: every letter that is being replayed has its request
SELECT d.dead_letter_id::text AS dead_letter_id, d.topic, d.message_id
FROM {batch} AS run
JOIN dead_letter AS d ON d.state = 'replaying'
WHERE NOT EXISTS (
    SELECT 1 FROM resend_request AS r
    WHERE r.topic = d.topic AND r.message_id = d.message_id AND r.send_number = d.send_number);

-- name: discarded_has_proof: no letter is discarded without the log row, or the person, that proves it
SELECT d.dead_letter_id::text AS dead_letter_id, d.topic, d.message_id
FROM {batch} AS run
JOIN dead_letter AS d ON d.state = 'discarded' AND d.closed_at >= run.started_at
WHERE NOT (d.proof ? 'consumed_at' OR d.proof ? 'decided_by');

-- name: escalated_has_case: every letter that a person must decide is in a case that is not closed
SELECT d.dead_letter_id::text AS dead_letter_id, d.topic, d.message_id
FROM {batch} AS run
JOIN dead_letter AS d ON d.state = 'open' AND d.decision = 'escalate'
LEFT JOIN case_file AS c USING (case_id)
WHERE c.case_id IS NULL OR c.closed_at IS NOT NULL OR c.kind <> 'dead_letters';

-- name: case_has_alert: every case of dead letters has told a person
SELECT c.case_id::text AS case_id, c.topic
FROM {batch} AS run
JOIN case_file AS c ON c.kind = 'dead_letters' AND (c.closed_at IS NULL OR c.closed_at >= run.started_at)
WHERE NOT EXISTS (SELECT 1 FROM alert AS a WHERE a.case_id = c.case_id AND a.ended IS DISTINCT FROM 'given_up');
