-- What is asked of other programs' tables in PostgreSQL, read only. {rows} is the SELECT of columns.stub_rows or columns.log_rows.

-- name: clock: the server's own time
SELECT clock_timestamp();

-- name: wal: the end of the log, which every row that the snapshot has lies before; how far the relay's slot is
SELECT pg_current_wal_insert_lsn()::text, (SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %(slot)s::text);

-- name: window: from when rows are read, by its own clock, and which table on which server this is
SELECT clock_timestamp() - %(lookback)s::interval,
    pg_postmaster_start_time() || ' ' || (
        SELECT string_agg(c.oid || '/' || coalesce(pg_relation_filenode(c.oid), 0), ' ' ORDER BY c.oid)
        FROM pg_class c WHERE c.oid = ANY (SELECT to_regclass(n)::oid FROM pg_catalog.unnest(%(tables)s::text[]) AS n));

-- name: rows_of_window: the rows of the window; one without a time is always in it
SELECT topic, message_id, created_at, state, row_version FROM ({rows}) w
WHERE w.created IS NULL OR w.created >= %(window_from)s::timestamptz;

-- name: rows_of_keys: the rows of these messages
SELECT w.topic, w.message_id, w.created_at, w.state, w.row_version FROM ({rows}) w
JOIN (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)
    ON k.topic = w.topic AND k.message_id = w.message_id AND k.message_id = w.message_id COLLATE "C";

-- name: newer: how many rows were created after the newest that a look has met, counted up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM ({rows}) w
    WHERE w.created >= %(window_from)s::timestamptz
        AND (%(newest_at)s::timestamptz IS NULL OR w.created > %(newest_at)s::timestamptz)
        -- A row dated further ahead is met by the next look, and must not be new for ever.
        AND w.created <= clock_timestamp() + interval '1 minute'
        AND (%(topics)s::text[] IS NULL OR w.topic = ANY (%(topics)s::text[]))
    LIMIT %(limit)s) n;

-- name: log_rows: one group's rows by key, all of a key as one; done by any of them is done
-- Compared twice: with the column's collation, for its index, and by each character, as a collation may fold them.
-- {log_of_rows}: see states.LOG_OF_ROWS.
SELECT g.topic, g.message_id, {log_of_rows},
    NULL::bigint AS lease_expires_at,
    (extract(epoch FROM g.updated_at) * 1000000)::bigint AS log_updated_at,
    CASE WHEN g.done THEN (extract(epoch FROM g.updated_at) * 1000000)::bigint END AS log_consumed_at,
    (extract(epoch FROM g.received_at) * 1000000)::bigint AS received_at, g.copies
FROM (
    SELECT k.topic, k.message_id, bool_or(l.kind = 'done') AS done, bool_or(l.kind = 'unknown') AS is_unknown,
        bool_or(l.kind = 'groupless') AS is_groupless, bool_or(l.kind = 'working') AS working, count(*) AS copies,
        greatest(timestamptz '0001-01-01 00:00:00+00', least(clock_timestamp(),
            max(coalesce(l.done_at, l.received_at, clock_timestamp())))) AS updated_at,
        greatest(timestamptz '0001-01-01 00:00:00+00', least(clock_timestamp(),
            min(coalesce(l.received_at, l.done_at, clock_timestamp())))) AS received_at
    FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(theirs)s::text[]) AS k (topic, message_id, theirs)
    JOIN ({rows}) l ON l.message_id = k.message_id AND l.message_id COLLATE "C" = k.message_id
        AND (NOT %(by_topic)s OR l.theirs COLLATE "C" = k.theirs)
    WHERE NOT %(by_group)s OR l.its_group COLLATE "C" = %(group)s::text OR l.its_group IS NULL
    GROUP BY k.topic, k.message_id) g;

-- name: column: how a column writes its values, and whether each row has one
SELECT CASE WHEN a.atttypid = 'numeric'::regtype THEN format_type(a.atttypid, a.atttypmod) ELSE {base_type} END, a.attnotnull
FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attname = %(column)s AND NOT a.attisdropped;

