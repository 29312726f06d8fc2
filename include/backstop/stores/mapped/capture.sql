-- What `backstop migrate --capture` prints for a DBA; words in braces are filled in. Nothing of it runs by itself.

-- name: rows: where triggers write; without a unique key and with an index of any length, so that no row is refused
CREATE TABLE IF NOT EXISTS backstop_capture.captured_row (
    source      text        NOT NULL,
    topic       text,
    message_id  text,
    captured_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS captured_row_time ON backstop_capture.captured_row (captured_at);
CREATE INDEX IF NOT EXISTS captured_row_id ON backstop_capture.captured_row USING hash (message_id);

-- name: trigger: of one table: a row for each that is inserted, in the same transaction; it never refuses one
CREATE OR REPLACE FUNCTION backstop_capture.{function}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $capture$
BEGIN
    INSERT INTO backstop_capture.captured_row (source, topic, message_id) VALUES ({source}, {topic}, NEW.{id}::text);
    RETURN NULL;
END
$capture$;
REVOKE ALL ON FUNCTION backstop_capture.{function}() FROM PUBLIC;
DROP TRIGGER IF EXISTS backstop_capture ON {table};
CREATE TRIGGER backstop_capture AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION backstop_capture.{function}();

-- name: grants: for the login that looks
GRANT USAGE ON SCHEMA backstop_capture TO {login};
GRANT SELECT ON backstop_capture.captured_row TO {login};
