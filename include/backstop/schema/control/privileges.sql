-- Least privileges in a control database, safe to run twice: NOLOGIN roles, which a platform grants to its logins.
-- Run it as the tables' owner; a role that is missing is made, which takes CREATEROLE (or a DBA makes it before).
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['backstop_duty', 'backstop_person', 'backstop_reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            -- Roles belong to the server: another database's run made it a moment ago.
            RAISE NOTICE 'role % is there already', wanted;
        END;
        EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), wanted);
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), wanted);
    END LOOP;
END
$$;

-- Nobody but the owner makes objects beside the tables: the functions that hold people to their own names would take an operator or a
-- function of a narrower type before the server's own. PostgreSQL before 15 lets everybody make them.
DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.unnest(ARRAY['public', 'backstop_duty', 'backstop_person', 'backstop_reader']::name[]) AS h (holder)
        WHERE pg_catalog.has_schema_privilege(h.holder, current_schema(), 'CREATE')) THEN
        EXECUTE pg_catalog.format(
            'REVOKE CREATE ON SCHEMA %I FROM PUBLIC, backstop_duty, backstop_person, backstop_reader', current_schema());
    END IF;
    IF pg_catalog.has_schema_privilege('public', current_schema(), 'CREATE') THEN
        RAISE WARNING 'everybody may make objects in the schema %: its owner runs REVOKE CREATE ON SCHEMA % FROM PUBLIC',
            current_schema(), current_schema();
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'everybody may make objects in the schema %: its owner runs REVOKE CREATE ON SCHEMA % FROM PUBLIC',
        current_schema(), current_schema();
END
$$;

-- backstop_duty: Backstop's duties; only the version of the schema is not theirs to change.
GRANT SELECT, INSERT, UPDATE, DELETE ON
    run, duty_lease, queue_epoch, progress, progress_history, retry_place, delay_look, no_taker, quarantine, anomaly, staged_verdict,
    staged_stub, staged_part, staged_count, staged_read, verdict, verdict_count, resend_batch, resend_request, case_file,
    case_member, proof, proof_count, delivery_decision, withdrawal, alert, pause, data_check, watermark,
    watch_topic, watch_group, watch_queue, watch_shard, watch_finding, watch_consumer, watch_owner,
    sweep_count, sweep_look, sweep_sample, sweep_place,
    alert_message, alert_delivery, alert_channel,
    drain_batch, drain_mark, cause, dead_letter, dead_letter_aside, staged_letter, message_version, case_note,
    incident, incident_delivery, case_question, erasure, audit_look, audit_finding, owed_since, proposal, people_policy,
    drained_broker, broker_server, open_delivery, tally, delivery_hour, cause_hour, total,
    mapped_look, mapped_stub, mapped_attempt, mapped_log_proof, topic_broker
    TO backstop_duty;
GRANT SELECT ON decision_log, decision_checkpoint, backstop_control_version, stopped_topic, mass_loss_delivery TO backstop_duty;
-- What an audit saw stays as it saw it.
GRANT SELECT, INSERT ON decision_seen TO backstop_duty;
GRANT EXECUTE ON FUNCTION append_decision(text, text, text, text, jsonb) TO backstop_duty;
-- Staging goes through a temporary table; PUBLIC may make one only where nobody took that away.
DO $$
BEGIN
    EXECUTE pg_catalog.format('GRANT TEMPORARY ON DATABASE %I TO backstop_duty', current_database());
END
$$;

-- backstop_person: people who decide by command line, each with a login of their own: they read, decide cases and dead letters,
-- plan and replay incidents, pause and note. What they decide is in decision_log with their login.
GRANT SELECT ON
    run, duty_lease, queue_epoch, progress, progress_history, retry_place, delay_look, no_taker, quarantine, anomaly, staged_verdict,
    staged_stub, staged_part, staged_count, staged_read, verdict, verdict_count, resend_batch, resend_request, case_file,
    case_member, proof, proof_count, delivery_decision, withdrawal, alert, pause, data_check, watermark,
    watch_topic, watch_group, watch_queue, watch_shard, watch_finding, watch_consumer, watch_owner,
    sweep_count, sweep_look, sweep_sample, sweep_place,
    alert_message, alert_delivery, alert_channel,
    drain_batch, drain_mark, cause, dead_letter, dead_letter_aside, staged_letter, message_version, case_note,
    incident, incident_delivery, case_question, erasure, audit_look, audit_finding, owed_since,
    proposal, people_policy, drained_broker, broker_server, decision_log, decision_checkpoint, decision_seen,
    open_delivery, tally, delivery_hour, cause_hour, total, mapped_look, mapped_stub, mapped_attempt, mapped_log_proof, topic_broker, backstop_control_version,
    stopped_topic, mass_loss_delivery
    TO backstop_person;
