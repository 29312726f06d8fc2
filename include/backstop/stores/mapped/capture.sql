-- What `backstop migrate --capture` prints for a DBA; words in braces are filled in. Nothing of it runs by itself.

-- name: rows: where triggers write; without a unique key and with an index of any length, so that no row is refused
CREATE TABLE IF NOT EXISTS backstop_capture.captured_row (
    source      pg_catalog.text        NOT NULL,
    topic       pg_catalog.text,
    message_id  pg_catalog.text,
    captured_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX IF NOT EXISTS captured_row_time ON backstop_capture.captured_row (captured_at);
CREATE INDEX IF NOT EXISTS captured_row_id ON backstop_capture.captured_row USING hash (message_id);

-- name: types: refuses a table without these columns, or whose type for one is not the server's own
DO $types$
DECLARE
    captured pg_catalog.regclass := {table_text};
    path pg_catalog.text := pg_catalog.current_setting('search_path');
    found pg_catalog.text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true);
    SELECT string_agg(n.name || coalesce(' is ' || format_type(a.atttypid, NULL), ' is not there'), ', ' ORDER BY n.name) INTO found
    FROM unnest(ARRAY[{columns}]) AS n (name)
    LEFT JOIN pg_attribute a ON a.attrelid = captured AND a.attname = n.name AND a.attnum > 0 AND NOT a.attisdropped
    WHERE a.atttypid IS NULL OR a.atttypid >= {first_foreign};
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = 'The table ' || captured::text || ' cannot be captured: ' || found || '. Nothing was changed.',
            HINT = 'Capture columns of types of PostgreSQL''s own: the owner of another type can have code of theirs run when it is read.';
    END IF;
    PERFORM set_config('search_path', path, true);
END
$types$;

-- name: trigger: of one table: a row for each that is inserted, in the same transaction; it never refuses one
-- Whatever the application's session says of texts, an id is written as looks write it.
CREATE OR REPLACE FUNCTION backstop_capture.{function}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp {text_forms} AS $capture$
DECLARE
    its_id text;
    its_topic text;
BEGIN
    BEGIN
{kept}
    EXCEPTION WHEN datatype_mismatch THEN
        -- A type has changed since this session's first row, and with it nothing of what the session has planned.
{kept_anew}
    END;
    INSERT INTO backstop_capture.captured_row (source, topic, message_id) VALUES ({source}, its_topic, its_id);
    RETURN NULL;
END
$capture$;
REVOKE ALL ON FUNCTION backstop_capture.{function}() FROM PUBLIC;
DROP TRIGGER IF EXISTS backstop_capture ON {table};
CREATE TRIGGER backstop_capture AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION backstop_capture.{function}();

-- name: kept: what the trigger keeps of a column
        -- The cast of a type to text may be its owner's code, which would run with the rights of this function's owner; the types
        -- that the server began with have none. A type's output, which concat() takes, is never written in SQL.
        IF pg_typeof(NEW.{column})::oid < {first_foreign} THEN
            {variable} := NEW.{column}::text;
        ELSIF NOT NEW.{column} IS NULL THEN
            {variable} := concat(NEW.{column});
        END IF

-- name: kept_anew: the same, planned for this row
        EXECUTE (SELECT CASE WHEN a.atttypid < {first_foreign} THEN {cast} ELSE {output} END
            FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attname = {name}) INTO {variable} USING NEW

-- name: grants: for the login that looks
GRANT USAGE ON SCHEMA backstop_capture TO {login};
GRANT SELECT ON backstop_capture.captured_row TO {login};
