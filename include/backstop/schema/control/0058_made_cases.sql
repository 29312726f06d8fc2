-- A case that a person's login makes by SQL is in the log of decisions, as what it changes of one is: others decide by what it says. And
-- what it says is settled has settled now: findings of a delivery that settles in years nobody would be asked about.
CREATE OR REPLACE FUNCTION join_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() THEN
        NEW.added_at := CASE WHEN NEW.added_at = OLD.added_at THEN OLD.added_at ELSE clock_timestamp() END;
        NEW.settled_at := CASE
            WHEN NEW.settled_at IS NULL OR NEW.settled_at = OLD.settled_at THEN NEW.settled_at ELSE clock_timestamp() END;
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
    EXECUTE 'ALTER FUNCTION join_now()' || path;
    -- These two had the caller's path until now.
    EXECUTE 'ALTER FUNCTION keep_what_was_proposed()' || path;
    EXECUTE 'ALTER FUNCTION date_phase()' || path;
    EXECUTE 'DROP TRIGGER IF EXISTS joins_now ON case_member';
    EXECUTE 'CREATE TRIGGER joins_now BEFORE UPDATE OF added_at, settled_at ON case_member FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION join_now()';
    EXECUTE 'DROP TRIGGER IF EXISTS logs_what_sql_made ON case_file';
    EXECUTE 'CREATE CONSTRAINT TRIGGER logs_what_sql_made AFTER INSERT ON case_file DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ('
        || person || ') EXECUTE FUNCTION log_what_sql_changed(''topic'')';
END
$$;
