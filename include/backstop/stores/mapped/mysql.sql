-- What is asked of other programs' tables in MySQL and MariaDB, read only. Words in braces are filled in by mysql_columns.

-- name: clock: the server's own time
SELECT UTC_TIMESTAMP(6);

-- name: made: when a table was made: another one, perhaps of that name, has another instant; no row: there is none
SELECT CREATE_TIME FROM information_schema.TABLES
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s;

-- name: columns: of one table, those that may be read
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, CHARACTER_MAXIMUM_LENGTH, IS_NULLABLE = 'NO'
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s
ORDER BY ORDINAL_POSITION;

-- name: stub_rows: rows of one table
SELECT {topic} AS topic, {message_id} AS message_id, {created_at} AS created_at, {state} AS state, {version} AS row_version
FROM {table} t WHERE {where};

-- name: newer: how many rows of one table, counted up to a limit
SELECT COUNT(*) FROM (SELECT 1 FROM {table} t WHERE {where} LIMIT %(limit)s) n;

-- name: newest: the newest time in one table
SELECT {newest} FROM {table} t WHERE {where};

-- name: log_rows_of_table: rows of one group, or of none, in one table
SELECT {topic} AS topic, {message_id} AS message_id, {kind} AS kind, {received_at} AS received_at, {done_at} AS done_at
FROM {table} t WHERE {where};

-- name: log_rows: one group's rows, all of a key as one; done by any of them is done; topics are compared as they are written
-- {log_of_rows}: see states.LOG_OF_ROWS.
SELECT g.topic, g.message_id, {log_of_rows}, g.updated_at, g.received_at, g.copies
FROM (
    SELECT l.topic, l.message_id, MAX(l.kind = 'done') AS done, MAX(l.kind = 'unknown') AS is_unknown,
        MAX(l.kind = 'groupless') AS is_groupless, MAX(l.kind = 'working') AS working, COUNT(*) AS copies, MAX(COALESCE(l.done_at, l.received_at)) AS updated_at,
        MIN(COALESCE(l.received_at, l.done_at)) AS received_at
    FROM ({rows}) l
    GROUP BY CAST(l.topic AS BINARY), l.message_id) g;

-- name: nameless: whether a row of the group, or of none, has no id that can be read: it may be of any message
SELECT EXISTS (SELECT 1 FROM {table} t WHERE {where});

-- name: count_received: by their topic, one group's rows of one table
SELECT {topic} AS topic, COUNT(*) FROM {table} t WHERE {where} GROUP BY 1;

-- name: writes: what this login, or all of its role, may change in a table
SELECT DISTINCT p.PRIVILEGE_TYPE FROM (
    SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES
    UNION ALL
    SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES
        WHERE COALESCE(%(schema)s, DATABASE()) LIKE TABLE_SCHEMA
    UNION ALL
    SELECT GRANTEE, PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES
        WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s) p
WHERE p.PRIVILEGE_TYPE IN ('INSERT', 'UPDATE', 'DELETE', 'DROP')
    AND (p.GRANTEE = CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))
        OR p.GRANTEE = CURRENT_ROLE());

-- name: unique: the columns of each index of a table that holds each of its values once
SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s AND NON_UNIQUE = 0
ORDER BY INDEX_NAME, SEQ_IN_INDEX;

-- name: rows: how many rows a table has, by the server's own statistics
SELECT COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s;

-- name: primary_key: its columns
SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s AND INDEX_NAME = 'PRIMARY'
ORDER BY SEQ_IN_INDEX;

-- name: next_cut: the key so many rows further on
SELECT t.{key} FROM {table} t WHERE {where} ORDER BY t.{key} LIMIT 1 OFFSET %(step)s;

-- name: done_in_range: finished rows of one range of the primary key; final, whenever they are read
SELECT {topic} AS topic, {message_id} AS message_id, {its_group} AS its_group, {done_at} AS done_at
FROM {table} t WHERE {where} LIMIT %(most)s;
