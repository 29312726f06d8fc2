-- Named queries on the control database: how a send is asked for.

-- name: ask: new requests; closed ones whose number is still free are opened again, open ones get the groups added
-- A row that is claimed or whose number was published is not returned, because it is not touched. A person's request stays a
-- person's, whoever joins it (also by a plan of an incident), and triage's stays triage's when reconcile joins; `asked_by` says who asked
-- for which group, because nobody lends their name to what others asked for. For a group for
-- which a person gave it up only a person asks again; for what can never be sent, reconcile does not.
INSERT INTO resend_request AS r (shard, topic, message_id, send_number, groups, reason, requested_by, route, held, run_id)
SELECT a.shard, a.topic, a.message_id, a.send_number, a.groups, a.reason, a.requested_by, a.route, a.held, %(run_id)s
FROM jsonb_to_recordset(%(asks)s::jsonb) AS a(shard text, topic text, message_id text, send_number int, groups text[],
    reason text, requested_by text, route text, held boolean)
ON CONFLICT (topic, message_id, send_number) DO UPDATE SET
    state = 'open',
    shard = excluded.shard,
    groups = CASE
        WHEN r.state <> 'open' THEN excluded.groups
        WHEN r.groups IS NULL OR excluded.groups IS NULL THEN NULL
        ELSE ARRAY(SELECT DISTINCT g FROM unnest(r.groups || excluded.groups) AS g ORDER BY g)
    END,
    asked_by = CASE WHEN r.state = 'open' AND (r.asked_by IS NOT NULL OR r.requested_by <> excluded.requested_by) THEN (
        SELECT jsonb_object_agg(k.wanted, k.who) FROM (
            SELECT DISTINCT ON (g.wanted) g.wanted, w.who
            FROM (SELECT unnest(coalesce(r.groups, '{*}')) UNION SELECT unnest(coalesce(excluded.groups, '{*}'))
                UNION SELECT jsonb_object_keys(r.asked_by) WHERE r.groups IS NULL) AS g (wanted)
            CROSS JOIN LATERAL (VALUES
                (r.groups, coalesce(r.asked_by ->> g.wanted, r.asked_by ->> '*', r.requested_by), false),
                (excluded.groups, excluded.requested_by, true)) AS w (groups, who, is_new)
            WHERE w.groups IS NULL OR g.wanted = ANY (w.groups)
            -- Who may send what the others may, and more; of equals the newer.
            ORDER BY g.wanted, CASE WHEN w.who = 'reconcile' THEN 0 WHEN w.who = 'triage' THEN 1
                WHEN w.who ~ ' \(incident \d+\)$' THEN 2 WHEN starts_with(w.who, 'person ') THEN 3 ELSE 4 END DESC, w.is_new DESC) AS k) END,
    reason = CASE WHEN r.state = 'open' THEN r.reason ELSE excluded.reason END,
    requested_by = CASE
        WHEN r.state = 'open' AND (excluded.requested_by = 'reconcile'
            OR excluded.requested_by = 'triage' AND r.requested_by <> 'reconcile'
            OR excluded.requested_by ~ ' \(incident \d+\)$' AND r.requested_by NOT IN ('reconcile', 'triage'))
            THEN r.requested_by
        ELSE excluded.requested_by
    END,
    route = CASE WHEN r.state = 'open' AND r.groups IS DISTINCT FROM excluded.groups THEN 'topic' ELSE excluded.route END,
    run_id = CASE WHEN r.state = 'open' THEN r.run_id ELSE excluded.run_id END,
    not_before = CASE WHEN r.state = 'open' AND excluded.requested_by IN ('reconcile', 'triage') THEN r.not_before
        ELSE clock_timestamp() END,
    closed_by_run = NULL,
    error = NULL,
    held = CASE WHEN r.state = 'open' THEN r.held ELSE excluded.held END,
    batch_id = CASE WHEN r.state = 'open' THEN r.batch_id END,
    step = CASE WHEN r.state = 'open' THEN r.step END,
    created_at = CASE WHEN r.state = 'open' THEN r.created_at ELSE statement_timestamp() END,
    updated_at = statement_timestamp()
WHERE r.state IN ('open', 'not_needed', 'superseded')
    AND (r.given_up_by IS NULL OR excluded.requested_by NOT IN ('reconcile', 'triage')
        OR excluded.groups IS NOT NULL AND NOT r.given_up_groups && (excluded.groups || '{*}'))
    AND (r.state = 'open' OR excluded.requested_by <> 'reconcile' OR NOT starts_with(coalesce(r.error, ''), %(for_good)s))
RETURNING CASE
    WHEN xmax = 0 THEN 'requests'
    WHEN r.created_at = r.updated_at THEN 'reopened'
    ELSE 'joined'
END;

-- name: not_given_up_any_more: what a person asks for again, whatever number it was given up with
-- It leaves a batch that was given up, of which nothing is ever claimed: a worker may still have it, and hand it back.
UPDATE resend_request r
SET given_up_groups = rest.groups, given_up_by = CASE WHEN rest.groups IS NOT NULL THEN r.given_up_by END,
    batch_id = rest.batch_id, step = CASE WHEN rest.batch_id IS NOT NULL THEN r.step END
FROM jsonb_to_recordset(%(asks)s::jsonb) AS a(topic text, message_id text, groups text[], requested_by text)
CROSS JOIN LATERAL (
    SELECT p.request_id, nullif(ARRAY(
        SELECT g FROM unnest(p.given_up_groups) AS g WHERE a.groups IS NOT NULL AND g <> '*' AND g <> ALL (a.groups)), '{}') AS groups,
        CASE WHEN b.state <> 'given_up' THEN p.batch_id END AS batch_id
    FROM resend_request p
    LEFT JOIN resend_batch b USING (batch_id)
    WHERE p.topic = a.topic AND p.message_id = a.message_id AND p.given_up_by IS NOT NULL) rest
WHERE r.request_id = rest.request_id AND a.requested_by NOT IN ('reconcile', 'triage');

-- name: erased: of these messages, those whose erasure is done
SELECT DISTINCT e.topic, e.message_id FROM erasure e
JOIN unnest(%(topics)s::text[], %(ids)s::text[]) AS k (topic, message_id) USING (topic, message_id)
WHERE e.done_at IS NOT NULL;

-- name: take_turns: one at a time asks for much: two at once could each stay within the blast radius and leave it together
SELECT set_config('lock_timeout', '0', true), pg_advisory_xact_lock(hashtextextended('backstop promotion', 0));
