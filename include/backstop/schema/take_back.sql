-- Takes back what Backstop's roles hold on Backstop's own objects, whichever version or hand granted it. What they shall hold is granted
-- behind it in the same transaction, so that no session meets a role without its rights. Other roles, and other programs' objects in
-- this schema, keep what they have.
DO $$
DECLARE
    roles text[] := ARRAY[{roles}];
    relations text[] := ARRAY[{relations}]::text[];
    functions text[] := ARRAY[{functions}]::text[];
    held record;
    present text;
BEGIN
    SELECT version_num INTO present FROM {version};
    IF present > '{head}' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE =
            'a later version of Backstop made this schema (revision ' || present || '): use the grants of that version';
    END IF;
    FOR held IN
        WITH ours AS (
            SELECT pg_catalog.to_regclass(n.name)::oid AS oid FROM pg_catalog.unnest(relations) AS n (name)
        )
        -- A sequence of a column is a table to REVOKE; what is taken of a table is taken of its columns, too.
        SELECT DISTINCT 'TABLE' AS kind, c.oid::regclass::text AS object, r.rolname AS role
        FROM pg_class c
        CROSS JOIN LATERAL (
            SELECT a.grantee FROM pg_catalog.aclexplode(c.relacl) a
            UNION ALL
            SELECT a.grantee FROM pg_attribute t CROSS JOIN LATERAL pg_catalog.aclexplode(t.attacl) a WHERE t.attrelid = c.oid
        ) g
        JOIN pg_roles r ON r.oid = g.grantee AND r.oid <> c.relowner AND r.rolname = ANY (roles)
        WHERE c.oid IN (SELECT o.oid FROM ours o) OR c.relkind = 'S' AND EXISTS (
            SELECT FROM pg_depend d JOIN ours o ON o.oid = d.refobjid
            WHERE d.objid = c.oid AND d.deptype IN ('a', 'i')
                AND d.classid = 'pg_class'::regclass::oid AND d.refclassid = 'pg_class'::regclass::oid)
        UNION ALL
        SELECT 'FUNCTION', p.oid::regprocedure::text, r.rolname
        FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = current_schema()
        CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) a
        JOIN pg_roles r ON r.oid = a.grantee AND r.oid <> p.proowner AND r.rolname = ANY (roles)
        WHERE p.proname = ANY (functions)
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %I', held.kind, held.object, held.role);
    END LOOP;
END
$$;
