-- Least privileges in a control database, safe to run twice: NOLOGIN roles, which a platform grants to its logins.
-- Run it as the tables' owner; a role that is missing is made, which takes CREATEROLE (or a DBA makes it before).
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['backstop_duty', 'backstop_reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            -- Roles belong to the server: another database's run made it a moment ago.
            RAISE NOTICE 'role % is there already', wanted;
        END;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), wanted);
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), wanted);
    END LOOP;
END
$$;

-- backstop_duty: Backstop's duties; only the version of the schema is not theirs to change.
GRANT SELECT, INSERT, UPDATE, DELETE ON
    run, duty_lease, queue_epoch, progress, progress_history, retry_place, quarantine, anomaly, staged_verdict,
    staged_stub, staged_count, staged_read, verdict, verdict_count, resend_batch, resend_request, case_file,
    case_member, proof, proof_count, delivery_decision, withdrawal, alert, pause, data_check, watermark,
    watch_topic, watch_group, watch_queue, watch_shard, watch_finding,
    sweep_count, sweep_look, sweep_sample, sweep_place,
    alert_message, alert_delivery, alert_channel,
    drain_batch, drain_mark, cause, dead_letter, dead_letter_aside, staged_letter, message_version, case_note,
    incident, incident_delivery, case_question, erasure, audit_look, audit_finding, owed_since
    TO backstop_duty;
GRANT SELECT ON backstop_control_version TO backstop_duty;
-- Staging goes through a temporary table; PUBLIC may make one only where nobody took that away.
DO $$
BEGIN
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO backstop_duty', current_database());
END
$$;

-- backstop_reader: pages and people that only look.
GRANT SELECT ON
    run, duty_lease, queue_epoch, progress, progress_history, retry_place, quarantine, anomaly, staged_verdict,
    staged_stub, staged_count, staged_read, verdict, verdict_count, resend_batch, resend_request, case_file,
    case_member, proof, proof_count, delivery_decision, withdrawal, alert, pause, data_check, watermark,
    watch_topic, watch_group, watch_queue, watch_shard, watch_finding,
    sweep_count, sweep_look, sweep_sample, sweep_place,
    alert_message, alert_delivery, alert_channel,
    drain_batch, drain_mark, cause, dead_letter, dead_letter_aside, staged_letter, message_version, case_note,
    incident, incident_delivery, case_question, erasure, audit_look, audit_finding, owed_since,
    backstop_control_version
    TO backstop_reader;
