-- Least privileges in a consumer database, safe to run twice: NOLOGIN roles, which a platform grants to its logins.
-- Run it as the tables' owner; a role that is missing is made, which takes CREATEROLE (or a DBA makes it before).
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['backstop_consumer', 'backstop_duty', 'backstop_person'] LOOP
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

-- backstop_consumer: the consumer groups, which own their logs.
GRANT SELECT, INSERT, UPDATE ON consumer_log TO backstop_consumer;
-- They share their queues, and park and release ordering keys.
GRANT SELECT, INSERT, UPDATE ON queue_owner TO backstop_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON group_member, parked_key, parked_message, parking_full, downstream_away, consumer_books
    TO backstop_consumer;

-- backstop_duty: Backstop's duties: they read, and the sweep takes back leases that ended.
GRANT SELECT ON consumer_log, consumer_log_floor, backstop_consumer_version TO backstop_duty;
GRANT UPDATE (state, updated_at, lease_expires_at) ON consumer_log TO backstop_duty;
-- An erasure empties what handlers said of one message, and the fingerprint of its content.
GRANT UPDATE (last_error, payload_hash) ON consumer_log TO backstop_duty;
-- Retention takes away what is over, and says first up to when.
GRANT DELETE ON consumer_log TO backstop_duty;
GRANT INSERT, UPDATE ON consumer_log_floor TO backstop_duty;
-- They show who owns which queue and which keys wait, and apply what people answered.
GRANT SELECT ON queue_owner, group_member, parking_full, downstream_away, consumer_books TO backstop_duty;
GRANT SELECT, UPDATE, DELETE ON parked_key, parked_message TO backstop_duty;
GRANT SELECT, INSERT, DELETE ON parked_discard TO backstop_duty;

-- backstop_person: people who decide by command line look here, and answer for parked keys.
GRANT SELECT ON consumer_log, consumer_log_floor, backstop_consumer_version TO backstop_person;
GRANT SELECT ON queue_owner, group_member, parking_full, downstream_away, consumer_books TO backstop_person;
GRANT SELECT, DELETE ON parked_key, parked_message TO backstop_person;
GRANT UPDATE (state, messages, bytes, answer, answered_by, answered_at, updated_at) ON parked_key TO backstop_person;
GRANT UPDATE (content, content_version) ON parked_message TO backstop_person;
GRANT SELECT, INSERT, DELETE ON parked_discard TO backstop_person;
