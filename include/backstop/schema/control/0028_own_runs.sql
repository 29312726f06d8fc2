-- A person ends runs and holds leases of their own alone, and their dry runs hold no duty's lease.
ALTER TABLE run ADD COLUMN opened_by text;
ALTER TABLE run ALTER COLUMN opened_by SET DEFAULT session_user;
COMMENT ON COLUMN run.opened_by IS 'the login that opened it; null: of before revision 0028';
UPDATE run SET counts = '{}' WHERE jsonb_typeof(counts) <> 'object';
UPDATE run SET phases = '{}' WHERE jsonb_typeof(phases) <> 'object';
ALTER TABLE run ADD CONSTRAINT run_counts_check CHECK (jsonb_typeof(counts) = 'object');
ALTER TABLE run ADD CONSTRAINT run_phases_check CHECK (jsonb_typeof(phases) = 'object');

-- By hand people open runs that are dry or of some topics. They end those alone, and any run that has died. The instants are the
-- database's: nobody holds a lease into the future.
CREATE OR REPLACE FUNCTION keep_off_duties() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    me text := session_user;
    present timestamptz := clock_timestamp();
    dead timestamptz := present - interval '2 minutes';
    fits boolean;
BEGIN
    IF NOT speaks_as_person() THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    IF TG_TABLE_NAME = 'duty_lease' THEN
        IF TG_OP = 'DELETE' THEN
            fits := OLD.heartbeat_at < dead OR EXISTS (SELECT FROM run r WHERE r.run_id = OLD.run_id AND r.opened_by = me);
        ELSE
            fits := (TG_OP = 'INSERT' OR NEW.run_id = OLD.run_id OR OLD.heartbeat_at < dead) AND EXISTS (
                SELECT FROM run r
                WHERE r.run_id = NEW.run_id AND r.opened_by = me AND r.finished_at IS NULL
                    -- As runs/run.py names it.
                    AND (r.duty || CASE WHEN r.dry_run THEN ' (dry run)' ELSE '' END, r.scope, r.token)
                        = (NEW.duty, NEW.scope, NEW.token));
            NEW.heartbeat_at := present;
        END IF;
    ELSIF TG_OP = 'INSERT' THEN
        fits := NEW.dry_run OR NEW.scope <> '*';
        NEW.opened_by := me;
    ELSE
        -- What others add up are whole numbers; null: no object.
        fits := OLD.finished_at IS NULL AND NOT jsonb_path_exists(NEW.counts,
                'strict $.* ? (@.type() <> "number" || @ <> @.floor() || @ < 0 || @ > 1000000000000000)', '{}', true)
            AND NOT jsonb_path_exists(NEW.phases, 'strict $.* ? (@.type() <> "number" || @ < 0 || @ > 1000000000000000)', '{}', true)
            AND (OLD.opened_by = me OR NEW.state = 'abandoned' AND OLD.heartbeat_at < dead
                AND to_jsonb(NEW) - '{state,finished_at,error}'::text[] = to_jsonb(OLD) - '{state,finished_at,error}'::text[]
                AND NOT EXISTS (SELECT FROM duty_lease l WHERE l.run_id = OLD.run_id AND l.heartbeat_at >= dead));
        NEW.heartbeat_at := CASE WHEN OLD.opened_by = me THEN present ELSE OLD.heartbeat_at END;
        NEW.finished_at := CASE WHEN NEW.finished_at IS NOT NULL THEN present END;
    END IF;
    IF fits THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    RAISE insufficient_privilege USING MESSAGE = CASE
        WHEN TG_TABLE_NAME = 'run' AND TG_OP = 'INSERT'
            THEN 'the login ' || me || ' opens runs that are dry or of some topics alone'
        ELSE 'the login ' || me || ' changes its own open runs and their leases alone' END;
END
$$;

DO $$
BEGIN
    EXECUTE 'ALTER FUNCTION keep_off_duties() SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
END
$$;
