-- Named queries on the control database: what still points at a message, and what of Backstop's own is over.

-- name: held: of these messages, those that somebody is still busy with: a request, a letter, a person
SELECT k.topic, k.message_id
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
WHERE EXISTS (
        SELECT 1 FROM resend_request r
        WHERE r.topic = k.topic AND r.message_id = k.message_id AND r.state IN ('open', 'claimed'))
    OR EXISTS (
        SELECT 1 FROM dead_letter d
        WHERE d.topic = k.topic AND d.message_id = k.message_id AND d.state IN ('open', 'replaying'))
    OR EXISTS (  -- one that lost its topic may be of this one
        SELECT 1 FROM dead_letter d
        WHERE d.topic IS NULL AND d.message_id = k.message_id AND d.state IN ('open', 'replaying'))
    OR EXISTS (
        SELECT 1 FROM case_member m JOIN case_file c USING (case_id)
        WHERE m.topic = k.topic AND m.message_id = k.message_id AND c.closed_at IS NULL AND m.settled_at IS NULL);

-- name: clock: the control database's own time
SELECT clock_timestamp();

-- name: checked_runs: of these runs, those whose checks are kept
SELECT DISTINCT c.run_id FROM data_check c WHERE c.run_id = ANY (%(run_ids)s::bigint[]);
