-- An approver who was killed keeps a proposal for a bounded time.
ALTER TABLE proposal ADD COLUMN approving_since timestamptz;
COMMENT ON COLUMN proposal.approving_since IS 'when the last try to apply it began; null: nobody is applying it';

CREATE OR REPLACE FUNCTION keep_what_was_proposed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.content IS NOT NULL AND NEW.content IS DISTINCT FROM OLD.content
        OR (NEW.case_id, NEW.action, NEW.why, NEW.options) IS DISTINCT FROM (OLD.case_id, OLD.action, OLD.why, OLD.options) THEN
        RAISE integrity_constraint_violation USING MESSAGE = 'what was proposed is not changed: reject it, and propose anew';
    END IF;
    IF OLD.ended_at IS NOT NULL AND (NEW.ended_at, NEW.ended_by, NEW.how) IS DISTINCT FROM (OLD.ended_at, OLD.ended_by, OLD.how) THEN
        RAISE integrity_constraint_violation USING MESSAGE = 'a proposal that has ended stays as it ended';
    END IF;
    IF NEW.ended_at IS NULL THEN
        NEW.approving_since := CASE WHEN NEW.ended_by IS NOT NULL THEN pg_catalog.clock_timestamp() END;
    END IF;
    RETURN NEW;
END
$$;

-- What a person's login writes in two names belongs to the proposal that it is approving now: of this case, of this action (null: any),
-- and of this message, where the proposal names some.
CREATE FUNCTION approves_for(said text, of_case bigint, doing text, message text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM proposal p
        WHERE p.case_id = of_case AND p.ended_at IS NULL AND p.ended_by = session_user::text
            AND lower(p.who) <> lower(session_user::text) AND p.who || ', approved by ' || session_user::text = said
            AND (doing IS NULL OR p.action = doing)
            AND (message IS NULL OR jsonb_typeof(p.options -> 'message_ids') IS DISTINCT FROM 'array'
                OR p.options -> 'message_ids' ? message))
$$;
COMMENT ON FUNCTION approves_for(text, bigint, text, text) IS
    'whether this is the name of a proposal''s author with this session''s login, which is approving it: for this case, action and message';

-- A person's own login writes its own name, and what stands beside a name is the word of who bears it: TG_ARGV has the column of the
-- name, what else belongs to a decision (as in revision 0022), the action that two names are for, and the columns beside the name.
CREATE OR REPLACE FUNCTION speak_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    line jsonb := pg_catalog.to_jsonb(NEW);
    before jsonb := CASE WHEN TG_OP = 'UPDATE' THEN pg_catalog.to_jsonb(OLD) END;
    said text := line ->> TG_ARGV[0];
    me text := session_user;
    mode text := TG_ARGV[1];
    doing text := nullif(TG_ARGV[2], '');
BEGIN
    IF said IS NULL OR said = me OR NOT speaks_as_person() OR TG_OP = 'UPDATE' AND NOT EXISTS (
        SELECT FROM unnest(TG_ARGV[0:0] || TG_ARGV[3:]) AS c (name) WHERE line -> c.name IS DISTINCT FROM before -> c.name) THEN
        RETURN NEW;
    END IF;
    IF mode IN ('approves', 'case', 'letter') AND approves_for(said, (line ->> 'case_id')::bigint, doing, line ->> 'message_id')
        OR mode = 'approves' AND TG_OP = 'INSERT' AND said = 'the producer'
        OR mode = 'case' AND EXISTS (
            SELECT FROM decision_log l
            WHERE l.subject = 'case ' || (line ->> 'case_id') AND (l.who = said OR l.details ->> 'by' = said)
                AND l.action = line ->> 'decision' AND l.why = line ->> 'why')
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

-- A discard never takes two people.
CREATE OR REPLACE FUNCTION discard_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() AND EXISTS (SELECT FROM written WHERE decided_by <> session_user::text) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' writes in its own name alone';
    END IF;
    RETURN NULL;
END
$$;
DROP FUNCTION approves_for(text);

-- Nobody approves what they proposed, nor ends an approval that is another's.
CREATE FUNCTION end_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    me text := session_user;
    held text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.ended_by END;
