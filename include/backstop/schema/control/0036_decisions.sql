-- What each audit saw last of the log of decisions: a log whose newest entries were taken away, or all of them, is a whole chain.
CREATE TABLE decision_seen (
    entry   bigint      PRIMARY KEY CHECK (entry >= 1),
    hash    text        NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE decision_seen IS 'the newest entry of decision_log at each audit, which is there still, or was forgotten';

-- What else the policy may have two people decide: discards, resends, and replays of dead letters (people.second_person). A person's own
-- login writes its own name, as in revision 0026; beside the name of whose proposal it approves it also writes these.
CREATE OR REPLACE FUNCTION speak_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    line jsonb := pg_catalog.to_jsonb(NEW);
    before jsonb := CASE WHEN TG_OP = 'UPDATE' THEN pg_catalog.to_jsonb(OLD) END;
    said text := line ->> TG_ARGV[0];
    me text := session_user;
    mode text := TG_ARGV[1];
    doing text := nullif(TG_ARGV[2], '');
BEGIN
    IF said IS NULL OR said = me OR NOT speaks_as_person() OR TG_OP = 'UPDATE' AND NOT EXISTS (
        SELECT FROM unnest(TG_ARGV[0:0] || TG_ARGV[3:]) AS c (name) WHERE line -> c.name IS DISTINCT FROM before -> c.name) THEN
        RETURN NEW;
    END IF;
    IF mode IN ('approves', 'case') AND approves_for(
            said, CASE mode WHEN 'case' THEN coalesce(line ->> 'decision', '') ELSE doing END,
            CASE TG_TABLE_NAME WHEN 'message_version' THEN line ELSE line - 'content' END)
        OR mode = 'letter' AND EXISTS (
            SELECT FROM (VALUES ('edit', 'replay'), ('replay', 'replay'), ('replay_sample', 'replay'), ('discard', 'discard'))
                AS a (action, decision)
            WHERE a.decision = line ->> 'decision' AND approves_for(said, a.action, line - 'content'))
        OR TG_TABLE_NAME = 'message_version' AND TG_OP = 'INSERT' AND said = 'the producer' AND EXISTS (
            SELECT FROM case_member m JOIN case_file c USING (case_id)
            WHERE m.topic = line ->> 'topic' AND m.message_id = line ->> 'message_id' AND c.state = 'open' AND (
                SELECT d.action = 'begin to edit' FROM decision_log d
                WHERE d.subject = 'case ' || m.case_id AND d.login = me ORDER BY d.entry DESC LIMIT 1))
            -- The first one that is kept; a later edit meets its own row here, and changes nothing.
            AND NOT EXISTS (
                SELECT FROM message_version v
                WHERE v.topic = line ->> 'topic' AND v.message_id = line ->> 'message_id'
                HAVING count(*) > 0 AND count(*) FILTER (WHERE v.content_version = (line ->> 'content_version')::integer) = 0)
        OR mode = 'case' AND TG_OP = 'UPDATE' AND stands_again(before, line)
        OR mode = 'letter' AND (said = 'triage' AND line ->> 'decision' = 'discard' AND line -> 'proof' ? 'log' OR EXISTS (
            SELECT FROM delivery_decision d
            WHERE d.topic = line ->> 'topic' AND d.message_id = line ->> 'message_id'
                AND d.consumer_group = line ->> 'consumer_group' AND d.decided_by = said) OR EXISTS (
            SELECT FROM withdrawal w
            WHERE w.topic = line ->> 'topic' AND w.message_id = line ->> 'message_id' AND w.decided_by = said))
        OR mode = 'request' AND (said = 'person ' || me
            OR said = me || ' (incident ' || substring(said FROM '\(incident ([0-9]+)\)$') || ')' OR EXISTS (
                SELECT FROM case_file c
                WHERE c.case_id = substring(said FROM '^case ([0-9]{1,18})$')::bigint AND c.state = 'open' AND c.intention IS NOT NULL
                    AND (c.decided_by = me OR right(c.decided_by, length(me) + 14) = ', approved by ' || me))) THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = 'the login ' || me || ' writes in its own name alone';
END
$$;

-- A discard in two names is of a delivery of the proposal that is being approved.
CREATE OR REPLACE FUNCTION discard_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() AND EXISTS (
        SELECT FROM written w
        WHERE w.decided_by <> session_user::text AND NOT approves_for(w.decided_by, 'discard', pg_catalog.to_jsonb(w))) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' writes in its own name alone';
    END IF;
    RETURN NULL;
END
$$;

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
BEGIN
    EXECUTE 'ALTER FUNCTION speak_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION discard_for_yourself()' || path;
END
$$;

-- Discards in a consumer's database of which the log of decisions says nothing.
ALTER TABLE watch_finding DROP CONSTRAINT watch_finding_rule_check;
ALTER TABLE watch_finding ADD CONSTRAINT watch_finding_rule_check CHECK (rule IN
    ('backlog_age', 'offsets_stopped', 'stubs_stopped', 'logging_stopped', 'group_stands', 'duty_overdue', 'heartbeat',
     'dead_letters_kept', 'books_differ', 'discard_without_decision'));
