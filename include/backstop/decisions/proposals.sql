-- Named queries on the control database: decisions that wait for a second person.

-- name: proposed: what waits, unless the case was over or came back since
SELECT p.proposal_id, p.case_id, p.action, p.who, p.why, p.options, p.content, p.login
FROM proposal p JOIN case_file c USING (case_id)
WHERE p.case_id = %(case_id)s AND p.ended_at IS NULL AND p.proposed_at >= c.opened_at
    AND (c.state = 'open' OR c.state = 'decided' AND c.decision = 'leave');

-- name: end_stale: what nobody answered before the case was over
UPDATE proposal p SET ended_at = clock_timestamp(), how = 'stale', content = NULL
FROM case_file c
WHERE c.case_id = p.case_id AND p.case_id = %(case_id)s AND p.ended_at IS NULL AND p.proposed_at < c.opened_at;

-- name: propose: what one person decides, for another; what joins the case from now on is no part of it
INSERT INTO proposal (case_id, action, who, why, options, content)
SELECT c.case_id, %(action)s, %(who)s, %(why)s,
    jsonb_build_object('shown', jsonb_build_object('at', clock_timestamp(), 'letter',
        (SELECT coalesce(max(d.dead_letter_id), 0) FROM dead_letter d WHERE d.case_id = c.case_id),
        'head', c.evidence -> 'head', 'last_number', c.evidence -> 'last_number')) || %(options)s::jsonb, %(content)s
FROM case_file c
WHERE c.case_id = %(case_id)s AND (c.state = 'open' OR c.state = 'decided' AND c.decision = 'leave')
ON CONFLICT DO NOTHING;

-- name: was_proposed: whether this person's answer of this name was kept as a proposal, whatever became of it
SELECT EXISTS (SELECT FROM proposal WHERE case_id = %(case_id)s AND who = %(who)s AND options ->> 'once' = %(once)s);

-- name: lapse: what nobody answered in time, and nobody is applying
UPDATE proposal SET ended_at = clock_timestamp(), how = 'lapsed', content = NULL
WHERE ended_at IS NULL AND proposed_at < clock_timestamp() - %(after)s
    AND (ended_by IS NULL OR coalesce(approving_since, proposed_at) < clock_timestamp() - %(lease)s)
    AND (%(case_id)s::bigint IS NULL OR case_id = %(case_id)s);

-- name: how_it_ended: null: it waits, or was never there
SELECT how FROM proposal WHERE proposal_id = %(proposal_id)s AND case_id = %(case_id)s;

-- name: begin_to_approve: from here on it cannot be rejected, until it is let go or its lease is over
UPDATE proposal SET ended_by = %(who)s WHERE proposal_id = %(proposal_id)s AND ended_at IS NULL;

-- name: let_go: nothing of it reached a producer, and nobody else is applying it
UPDATE proposal p SET ended_by = NULL FROM case_file c
WHERE p.proposal_id = %(proposal_id)s AND p.ended_at IS NULL AND p.ended_by = %(who)s AND c.case_id = p.case_id
    AND NOT coalesce((c.intention ->> 'reached')::boolean, false);

-- name: reject: it ends unapplied; also when who was applying it is gone, and nothing of it can have reached a producer
UPDATE proposal p SET ended_at = clock_timestamp(), ended_by = %(who)s, how = 'rejected', content = NULL
FROM case_file c
WHERE p.proposal_id = %(proposal_id)s AND p.ended_at IS NULL AND c.case_id = p.case_id
    AND (p.ended_by IS NULL OR coalesce(p.approving_since, p.proposed_at) < clock_timestamp() - %(lease)s
        AND NOT coalesce((c.intention ->> 'reached')::boolean, false));
