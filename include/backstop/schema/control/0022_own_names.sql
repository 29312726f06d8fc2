-- A proposal that nobody answered in time ends, and its content with it.
ALTER TABLE proposal DROP CONSTRAINT proposal_how_check;
ALTER TABLE proposal ADD CONSTRAINT proposal_how_check CHECK (how IN ('approved', 'rejected', 'stale', 'lapsed'));
COMMENT ON COLUMN proposal.how IS 'stale: the case was over, or came back, before anybody answered; lapsed: nobody answered in time';

-- A person's own login writes its own name, and by TG_ARGV[1] what else belongs to its decision:
-- approves: beside the name of whose proposal it approves; what a producer had written stays the producer's
-- case: a name that the log of decisions has for the case, because a decision that was refused puts the one before back
-- letter: who gave the delivery up before, or triage, for what the log proves done
-- request: the case that it decides, its own plan's or list's number
CREATE FUNCTION approves_for(said text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM proposal p WHERE p.ended_at IS NULL AND p.who || ', approved by ' || session_user::text = said)
$$;
COMMENT ON FUNCTION approves_for IS 'whether this is the name of a proposal''s author with this session''s login as who approves it';

CREATE OR REPLACE FUNCTION speak_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    line jsonb := pg_catalog.to_jsonb(NEW);
    said text := line ->> TG_ARGV[0];
    me text := session_user;
    mode text := TG_ARGV[1];
BEGIN
    IF said IS NULL OR said = me OR TG_OP = 'UPDATE' AND said IS NOT DISTINCT FROM pg_catalog.to_jsonb(OLD) ->> TG_ARGV[0]
        OR NOT speaks_as_person() THEN
        RETURN NEW;
    END IF;
    IF mode IN ('approves', 'case', 'letter') AND approves_for(said)
        OR mode = 'approves' AND said = 'the producer'
        OR mode = 'case' AND EXISTS (
            SELECT FROM decision_log l
            WHERE l.subject = 'case ' || (line ->> 'case_id') AND (l.who = said OR l.details ->> 'by' = said))
        OR mode = 'letter' AND (said = 'triage' OR EXISTS (
            SELECT FROM delivery_decision d
            WHERE d.topic = line ->> 'topic' AND d.message_id = line ->> 'message_id'
                AND d.consumer_group = line ->> 'consumer_group' AND d.decided_by = said) OR EXISTS (
            SELECT FROM withdrawal w
            WHERE w.topic = line ->> 'topic' AND w.message_id = line ->> 'message_id' AND w.decided_by = said))
        OR mode = 'request' AND (said = 'person ' || me
            OR said = me || ' (incident ' || substring(said FROM '\(incident ([0-9]+)\)$') || ')' OR EXISTS (
                SELECT FROM case_file c
                WHERE c.case_id = substring(said FROM '^case ([0-9]{1,18})$')::bigint AND c.state = 'open' AND c.intention IS NOT NULL
                    AND (c.decided_by = me OR right(c.decided_by, length(me) + 14) = ', approved by ' || me))) THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = 'the login ' || me || ' writes in its own name alone';
END
$$;

-- The same for discards, once a statement: a person may give up a hundred thousand deliveries at once.
CREATE FUNCTION discard_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() AND EXISTS (
        SELECT FROM (SELECT DISTINCT decided_by FROM written) w
        WHERE w.decided_by <> session_user::text AND NOT approves_for(w.decided_by)) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' writes in its own name alone';
    END IF;
    RETURN NULL;
END
$$;

-- Of another's plan nobody changes what is in it.
CREATE FUNCTION plan_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() AND NOT EXISTS (SELECT FROM incident i WHERE i.run_id = NEW.run_id AND i.planned_by = session_user::text) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' adds to its own plans alone';
    END IF;
    RETURN NEW;
END
$$;

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
    -- Asked of each row before the function is called: the duties write a hundred thousand at once.
    person text := 'CASE WHEN to_regrole(''backstop_person'') IS NULL THEN false '
        || 'ELSE pg_has_role(session_user, to_regrole(''backstop_person'')::oid, ''usage'') END';
    one record;
BEGIN
    EXECUTE 'ALTER FUNCTION speak_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION plan_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION discard_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION approves_for(text)' || path;
    FOR one IN
        SELECT * FROM (VALUES
            ('proposal', 'speaks_for_itself', 'who', ''), ('proposal', 'ends_for_itself', 'ended_by', ''),
            ('incident', 'speaks_for_itself', 'planned_by', ''), ('incident', 'approves_for_itself', 'approved_by', ''),
            ('case_note', 'speaks_for_itself', 'written_by', ''), ('pause', 'speaks_for_itself', 'paused_by', ''),
            ('withdrawal', 'speaks_for_itself', 'decided_by', 'approves'),
            ('message_version', 'speaks_for_itself', 'written_by', 'approves'),
            ('case_file', 'speaks_for_itself', 'decided_by', 'case'),
            ('dead_letter', 'speaks_for_itself', 'decided_by', 'letter'),
            ('resend_request', 'speaks_for_itself', 'requested_by', 'request')
        ) AS t (held, name, said, mode)
    LOOP
        EXECUTE 'DROP TRIGGER IF EXISTS ' || one.name || ' ON ' || one.held;
        EXECUTE 'CREATE TRIGGER ' || one.name || ' BEFORE INSERT OR UPDATE OF ' || one.said || ' ON ' || one.held
            || ' FOR EACH ROW WHEN (' || person || ') EXECUTE FUNCTION speak_for_yourself('
            || quote_literal(one.said) || ', ' || quote_literal(one.mode) || ')';
    END LOOP;
    EXECUTE 'CREATE TRIGGER plans_for_itself BEFORE INSERT ON incident_delivery FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION plan_for_yourself()';
END
$$;
DROP TRIGGER speaks_for_itself ON delivery_decision;
CREATE TRIGGER speaks_for_itself AFTER INSERT ON delivery_decision REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION discard_for_yourself();
