-- What is asked of and written to the overlay: Backstop's own producer tables in a schema of their own beside another program's table.
-- A message has a row there once a person or a claim needed one. Number 1 is the send of its own relay.

-- name: numbered_columns: the columns of overlay.Numbered
SELECT s.topic, s.message_id, s.status, s.send_count, s.refusals, s.max_sends, s.next_check_at, s.attempted_at,
    CASE WHEN s.attempt_token IS NOT NULL THEN s.attempt_deadline END, s.row_version, s.updated_at
FROM backstop_overlay.message_stub s

-- name: of_keys: ... of the messages asked for
JOIN (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)
    ON k.topic = s.topic AND k.message_id = s.message_id;

-- name: of_topics: ... of every message of this store: another store may look at another table beside the same overlay
WHERE s.topic = ANY (%(of_topics)s::text[]);

-- name: open: ... that is open and has no number under way
AND s.status IN ('pending', 'exhausted') AND s.attempt_token IS NULL;

-- name: ended: how the numbers of messages that were sent more than once ended, as JSON
SELECT coalesce(json_agg(json_build_object('topic', a.topic, 'message_id', a.message_id, 'send_number', a.send_number, 'groups', a.groups,
    'outcome', a.outcome, 'broker', a.broker, 'queue_id', a.queue_id, 'queue_offset', a.queue_offset, 'queue_epoch', a.queue_epoch,
    'started_at', a.started_at, 'finished_at', a.finished_at)), '[]')::text
FROM backstop_overlay.send_attempt a
JOIN backstop_overlay.message_stub s ON s.topic = a.topic AND s.message_id = a.message_id
WHERE s.send_count > 1 AND s.topic = ANY (%(of_topics)s::text[]);

-- name: ensure: a row for each message that has none, which knows of number 1 alone; in key order, as everybody locks
WITH made AS (
    INSERT INTO backstop_overlay.message_stub (topic, message_id, content, send_count, next_check_at, attempted_at)
    SELECT k.topic, k.message_id, ''::bytea, 1, clock_timestamp(), clock_timestamp()
    FROM (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)
    ORDER BY k.topic, k.message_id
    ON CONFLICT (topic, message_id) DO NOTHING
    RETURNING topic, message_id
)
INSERT INTO backstop_overlay.send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)
SELECT topic, message_id, 1, 'its own relay', clock_timestamp(), 'sent' FROM made;

-- name: note_versions: which version of their row each number was handed out for
UPDATE backstop_overlay.message_stub s SET row_version = v.row_version
FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(versions)s::text[]) AS v (topic, message_id, row_version)
WHERE s.topic = v.topic AND s.message_id = v.message_id;

-- name: rearmed: the numbers that wait for their own relay: they have no deadline of ours
SELECT s.topic, s.message_id, s.send_count, s.attempt_token::text FROM backstop_overlay.message_stub s
WHERE s.attempt_token IS NOT NULL AND s.attempt_deadline > clock_timestamp() + interval '1 year' AND s.topic = ANY (%(of_topics)s::text[])
ORDER BY s.topic, s.message_id;

-- name: missing: what this login needs and does not have, as text
SELECT 'USAGE on schema backstop_overlay' FROM pg_namespace
WHERE nspname = 'backstop_overlay' AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT w.needs FROM (VALUES
    ('SELECT on backstop_overlay.message_stub', 'message_stub', NULL, 'SELECT'),
    ('INSERT on backstop_overlay.message_stub', 'message_stub', NULL, 'INSERT'),
    ('UPDATE on backstop_overlay.message_stub.send_count', 'message_stub', 'send_count', 'UPDATE'),
    ('UPDATE on backstop_overlay.message_stub.row_version', 'message_stub', 'row_version', 'UPDATE'),
    ('INSERT on backstop_overlay.send_attempt', 'send_attempt', NULL, 'INSERT')) AS w (needs, name, field, privilege)
-- Not by to_regclass, which fails where the schema may not be used.
LEFT JOIN pg_class c ON c.relname = w.name
    AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'backstop_overlay')
WHERE NOT coalesce(CASE WHEN w.field IS NULL THEN has_table_privilege(c.oid, w.privilege)
    WHEN EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = w.field)
    THEN has_column_privilege(c.oid, w.field, w.privilege) END, false);

-- name: kinds: the type of each column that may be read, never a domain; no row: it is not there, or not to be read
SELECT n.name, c.name, {base_type} FROM pg_catalog.unnest(%(tables)s::text[]) AS n (name)
CROSS JOIN pg_catalog.unnest(%(columns)s::text[]) AS c (name)
JOIN pg_attribute a ON a.attrelid = {table} AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped
    AND has_column_privilege(a.attrelid, a.attnum, 'SELECT');

-- name: may_rearm: of these columns of a table, those that this login may not change, or that are not there
SELECT c.name FROM pg_catalog.unnest(%(columns)s::text[]) AS c (name)
WHERE NOT EXISTS (
    SELECT 1 FROM pg_attribute a WHERE a.attrelid = {table} AND a.attname = c.name AND a.attnum > 0
        AND NOT a.attisdropped AND has_column_privilege(a.attrelid, a.attnum, 'UPDATE'));

-- name: version: the revision of the tables; no row: there are none
SELECT version_num FROM backstop_overlay.backstop_producer_version;

-- name: begin: goes on, after place.sql, what `backstop migrate --overlay` prints for a DBA
SET LOCAL search_path = backstop_overlay;
CREATE TABLE IF NOT EXISTS backstop_producer_version (version_num varchar(32) NOT NULL CONSTRAINT backstop_producer_version_pkc PRIMARY KEY);

-- name: revision: one revision, unless the tables have it
DO $overlay$
BEGIN
    IF coalesce((SELECT max(version_num) FROM backstop_producer_version), '') < '{revision}' THEN
        EXECUTE $revision$
{text}
$revision$;
        DELETE FROM backstop_producer_version;
        INSERT INTO backstop_producer_version VALUES ('{revision}');
    END IF;
END
$overlay$;

-- name: grants: for the login that repairs, the least that it needs
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS row_version text;
GRANT USAGE ON SCHEMA backstop_overlay TO {login};
GRANT SELECT ON message_stub, send_attempt, backstop_producer_version TO {login};
GRANT INSERT, UPDATE ON message_stub TO {login};
GRANT INSERT ON send_attempt TO {login};