GRANT INSERT, UPDATE ON duty_lease TO backstop_person;
-- Which message was withdrawn or edited is not theirs to change.
GRANT INSERT (shard, topic, message_id, case_id, decided_by, why, applied_at),
    UPDATE (case_id, decided_by, why, begun_at, applied_at) ON withdrawal TO backstop_person;
GRANT INSERT (shard, topic, message_id, content_version, content, case_id, written_by, why),
    UPDATE (shard, content, case_id, written_by, why, written_at, carried_out) ON message_version TO backstop_person;
-- What a case is about, and which deliveries are in it since when, is not theirs to change: others decide by it.
GRANT INSERT (kind, topic, consumer_group, subject, severity, summary, evidence, opened_by_run) ON case_file TO backstop_person;
GRANT UPDATE (severity, state, summary, evidence, opened_at, last_seen_at, decision, decided_by, decided_at, why, closed_at, reopened,
    intention) ON case_file TO backstop_person;
GRANT INSERT (case_id, shard, topic, message_id, consumer_group) ON case_member TO backstop_person;
GRANT UPDATE (settled_at, added_at) ON case_member TO backstop_person;
GRANT INSERT (duty, scope, token, dry_run, no_send, policy_version, code_version) ON run TO backstop_person;
GRANT UPDATE (state, heartbeat_at, finished_at, error, counts, phases, only_ids, phase, phase_done, phase_of) ON run TO backstop_person;
-- When somebody decided, paused or stated something, and what a plan has asked for, the database says.
GRANT INSERT (topic, message_id, consumer_group, decision, case_id, decided_by, why) ON delivery_decision TO backstop_person;
GRANT INSERT (topic, paused_by, why) ON pause TO backstop_person;
GRANT INSERT (topic, broker, case_id, stated_by, why) ON drained_broker TO backstop_person;
GRANT INSERT (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason, letters, seen)
    ON incident_delivery TO backstop_person;
GRANT INSERT (run_id, wanted, planned_by, why) ON incident TO backstop_person;
GRANT INSERT (case_id, written_by, note) ON case_note TO backstop_person;
GRANT INSERT (case_id, dedup_key, severity, title, body) ON alert TO backstop_person;
GRANT INSERT (case_id, action, who, why, options, content) ON proposal TO backstop_person;
GRANT INSERT (shard, topic, message_id, send_number, groups, reason, requested_by, route, held, run_id)
    ON resend_request TO backstop_person;
GRANT DELETE ON duty_lease, pause, withdrawal, case_member TO backstop_person;
GRANT UPDATE (shard, groups, reason, requested_by, asked_by, route, held, run_id, state, not_before, closed_by_run, error, batch_id,
    step, given_up_by, given_up_groups, created_at, updated_at) ON resend_request TO backstop_person;
GRANT UPDATE (state, decision, reason, decided_by, left_in_case, barred, decided_at, look_at, case_id, shard, send_number, proof,
    closed_at) ON dead_letter TO backstop_person;
-- Who planned, in which run, what was shown and what was answered is not theirs to write.
GRANT UPDATE (whole, left_out, too_wide, approved_by, approved_at, paced_until) ON incident TO backstop_person;
GRANT UPDATE (letters, seen, asked_at, left_out) ON incident_delivery TO backstop_person;
GRANT UPDATE (accepted) ON queue_epoch TO backstop_person;
-- What was proposed is not theirs to change, but to end.
GRANT UPDATE (ended_at, ended_by, how, content) ON proposal TO backstop_person;
GRANT UPDATE (state, pardoned, ended_at) ON resend_batch TO backstop_person;
GRANT EXECUTE ON FUNCTION append_decision(text, text, text, text, jsonb) TO backstop_person;