-- name: nameless: whether a row of the group, or of none, has no id that can be read: it may be of any message
SELECT EXISTS (SELECT 1 FROM ({rows}) l
    WHERE (l.message_id IS NULL OR (%(by_topic)s AND l.theirs IS NULL) OR NOT ({are_readable}))
        AND (NOT %(by_group)s OR l.its_group COLLATE "C" = %(group)s::text OR l.its_group IS NULL));

-- name: count_received: by their topic, one group's rows first received in [start, end)
SELECT l.theirs, count(*) FROM ({rows}) l
WHERE (NOT %(by_group)s OR l.its_group COLLATE "C" = %(group)s::text)
    AND l.received_at >= %(start)s::timestamptz AND l.received_at < %(end)s::timestamptz
GROUP BY l.theirs;

-- name: columns: the type of each column that is read, and whether it may be empty; no row: it is not there
SELECT n.name, c.name, format_type(a.atttypid, NULL), a.attnotnull
FROM pg_catalog.unnest(%(tables)s::text[]) AS n (name)
CROSS JOIN pg_catalog.unnest(%(columns)s::text[]) AS c (name)
JOIN pg_attribute a ON a.attrelid = {table} AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped;

-- name: writes: what this login may change in the tables
SELECT n.name, p.privilege FROM pg_catalog.unnest(%(tables)s::text[]) AS n (name)
CROSS JOIN pg_catalog.unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p (privilege)
WHERE has_table_privilege(n.name, p.privilege);

-- name: unique: whether an index lets a key have one row only, in the first table
SELECT EXISTS (
    SELECT 1 FROM pg_index i
    WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT pg_catalog.array_agg(a.attname::text) FROM pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) <@ %(columns)s::text[]);

-- name: newest: the newest time in the table, no later than the year 9000, and how far it lies ahead of the server's clock
SELECT n.at, n.at - clock_timestamp() FROM (
    SELECT max(least(w.created, timestamptz '9000-01-01 00:00:00+00')) AS at FROM ({rows}) w
    WHERE w.created >= timestamptz '0001-01-01 00:00:00+00') n;

-- name: may_lag: whether this is a standby, or reads a table that a subscription, another server or a REFRESH fills, also through a view
WITH RECURSIVE read_from (oid) AS (
    SELECT to_regclass(n.name)::oid FROM pg_catalog.unnest(%(tables)s::text[]) AS n (name)
    UNION
    SELECT f.oid FROM read_from r CROSS JOIN LATERAL (
        SELECT t.relid::oid FROM pg_partition_tree(r.oid::regclass) t
        UNION ALL
        SELECT d.refobjid FROM pg_rewrite w
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass
        WHERE w.ev_class = r.oid AND w.ev_type = '1') f (oid)
)
SELECT pg_is_in_recovery() OR EXISTS (
    SELECT 1 FROM read_from r JOIN pg_class c ON c.oid = r.oid
    WHERE c.relkind IN ('f', 'm') OR EXISTS (
        SELECT 1 FROM pg_subscription_rel s
        WHERE s.srrelid = r.oid OR s.srrelid IN (SELECT a.relid::oid FROM pg_partition_ancestors(r.oid::regclass) a)));

-- name: trigger: whether the trigger of a captured table is there, and when it fires (O: always but in replication)
SELECT g.tgenabled::text, p.proname::text FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE g.tgname = 'backstop_capture' AND c.relname = %(name)s::text
    AND (n.nspname = %(schema)s::text OR (%(schema)s::text IS NULL AND pg_table_is_visible(c.oid)));

-- name: foreign_types: columns of a captured table whose type is not the server's own, with the type
SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.attname = ANY (%(columns)s::text[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= %(first_foreign)s::oid
    AND c.relname = %(name)s::text AND (n.nspname = %(schema)s::text OR (%(schema)s::text IS NULL AND pg_table_is_visible(c.oid)))
ORDER BY a.attnum;

-- name: slot: whether a relay reads a replication slot now
SELECT active FROM pg_replication_slots WHERE slot_name = %(slot)s::text;
