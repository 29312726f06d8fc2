-- What a person's login proposes of a parked key is what the case shows now: no message that joins the key before the approval.
CREATE OR REPLACE FUNCTION propose_now() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said jsonb := CASE jsonb_typeof(NEW.options) WHEN 'object' THEN NEW.options ELSE '{}' END;
    shown jsonb := CASE jsonb_typeof(said -> 'shown') WHEN 'object' THEN said -> 'shown' ELSE '{}' END;
    found jsonb := (SELECT c.evidence FROM case_file c WHERE c.case_id = NEW.case_id);
BEGIN
    IF speaks_as_person() THEN
        NEW.options := said || jsonb_build_object('shown', shown || jsonb_build_object(
            'at', least((shown ->> 'at')::timestamptz, clock_timestamp()),
            'letter', least((shown ->> 'letter')::bigint,
                (SELECT coalesce(max(d.dead_letter_id), 0) FROM dead_letter d WHERE d.case_id = NEW.case_id)),
            'head', coalesce(shown -> 'head', found -> 'head'),
            'last_number', least((shown ->> 'last_number')::bigint, (found ->> 'last_number')::bigint)));
    END IF;
    RETURN NEW;
END
$$;
DO $$
BEGIN
    EXECUTE 'ALTER FUNCTION propose_now() SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
END
$$;
