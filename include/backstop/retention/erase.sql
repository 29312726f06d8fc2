-- What an erasure does in the control database.

-- name: begin: who asks for it and why, before anything is emptied
INSERT INTO erasure (topic, message_id, asked_by, why) VALUES (%(topic)s, %(message_id)s, %(who)s, %(why)s);

-- name: waiting_dead_letters: dead letters of a message that are not decided
SELECT count(*) FROM dead_letter d
WHERE d.topic = %(topic)s AND d.message_id = %(message_id)s AND d.state IN ('open', 'replaying');

-- name: dead_letter: empties its decided letters; what the broker, the consumer and the reader said may quote the content
-- That it broke the contract stays.
UPDATE dead_letter d SET
    content = NULL, headers = '{}', properties = '{}', partition_key = NULL, tag = NULL, aside = false,
    cause_text = '', error = '', proof = d.proof - 'payload_hash', invalid = CASE WHEN d.invalid IS NOT NULL THEN 'erased' END,
    emptied_at = coalesce(d.emptied_at, clock_timestamp())
WHERE d.topic = %(topic)s AND d.message_id = %(message_id)s AND d.state IN ('replayed', 'discarded');

-- name: dead_letter_aside: ... and what was kept beside them
DELETE FROM dead_letter_aside a USING dead_letter d
WHERE d.dead_letter_id = a.dead_letter_id AND d.topic = %(topic)s AND d.message_id = %(message_id)s
    AND d.state IN ('replayed', 'discarded');

-- name: hold_causes: what its dead letters died of, so that no letter of another message joins meanwhile
SELECT c.cause_id FROM cause c
WHERE c.cause_id IN (SELECT d.cause_id FROM dead_letter d WHERE d.topic = %(topic)s AND d.message_id = %(message_id)s)
ORDER BY c.cause_id
FOR UPDATE;

-- name: cause: ... is emptied where no other message's letter has it, with what closed cases show of it
-- A text that comes again gets a cause of its own: the name of the one before could be guessed from the text, too.
WITH alone AS (
    SELECT c.cause_id, c.fingerprint FROM cause c
    WHERE c.fingerprint <> 'erased-' || c.cause_id
        AND c.cause_id IN (SELECT d.cause_id FROM dead_letter d WHERE d.topic = %(topic)s AND d.message_id = %(message_id)s)
        AND NOT EXISTS (
            SELECT FROM dead_letter o
            WHERE o.cause_id = c.cause_id AND (o.topic, o.message_id) IS DISTINCT FROM (%(topic)s::text, %(message_id)s::text))
), cases AS (
    UPDATE case_file f SET
        evidence = f.evidence || '{"template": "(erased)"}',
        subject = CASE WHEN f.state = 'open' THEN f.subject ELSE 'erased-' || a.cause_id END
    FROM alone a
    WHERE f.kind = 'dead_letters' AND f.subject = a.fingerprint
)
UPDATE cause c SET fingerprint = 'erased-' || c.cause_id, template = '(erased)', shown = '(erased)'
FROM alone a WHERE c.cause_id = a.cause_id;

-- name: resend_request: what went wrong with its requests, in the words of brokers and databases
UPDATE resend_request r SET error = NULL
WHERE r.topic = %(topic)s AND r.message_id = %(message_id)s AND r.error IS NOT NULL;

-- name: message_version: empties what people edited of it
UPDATE message_version v SET content = '', emptied_at = coalesce(v.emptied_at, clock_timestamp())
WHERE v.topic = %(topic)s AND v.message_id = %(message_id)s;

-- name: proposal: empties a new content that somebody proposed for it
UPDATE proposal SET content = NULL
WHERE content IS NOT NULL
    AND (options -> 'message_ids' @> to_jsonb(%(message_id)s::text) OR NOT options ? 'message_ids' AND EXISTS (
        SELECT FROM case_member m WHERE m.case_id = proposal.case_id AND m.message_id = %(message_id)s))
    AND EXISTS (SELECT FROM case_file c WHERE c.case_id = proposal.case_id AND c.topic = %(topic)s);

-- name: case_question: ... or answered, where the answer was not applied yet
UPDATE case_question q SET given = given #- '{inputs,secret_content}' #- '{inputs,secret_content_base64}'
WHERE given -> 'inputs' ?| ARRAY['secret_content', 'secret_content_base64']
    AND EXISTS (SELECT FROM case_file c WHERE c.case_id = q.case_id AND c.topic = %(topic)s)
    AND (given #>> '{inputs,ids}' IS NULL OR %(message_id)s = ANY (regexp_split_to_array(given #>> '{inputs,ids}', E'\r?\n')));

-- name: done: everything that can be reached is empty; with it also what was asked for before and was cut short
UPDATE erasure SET done_at = clock_timestamp(), erased = %(erased)s
WHERE topic = %(topic)s AND message_id = %(message_id)s AND done_at IS NULL;
