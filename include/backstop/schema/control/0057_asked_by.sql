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

-- A person's own login joins a request in its own name; who else asked for what stays as it is.
CREATE FUNCTION join_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.asked_by IS NOT NULL AND speaks_as_person() AND (jsonb_typeof(NEW.asked_by) <> 'object' OR EXISTS (
        SELECT FROM jsonb_each_text(NEW.asked_by) AS a (consumer_group, who)
        WHERE a.who IS NULL
            OR a.who IS DISTINCT FROM coalesce(OLD.asked_by ->> a.consumer_group, OLD.asked_by ->> '*', OLD.requested_by)
                AND NOT asks_for_itself(a.who))) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' writes in its own name alone';
    END IF;
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
    EXECUTE 'CREATE TRIGGER joins_for_itself BEFORE UPDATE OF asked_by ON resend_request FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION join_for_yourself()';
END
$$;