-- backstop_reader: pages and people that only look: at everything but contents, headers, and texts that may quote them. A new table,
-- and a new column of a table that has some of these, is read once it is named here.
DO $$
DECLARE
    whole text[] := ARRAY[
        'run', 'duty_lease', 'queue_epoch', 'progress', 'progress_history', 'retry_place', 'delay_look', 'no_taker', 'quarantine', 'anomaly', 'staged_verdict',
        'staged_stub', 'staged_part', 'staged_count', 'staged_read', 'verdict', 'verdict_count', 'resend_batch', 'resend_request',
        'case_file', 'case_member', 'proof', 'proof_count', 'delivery_decision', 'withdrawal', 'alert', 'pause', 'data_check', 'watermark',
        'watch_topic', 'watch_group', 'watch_queue', 'watch_shard', 'watch_finding', 'watch_consumer', 'watch_owner',
        'sweep_count', 'sweep_look', 'sweep_sample',
        'sweep_place', 'alert_message', 'alert_delivery', 'alert_channel', 'drain_batch', 'drain_mark', 'case_note', 'incident_delivery',
        'erasure', 'audit_look', 'audit_finding', 'owed_since', 'people_policy', 'drained_broker', 'broker_server', 'decision_log',
        'decision_checkpoint', 'decision_seen', 'open_delivery', 'tally', 'delivery_hour', 'cause_hour', 'total', 'mapped_look', 'mapped_stub', 'mapped_attempt', 'mapped_log_proof', 'topic_broker',
        'backstop_control_version'];
    readable record;
BEGIN
    FOR readable IN
        SELECT t.relname, string_agg(quote_ident(a.attname), ', ') FILTER (WHERE t.relname = ANY (whole) OR a.attname = ANY (
            CASE t.relname
                WHEN 'dead_letter' THEN ARRAY['dead_letter_id', 'batch_id', 'broker', 'queue', 'broker_id', 'consumer_group', 'topic',
                    'message_id', 'queue_id', 'queue_offset', 'queue_epoch', 'tag', 'partition_key', 'content_bytes', 'aside', 'deliveries',
                    'died_at', 'drained_at', 'invalid', 'cause_id', 'category', 'classified_at', 'classified_by', 'state', 'decision',
                    'reason', 'decided_at', 'decided_by', 'look_at', 'left_in_case', 'barred', 'shard', 'send_number', 'proof', 'case_id',
                    'closed_at', 'emptied_at']
                WHEN 'dead_letter_aside' THEN ARRAY['dead_letter_id']
                WHEN 'message_version' THEN ARRAY['shard', 'topic', 'message_id', 'content_version', 'case_id', 'written_by', 'why',
                    'written_at', 'emptied_at', 'carried_out']
                WHEN 'proposal' THEN ARRAY['proposal_id', 'case_id', 'action', 'who', 'why', 'options', 'proposed_at', 'ended_at',
                    'ended_by', 'how', 'approving_since', 'content_bytes', 'content_sha256']
                WHEN 'case_question' THEN ARRAY['case_id', 'number', 'dag_run_id', 'asked_at', 'shown_at', 'shown', 'answered_by', 'answer',
                    'ended_at', 'how', 'said']
                WHEN 'incident' THEN ARRAY['run_id', 'wanted', 'planned_by', 'why', 'whole', 'too_wide', 'left_out', 'planned_at',
                    'approved_by', 'approved_at', 'paced_until', 'planned_in', 'shown']
                WHEN 'cause' THEN ARRAY['cause_id', 'fingerprint', 'category', 'first_seen_at', 'last_seen_at', 'dead_letters', 'examples',
                    'shown']
                WHEN 'staged_letter' THEN ARRAY['run_id', 'stage', 'dead_letter_id', 'fingerprint', 'rule_category', 'category',
                    'classified_by']
            END)) AS columns
        FROM pg_class t
        JOIN pg_namespace n ON n.oid = t.relnamespace AND n.nspname = current_schema()
        JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        -- What the duties read; other programs may have tables here, too.
        WHERE t.relkind = 'r' AND has_table_privilege('backstop_duty', t.oid, 'SELECT')
        GROUP BY t.relname
    LOOP
        IF readable.columns IS NOT NULL THEN
            EXECUTE pg_catalog.format('GRANT SELECT (%s) ON %I TO backstop_reader', readable.columns, readable.relname);
        END IF;
    END LOOP;
END
$$;
GRANT SELECT ON stopped_topic, mass_loss_delivery TO backstop_reader;
