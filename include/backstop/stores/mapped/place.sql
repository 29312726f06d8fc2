-- What scripts for a DBA begin with: a schema of Backstop's own in another program's database; words in braces are filled in.

-- name: place: the schema, and a refusal of whatever another role put or may put there: it would run with the DBA's rights
-- Every name is looked up in pg_catalog alone: others may have functions of their own on the DBA's search_path.
CREATE SCHEMA IF NOT EXISTS {schema};
DO $place$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    found text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true);
    WITH place AS (
        SELECT n.oid, n.nspowner, n.nspacl, r.oid AS me FROM pg_namespace n, pg_roles r
        WHERE n.nspname = '{schema}' AND r.rolname = current_user
    )
    SELECT string_agg(f.says, ', ' ORDER BY f.says) INTO found FROM (
        SELECT 'the schema belongs to ' || pg_get_userbyid(p.nspowner)::text AS says FROM place p WHERE p.nspowner <> p.me
        UNION ALL
        SELECT CASE WHEN a.grantee = 0 THEN 'everybody' ELSE pg_get_userbyid(a.grantee)::text END || ' may create in it'
        FROM place p, aclexplode(p.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> p.nspowner
        UNION ALL
        SELECT pg_describe_object(d.classid, d.objid, 0) || ' belongs to ' || pg_get_userbyid(o.refobjid)::text
        FROM place p
        JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = p.oid
        JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o' AND o.refobjid <> p.me
            AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
    ) f;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = 'The schema {schema} is not only yours: ' || found || '. Nothing was changed.',
            HINT = 'If you know who made it, run this as that role (SET ROLE). Otherwise look at it, and drop it: what is in it would run '
                'with your rights, also after a change of its owner.';
    END IF;
    PERFORM set_config('search_path', path, true);
END
$place$;