BEGIN
    IF NOT speaks_as_person()
        OR TG_OP = 'INSERT' AND NEW.ended_by IS NULL AND NEW.ended_at IS NULL
        OR TG_OP = 'UPDATE' AND coalesce(NEW.ended_by, held) IS NOT DISTINCT FROM held
            AND (NEW.ended_by IS NOT NULL OR held IS NULL OR held = me) AND (NEW.how IS DISTINCT FROM 'approved' OR held = me)
        OR TG_OP = 'UPDATE' AND NEW.ended_by = me AND (NEW.how = 'rejected' OR NEW.how IS NULL AND lower(NEW.who) <> lower(me)) THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = 'the login ' || me || ' ends what others proposed, in its own name alone';
END
$$;

-- What was decided of a case before stays in its history, and a person's login adds its own decisions alone.
CREATE FUNCTION decide_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before jsonb := CASE WHEN TG_OP = 'UPDATE' THEN coalesce(OLD.evidence -> 'decisions', '[]') ELSE '[]' END;
    present jsonb := coalesce(NEW.evidence -> 'decisions', '[]');
BEGIN
    IF present <> before AND speaks_as_person() AND EXISTS (
        SELECT FROM jsonb_array_elements(present) WITH ORDINALITY AS p (said, place)
        FULL JOIN jsonb_array_elements(before) WITH ORDINALITY AS b (said, place) USING (place)
        WHERE p.said IS NULL OR b.said IS NOT NULL AND p.said <> b.said
            OR b.said IS NULL AND p.said ->> 'by' IS DISTINCT FROM session_user::text
                AND NOT approves_for(p.said ->> 'by', NEW.case_id, NULL, NULL)) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' adds its own decisions alone';
    END IF;
    RETURN NEW;
END
$$;

-- What revision 0024 shows without names may stand in a case with them, until the next run of triage writes it again.
UPDATE case_file f SET evidence = f.evidence || '{"template": null}'
WHERE f.kind = 'dead_letters' AND f.evidence ? 'template'
    AND NOT EXISTS (SELECT FROM cause c WHERE c.fingerprint = f.subject AND c.shown IS NOT NULL);

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
    person text := 'CASE WHEN to_regrole(''backstop_person'') IS NULL THEN false '
        || 'ELSE pg_has_role(session_user, to_regrole(''backstop_person'')::oid, ''usage'') END';
    one record;
BEGIN
    EXECUTE 'ALTER FUNCTION approves_for(text, bigint, text, text)' || path;
    EXECUTE 'ALTER FUNCTION speak_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION discard_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION end_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION decide_for_yourself()' || path;
    FOR one IN
        SELECT * FROM (VALUES
            ('withdrawal', 'decided_by', 'approves', 'void', '{why}'::text[]),
            ('message_version', 'written_by', 'approves', 'edit', '{content,why}'),
            ('drained_broker', 'stated_by', '', '', '{}'),
            ('case_file', 'decided_by', 'case', '', '{decision,why}'),
            ('dead_letter', 'decided_by', 'letter', 'edit', '{decision,state}')
        ) AS t (held, name, mode, doing, beside)
    LOOP
        EXECUTE 'DROP TRIGGER speaks_for_itself ON ' || one.held;
        EXECUTE 'CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE OF ' || array_to_string(one.name || one.beside, ', ')
            || ' ON ' || one.held || ' FOR EACH ROW WHEN (' || person || ') EXECUTE FUNCTION speak_for_yourself('
            || (SELECT string_agg(quote_literal(a), ', ') FROM unnest(ARRAY[one.name, one.mode, one.doing] || one.beside) a) || ')';
    END LOOP;
    EXECUTE 'DROP TRIGGER ends_for_itself ON proposal';
    EXECUTE 'CREATE TRIGGER ends_for_itself BEFORE INSERT OR UPDATE ON proposal FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION end_for_yourself()';
    EXECUTE 'CREATE TRIGGER decides_for_itself BEFORE INSERT OR UPDATE OF evidence ON case_file FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION decide_for_yourself()';
END
$$;
