-- Named queries on the control database as a whole.

-- name: kept_bytes: what dead letters that are not emptied take, by group
SELECT coalesce(d.consumer_group, '*'), sum(d.content_bytes) + count(*) * %(row_bytes)s::bigint
FROM dead_letter d
WHERE d.emptied_at IS NULL
GROUP BY 1;

-- name: may_create: logins that may make objects beside the tables, which the functions of the log of decisions could take for the
-- server's own
SELECT r.rolname
FROM pg_roles r
WHERE r.rolcanlogin AND NOT r.rolsuper AND has_schema_privilege(r.oid, current_schema(), 'CREATE')
    AND r.oid <> (SELECT c.relowner FROM pg_class c WHERE c.oid = 'decision_log'::regclass)
    AND NOT pg_has_role(r.oid, (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = current_schema()), 'member')
ORDER BY r.rolname;
