-- Whoever joins an open request lends nothing to the groups that others asked for: who asked stands beside each group.
ALTER TABLE resend_request ADD COLUMN asked_by jsonb;
COMMENT ON COLUMN resend_request.asked_by IS
    'who asked for which of its groups (*: for the others), where several did; null, or a group that is not in it: requested_by';

-- What speak_for_yourself allows as `request`.
CREATE FUNCTION asks_for_itself(said text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT said = 'person ' || session_user::text
        OR coalesce(said = session_user::text || ' (incident ' || substring(said FROM '\(incident ([0-9]+)\)$') || ')', false)
        OR EXISTS (
            SELECT FROM case_file c
            WHERE c.case_id = substring(said FROM '^case ([0-9]{1,18})$')::bigint AND c.state = 'open' AND c.intention IS NOT NULL
                AND (c.decided_by = session_user::text
                    OR right(c.decided_by, length(session_user::text) + 14) = ', approved by ' || session_user::text))
$$;

-- A person's own login joins a request in its own name; who else asked for which of its groups stays as it is.
CREATE FUNCTION join_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() AND (coalesce(jsonb_typeof(NEW.asked_by), 'object') <> 'object' OR EXISTS (
        SELECT FROM (
            SELECT unnest(coalesce(NEW.groups, '{*}'))
            UNION SELECT jsonb_object_keys(NEW.asked_by) WHERE jsonb_typeof(NEW.asked_by) = 'object'
            UNION SELECT jsonb_object_keys(OLD.asked_by) WHERE NEW.groups IS NULL) AS g (wanted)
        CROSS JOIN LATERAL (
            SELECT coalesce(NEW.asked_by ->> g.wanted, NEW.asked_by ->> '*', NEW.requested_by) AS who,
                CASE WHEN OLD.state = 'open' AND (OLD.groups IS NULL OR g.wanted = ANY (OLD.groups))
                    THEN coalesce(OLD.asked_by ->> g.wanted, OLD.asked_by ->> '*', OLD.requested_by) END AS before) w
        WHERE w.who IS DISTINCT FROM w.before AND NOT asks_for_itself(w.who))) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' writes in its own name alone';
    END IF;
    RETURN NEW;
END
$$;

-- An earlier version reopens a request without a word of who asked: what was asked for before is over.
CREATE FUNCTION forget_who_asked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.asked_by := NULL;
    RETURN NEW;
END
$$;

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
    person text := 'current_setting(''is_superuser'') = ''off'' '
        || 'AND pg_has_role(coalesce(to_regrole(''backstop_person'')::oid, 10::oid), ''usage'')';
BEGIN
    EXECUTE 'ALTER FUNCTION asks_for_itself(text)' || path;
    EXECUTE 'ALTER FUNCTION join_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION forget_who_asked()' || path;
    EXECUTE 'CREATE TRIGGER joins_for_itself BEFORE UPDATE OF asked_by, groups ON resend_request FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION join_for_yourself()';
    CREATE TRIGGER forgets_who_asked BEFORE UPDATE OF state ON resend_request FOR EACH ROW
        WHEN (OLD.state IN ('not_needed', 'superseded') AND NEW.state = 'open') EXECUTE FUNCTION forget_who_asked();
END
$$;
