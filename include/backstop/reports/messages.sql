-- Named queries on the control database: what is known of one message. They change nothing.

-- name: requests_of_message: every request for a message; stopped: no resend run releases it until a person decides the ramp's case
SELECT r.request_id, r.send_number, r.groups, r.reason, r.requested_by, r.asked_by, r.route, r.state, r.held,
    EXISTS (SELECT 1 FROM resend_batch b WHERE b.topic = r.topic AND b.state = 'stopped' AND (r.held OR b.batch_id = r.batch_id))
        AS stopped,
    r.not_before, r.claim_deadline, r.run_id, r.closed_by_run, r.error, r.given_up_by, r.given_up_groups,
    r.created_at, r.updated_at
FROM resend_request r WHERE r.topic = %(topic)s AND r.message_id = %(message_id)s ORDER BY r.send_number;

-- name: decisions_of_message: what people gave up of it
SELECT consumer_group, decision, case_id, decided_by, decided_at, why
FROM delivery_decision WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY consumer_group;

-- name: cases_of_message: the cases it is in
SELECT c.case_id, c.kind, c.consumer_group, c.state, c.decision, c.decided_by, c.decided_at, c.why, m.added_at, m.settled_at
FROM case_member m JOIN case_file c USING (case_id)
WHERE m.topic = %(topic)s AND m.message_id = %(message_id)s ORDER BY c.case_id;

-- name: mass_losses: deliveries among these messages that a person is asked about as one of a mass loss, or left
SELECT message_id, consumer_group FROM mass_loss_delivery
WHERE topic = %(topic)s AND message_id = ANY (%(message_ids)s::text[]);

-- name: quarantine_of_message: broken rows of it
SELECT store, reason, consumer_group, detail, first_seen_at, last_seen_at
FROM quarantine WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY store, reason;

-- name: anomalies_of_message: what was odd about it
SELECT kind, consumer_group, detail, times, first_seen_at, last_seen_at
FROM anomaly WHERE topic = %(topic)s AND message_id = %(message_id)s ORDER BY kind;
