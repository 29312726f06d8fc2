-- What `backstop check` asks of any of our PostgreSQL databases.

-- name: version_is_there: whether the version table exists and may be read; null when there is none
SELECT has_table_privilege(to_regclass(%(table)s)::oid, 'SELECT');

-- name: privileges: which of the privileges asked for a role has (null: this login), null for a table or column that does not
-- exist; no rows for a role that does not
SELECT n.table_name, n.column_name, n.privilege,
    CASE WHEN n.column_name IS NULL THEN has_table_privilege(r.oid, to_regclass(n.table_name)::oid, n.privilege)
        ELSE has_column_privilege(r.oid, a.attrelid, a.attnum, n.privilege) END AS granted
FROM unnest(%(tables)s::text[], %(columns)s::text[], %(privileges)s::text[]) AS n (table_name, column_name, privilege)
JOIN pg_roles r ON r.rolname = coalesce(%(role)s::text, current_user)
LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(n.table_name)::oid AND a.attname = n.column_name
    AND NOT a.attisdropped;

-- name: is_person: whether it is the login of a person, which decides by command line, and of no duty
SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'backstop_person' AND pg_has_role(r.oid, 'usage'))
    AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'backstop_duty' AND pg_has_role(r.oid, 'usage'));

-- name: row_security: of these tables, those from which row-level security hides rows for this login
SELECT n.table_name
FROM (SELECT DISTINCT t.table_name FROM pg_catalog.unnest(%(tables)s::text[]) AS t (table_name)) n
WHERE row_security_active(to_regclass(n.table_name)::oid)
ORDER BY n.table_name;

-- name: may_create: logins that may make objects beside the tables, which our statements could take for the server's own; not those of the
-- tables' owner and of the schema's
SELECT DISTINCT r.rolname
FROM pg_roles r
JOIN pg_namespace n ON n.nspname = ANY (current_schemas(false))
WHERE r.rolcanlogin AND NOT r.rolsuper AND has_schema_privilege(r.oid, n.oid, 'CREATE')
    AND NOT pg_has_role(r.oid, n.nspowner, 'member')
    AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass(%(table)s)::oid AND pg_has_role(r.oid, c.relowner, 'member'))
ORDER BY r.rolname;

-- name: identity: of the functions by which a bulk scan recognizes the server, those that this login may not call
SELECT f.signature
FROM pg_catalog.unnest(ARRAY['pg_control_system()', 'pg_current_wal_lsn()', 'pg_walfile_name(pg_lsn)']) WITH ORDINALITY AS f (signature, place)
WHERE NOT has_function_privilege('pg_catalog.' || f.signature, 'EXECUTE')
ORDER BY f.place;

-- name: durability: what the server promises to keep across a crash
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    pg_is_in_recovery();

-- name: encoding: what the database stores text in
SELECT current_setting('server_encoding');

-- name: statement_log: of this login and the logins of a role, what decides which statements, with their values, the server logs
SELECT l.rolname, g.name, coalesce(
    (SELECT substr(c.line, length(g.name) + 2)
     FROM pg_db_role_setting s CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS c (line)
     WHERE starts_with(c.line, g.name || '=') AND s.setrole IN (0, l.oid)
         AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
     ORDER BY s.setrole = 0, s.setdatabase = 0 LIMIT 1),
    -- The server's own, which this session has unless something sets it for this login.
    CASE WHEN l.rolname = session_user OR g.source NOT IN ('user', 'database', 'database user') THEN g.setting ELSE g.boot_val END)
FROM pg_settings g
CROSS JOIN pg_roles l
WHERE g.name IN ('log_min_error_statement', 'log_statement', 'log_min_duration_statement')
    AND l.rolcanlogin AND (l.rolname = session_user OR NOT l.rolsuper AND EXISTS (
        SELECT FROM pg_roles r WHERE r.rolname = %(role)s AND pg_has_role(l.oid, r.oid, 'member')))
ORDER BY 1, 2;
