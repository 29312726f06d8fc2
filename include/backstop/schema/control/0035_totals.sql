-- What ever happened, for counters and histograms: it only grows, whatever retention takes away. Appended like `tally`, and added up
-- by the watch.

CREATE TABLE total (
    metric  text             NOT NULL CHECK (metric IN ('sends', 'dead_letters', 'runs')),
    subject text             NOT NULL,
    outcome text             NOT NULL,
    bucket  double precision,
    number  bigint           NOT NULL CHECK (number > 0),
    seconds double precision NOT NULL DEFAULT 0
);
COMMENT ON COLUMN total.subject IS 'of sends and dead letters the topic, of runs the duty';
COMMENT ON COLUMN total.bucket IS 'of runs: the smallest bound of the histogram that its seconds fit into; infinity: none';

CREATE FUNCTION count_sends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO total (metric, subject, outcome, number)
    SELECT 'sends', n.topic, n.state, count(*) FROM came n JOIN went o ON o.request_id = n.request_id
    WHERE n.state IN ('sent', 'refused', 'unknown') AND o.state <> n.state GROUP BY 2, 3;
    RETURN NULL;
END
$$;

CREATE FUNCTION count_dead_letters() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO total (metric, subject, outcome, number)
        SELECT 'dead_letters', coalesce(n.topic, '*'), 'drained', count(*) FROM came n GROUP BY 2;
    ELSE
        INSERT INTO total (metric, subject, outcome, number)
        SELECT 'dead_letters', coalesce(n.topic, '*'), n.state, count(*) FROM came n JOIN went o ON o.dead_letter_id = n.dead_letter_id
        WHERE n.state IN ('discarded', 'replayed') AND o.state <> n.state GROUP BY 2, 3;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION count_runs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    took double precision := greatest(extract(epoch FROM NEW.finished_at - NEW.started_at), 0);
BEGIN
    INSERT INTO total (metric, subject, outcome, bucket, number, seconds)
    SELECT 'runs', NEW.duty, NEW.state, min(le), 1, took
    FROM unnest(ARRAY[1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 'infinity'::double precision]) AS le WHERE le >= took;
    RETURN NULL;
END
$$;

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
BEGIN
    EXECUTE 'ALTER FUNCTION count_sends()' || path;
    EXECUTE 'ALTER FUNCTION count_dead_letters()' || path;
    EXECUTE 'ALTER FUNCTION count_runs()' || path;
END
$$;
REVOKE ALL ON FUNCTION count_sends(), count_dead_letters(), count_runs() FROM PUBLIC;
CREATE TRIGGER totals_sends AFTER UPDATE ON resend_request REFERENCING OLD TABLE AS went NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION count_sends();
CREATE TRIGGER totals_drained AFTER INSERT ON dead_letter REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION count_dead_letters();
CREATE TRIGGER totals_decided AFTER UPDATE ON dead_letter REFERENCING OLD TABLE AS went NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION count_dead_letters();
CREATE TRIGGER totals_ended AFTER UPDATE ON run FOR EACH ROW
    WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL AND NOT NEW.dry_run) EXECUTE FUNCTION count_runs();
