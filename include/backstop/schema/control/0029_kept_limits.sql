-- The duties' settings limit people, also a login that brings settings of its own; and a login that first has to take its role is a
-- person as well.
ALTER TABLE people_policy ADD COLUMN settings jsonb;
COMMENT ON COLUMN people_policy.settings IS 'what the duties'' settings had written of policy, topics and groups; null: no duty has run since';

-- 'usage': it has the role's rights at once; 'set' (before PostgreSQL 16 every member): it may take the role. The owner of the tables,
-- which may only grant the role, has neither.
CREATE OR REPLACE FUNCTION speaks_as_person() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT NOT r.rolsuper AND (pg_has_role(r.oid, p.oid, 'usage') OR pg_has_role(r.oid, p.oid, m.may_take))
            AND NOT EXISTS (
                SELECT FROM pg_roles d
                WHERE d.rolname = 'backstop_duty' AND (pg_has_role(r.oid, d.oid, 'usage') OR pg_has_role(r.oid, d.oid, m.may_take)))
        FROM pg_roles r CROSS JOIN pg_roles p CROSS JOIN (
            SELECT CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'set' ELSE 'member' END AS may_take) m
        WHERE r.rolname = session_user AND p.rolname = 'backstop_person'), false)
$$;

-- A person's request waits for its step unless the duties' settings switch steps off for its topic; in mode observe there is none.
CREATE FUNCTION wait_for_the_ramp() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said jsonb := (SELECT p.settings FROM people_policy p);
BEGIN
    IF NEW.state <> 'open' OR TG_OP = 'UPDATE' AND OLD.state = 'open' AND NOT OLD.held OR NOT speaks_as_person() THEN
        RETURN NEW;
    END IF;
    IF said #>> ARRAY['topics', NEW.topic, 'mode'] IS DISTINCT FROM 'repair' THEN
        RAISE insufficient_privilege USING MESSAGE = 'topic ' || NEW.topic || ' is in mode observe, in which nothing is ever sent';
    END IF;
    NEW.held := NEW.held
        OR coalesce(said #>> ARRAY['topics', NEW.topic, 'policy', 'canary'], said #>> '{policy,canary}') IS DISTINCT FROM '0';
    RETURN NEW;
END
$$;

-- What a plan asked for counts to the blast radius of later ones, from when it was asked for.
CREATE FUNCTION ask_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() THEN
        NEW.asked_at := coalesce(OLD.asked_at, CASE WHEN NEW.asked_at IS NOT NULL THEN clock_timestamp() END);
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
    EXECUTE 'ALTER FUNCTION speaks_as_person()' || path;
    EXECUTE 'ALTER FUNCTION wait_for_the_ramp()' || path;
    EXECUTE 'ALTER FUNCTION ask_now()' || path;
    EXECUTE 'CREATE TRIGGER waits_for_the_ramp BEFORE INSERT OR UPDATE OF held, state ON resend_request FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION wait_for_the_ramp()';
    EXECUTE 'CREATE TRIGGER asks_now BEFORE UPDATE OF asked_at ON incident_delivery FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION ask_now()';
END
$$;
