-- What `backstop check` asks of a mapped table's server. {rows}: as in stubs.sql and logs.sql.

-- name: columns: the type of each column that is read, and whether it may be empty; no row: it is not there
SELECT n.name, c.name, format_type(a.atttypid, NULL), a.attnotnull
FROM unnest(%(tables)s::text[]) AS n (name)
CROSS JOIN unnest(%(columns)s::text[]) AS c (name)
JOIN pg_attribute a ON a.attrelid = to_regclass(n.name) AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped;

-- name: writes: what this login may change in the tables
SELECT n.name, p.privilege FROM unnest(%(tables)s::text[]) AS n (name)
CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p (privilege)
WHERE has_table_privilege(n.name, p.privilege);

-- name: unique: whether an index lets a key have one row only, in the first table
SELECT EXISTS (
    SELECT 1 FROM pg_index i
    WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT array_agg(a.attname::text) FROM pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) <@ %(columns)s::text[]);

-- name: newest: the newest time in the table, and how far it lies ahead of the server's clock
SELECT max(w.created), max(w.created) - clock_timestamp() FROM ({rows}) w;

-- name: standby: whether this is one
SELECT pg_is_in_recovery();

-- name: trigger: whether the trigger of a captured table is there, and when it fires (O: always but in replication)
SELECT g.tgenabled::text, p.proname::text FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE g.tgname = 'backstop_capture' AND c.relname = %(name)s::text
    AND (n.nspname = %(schema)s::text OR (%(schema)s::text IS NULL AND pg_table_is_visible(c.oid)));

-- name: slot: whether a relay reads a replication slot now
SELECT active FROM pg_replication_slots WHERE slot_name = %(slot)s::text;
