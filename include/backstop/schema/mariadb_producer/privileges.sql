-- Least privileges in a producer database in MariaDB, safe to run twice: roles, which a platform grants to its logins. They count
-- only for a login whose default role they are: SET DEFAULT ROLE backstop_app FOR shop;
-- Run it as an administrator, in the database of the tables. It revokes nothing: `backstop migrate --grants` does.
CREATE ROLE IF NOT EXISTS backstop_app;
CREATE ROLE IF NOT EXISTS backstop_duty;
CREATE ROLE IF NOT EXISTS backstop_person;

-- backstop_app: the application, which records and settles its own sends, and cannot decide what became of a message.
GRANT SELECT, INSERT ON message_stub TO backstop_app;
GRANT UPDATE (refusals, broker, queue_id, queue_offset, queue_epoch, broker_message_id, attempted_at, sent_at, attempt_token,
    attempt_requested_by, updated_at) ON message_stub TO backstop_app;
GRANT SELECT, INSERT ON send_attempt TO backstop_app;

-- backstop_duty: Backstop's duties, which change what they decide. Of a message they change the content alone, and that only
-- where a person edited it in a case.
GRANT SELECT ON message_stub TO backstop_duty;
GRANT SELECT ON send_attempt TO backstop_duty;
GRANT SELECT ON backstop_producer_version TO backstop_duty;
GRANT UPDATE (status, send_count, refusals, max_sends, next_check_at, broker, queue_id, queue_offset, queue_epoch,
    broker_message_id, first_seen_at, judged_at, attempted_at, sent_at, attempt_token, attempt_deadline,
    attempt_groups, attempt_requested_by, first_broker, first_queue_id, first_queue_offset, first_queue_epoch, first_groups,
    content, content_version, updated_at) ON message_stub TO backstop_duty;
GRANT INSERT ON send_attempt TO backstop_duty;
-- Retention takes away what is over (its attempts go with it); an erasure empties one message on request.
GRANT DELETE ON message_stub TO backstop_duty;
GRANT UPDATE (headers, message_key, ordering_key, erased_hash) ON message_stub TO backstop_duty;
GRANT UPDATE (error) ON send_attempt TO backstop_duty;

-- backstop_person: people who decide by command line: they withdraw a message, allow more sends, or edit a content, after what an
-- attempt left was recovered.
GRANT SELECT ON message_stub TO backstop_person;
GRANT SELECT ON send_attempt TO backstop_person;
GRANT SELECT ON backstop_producer_version TO backstop_person;
GRANT UPDATE (status, max_sends, next_check_at, content, content_version, attempt_token, attempt_groups, attempt_requested_by,
    attempted_at, updated_at) ON message_stub TO backstop_person;
GRANT INSERT ON send_attempt TO backstop_person;
