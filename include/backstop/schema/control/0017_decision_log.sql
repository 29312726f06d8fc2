-- What people decided: appended by one function alone, never changed; each entry carries the hash of the one before.
CREATE TABLE decision_log (
    entry    bigint      PRIMARY KEY CHECK (entry >= 1),
    at       timestamptz NOT NULL,
    login    text        NOT NULL,
    who      text        NOT NULL CHECK (btrim(who) <> ''),
    action   text        NOT NULL,
    subject  text        NOT NULL,
    why      text        NOT NULL,
    details  jsonb       NOT NULL,
    previous text        NOT NULL,
    hash     text        NOT NULL
);
COMMENT ON TABLE decision_log IS 'decisions of people; nobody but the function append_decision writes it, and it only appends';
COMMENT ON COLUMN decision_log.at IS 'by the clock of this database';
COMMENT ON COLUMN decision_log.login IS 'session_user: whose login to this database it was';
COMMENT ON COLUMN decision_log.who IS 'the person, as Airflow''s own record names them; by command line the login, or whom a platform''s login names';
COMMENT ON COLUMN decision_log.previous IS 'the hash of the entry before; of the first one the checkpoint''s, or nothing';

CREATE TABLE decision_checkpoint (
    entry        bigint      PRIMARY KEY,
    hash         text        NOT NULL,
    forgotten_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE decision_checkpoint IS 'the last entry of each part of decision_log that was forgotten: the chain begins behind the newest one';

CREATE FUNCTION decision_hash(d decision_log) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.jsonb_build_array(
        d.previous, d.entry, extract(epoch FROM d.at), d.login, d.who, d.action, d.subject, d.why, d.details)::text, 'UTF8')), 'hex')
$$;

CREATE FUNCTION speaks_as_person() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT NOT r.rolsuper AND pg_has_role(r.oid, p.oid, 'usage')
            AND NOT EXISTS (SELECT FROM pg_roles d WHERE d.rolname = 'backstop_duty' AND pg_has_role(r.oid, d.oid, 'usage'))
        FROM pg_roles r CROSS JOIN pg_roles p
        WHERE r.rolname = session_user AND p.rolname = 'backstop_person'), false)
$$;
COMMENT ON FUNCTION speaks_as_person IS 'whether this session''s login is a person''s own, which speaks for itself alone';

CREATE FUNCTION append_decision(who text, action text, subject text, why text, details jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    made decision_log;
BEGIN
    -- One after the other until each commits: an entry is made of the one before.
    PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('backstop.decision_log', 0));
    SELECT l.entry, l.hash INTO made.entry, made.previous FROM (
        SELECT d.entry, d.hash FROM decision_log d UNION ALL SELECT c.entry, c.hash FROM decision_checkpoint c
    ) l ORDER BY l.entry DESC LIMIT 1;
    made.entry := coalesce(made.entry, 0) + 1;
    made.previous := coalesce(made.previous, '');
    made.at := pg_catalog.clock_timestamp();
    made.login := session_user;
    made.who := CASE WHEN speaks_as_person() THEN session_user::text ELSE who END;
    made.action := action;
    made.subject := subject;
    made.why := why;
    made.details := details;
    made.hash := decision_hash(made);
    INSERT INTO decision_log SELECT made.*;
    RETURN made.entry;
END
$$;
COMMENT ON FUNCTION append_decision IS 'the only way into decision_log; it runs as the owner, and takes the login from the session';

CREATE FUNCTION forget_decisions(before timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    forgotten bigint;
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('backstop.decision_log', 0));
    INSERT INTO decision_checkpoint (entry, hash)
    SELECT d.entry, d.hash FROM decision_log d WHERE d.at < before ORDER BY d.entry DESC LIMIT 1;
    DELETE FROM decision_log d WHERE d.entry <= (SELECT max(c.entry) FROM decision_checkpoint c);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END
$$;
COMMENT ON FUNCTION forget_decisions IS 'forgets entries up to the newest one before an instant; for the owner of the tables alone';
-- The server's own functions first and temporary tables last, whatever the caller's path is: else a caller's table or function of
-- the same name would be meant.
DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
BEGIN
    EXECUTE 'ALTER FUNCTION append_decision(text, text, text, text, jsonb)' || path;
    EXECUTE 'ALTER FUNCTION forget_decisions(timestamptz)' || path;
    EXECUTE 'ALTER FUNCTION decision_hash(decision_log)' || path;
    EXECUTE 'ALTER FUNCTION speaks_as_person()' || path;
END
$$;
REVOKE ALL ON FUNCTION append_decision(text, text, text, text, jsonb), forget_decisions(timestamptz) FROM PUBLIC;
