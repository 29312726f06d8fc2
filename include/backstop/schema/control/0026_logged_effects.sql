-- What a person's own login changes by SQL, beside the program, is in the log of decisions, too; and runs over everything are the duties'.
ALTER TABLE decision_log ADD COLUMN transaction xid8;
COMMENT ON COLUMN decision_log.transaction IS 'in which it was appended; the newest entries alone are asked, and it is no part of the hash';
ALTER TABLE proposal ADD COLUMN login text;
ALTER TABLE proposal ALTER COLUMN login SET DEFAULT session_user;
COMMENT ON COLUMN proposal.login IS 'whose login to this database proposed it; null: it was not kept yet';
CREATE INDEX IF NOT EXISTS decision_log_subject ON decision_log (subject, entry);

-- What every decision reads of a case has a shape; one of another could be decided by nobody.
ALTER TABLE case_file ADD CONSTRAINT case_file_evidence_check CHECK (
        jsonb_typeof(evidence) = 'object' AND coalesce(jsonb_typeof(evidence -> 'decisions'), 'array') = 'array'),
    ADD CONSTRAINT case_file_intention_check CHECK (
        intention IS NULL OR jsonb_typeof(intention) = 'object' AND coalesce(jsonb_typeof(intention -> 'reached'), 'boolean') = 'boolean');

CREATE OR REPLACE FUNCTION append_decision(who text, action text, subject text, why text, details jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    made decision_log;
BEGIN
    -- Everybody reads all entries, and every audit hashes them.
    IF length(who) > 1000 OR length(action) > 1000 OR length(subject) > 1000 OR length(why) > 10000
        OR octet_length(details::text) > 8000000 THEN
        RAISE program_limit_exceeded USING MESSAGE = 'an entry has a reason of at most 10000 characters and details of at most 8 MB';
    END IF;
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
    made.transaction := pg_catalog.pg_current_xact_id();
    INSERT INTO decision_log SELECT made.*;
    RETURN made.entry;
END
$$;

-- Whether a case is decided again as it was: by the decision that a refused one had replaced, or by the last answer to leave its dead
-- letters, when nothing else of them is undecided any more.
CREATE FUNCTION stands_again(before jsonb, line jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT before ->> 'state' = 'open' AND line ->> 'state' = 'decided' AND coalesce(
        jsonb_build_object('decision', line -> 'decision', 'decided_by', line -> 'decided_by', 'why', line -> 'why')
            <@ (before #> '{intention,before}'), false)
        OR before ->> 'state' = 'open' AND line ->> 'state' = 'decided' AND line ->> 'kind' = 'dead_letters'
            AND line ->> 'decision' = 'leave' AND coalesce((
                SELECT l.said ->> 'by' = line ->> 'decided_by' AND l.said ->> 'why' = line ->> 'why'
                FROM jsonb_array_elements(before #> '{evidence,decisions}') WITH ORDINALITY AS l (said, place)
                WHERE l.said ->> 'action' = 'leave' ORDER BY l.place DESC LIMIT 1), false)
            AND NOT EXISTS (
                SELECT FROM dead_letter d
                WHERE d.case_id = (line ->> 'case_id')::bigint
                    AND (d.state = 'open' AND d.left_in_case IS NULL OR d.state = 'replaying'))
$$;

-- What a person's login writes in two names belongs to the proposal that it is approving now, as in revision 0025, with the proposal's
-- own reason and content; and to a message that was open in the case when it was proposed.
CREATE FUNCTION approves_for(said text, doing text, line jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM proposal p
        WHERE p.case_id = (line ->> 'case_id')::bigint AND p.ended_at IS NULL AND p.ended_by = session_user::text
            AND lower(p.who) <> lower(session_user::text) AND p.who || ', approved by ' || session_user::text = said
            AND (doing IS NULL OR p.action = doing) AND (line ->> 'why' IS NULL OR line ->> 'why' = p.why)
            AND (line ->> 'content' IS NULL OR line -> 'content' = to_jsonb(p.content))
            AND (line ->> 'message_id' IS NULL OR EXISTS (
                SELECT FROM case_member m
                WHERE m.case_id = p.case_id AND m.topic = line ->> 'topic' AND m.message_id = line ->> 'message_id'
                    -- A run may settle it while it is being applied.
                    AND (m.settled_at IS NULL OR m.settled_at >= p.approving_since)
                    AND CASE
                        WHEN jsonb_typeof(p.options -> 'message_ids') = 'array' THEN p.options -> 'message_ids' ? m.message_id
                        ELSE coalesce(m.added_at <= (p.options #>> '{shown,at}')::timestamptz, true) END)))
$$;
COMMENT ON FUNCTION approves_for(text, text, jsonb) IS
    'whether this is the name of a proposal''s author with this session''s login, which is approving it: for this action and this row';

-- What was decided of a case before stays in its history, as in revision 0025; what it approves a login adds as it was proposed.
CREATE OR REPLACE FUNCTION decide_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before jsonb := CASE WHEN TG_OP = 'UPDATE' THEN coalesce(OLD.evidence -> 'decisions', '[]') ELSE '[]' END;
    present jsonb := coalesce(NEW.evidence -> 'decisions', '[]');
BEGIN
    IF present <> before AND speaks_as_person() AND EXISTS (
        SELECT FROM jsonb_array_elements(present) WITH ORDINALITY AS p (said, place)
        FULL JOIN jsonb_array_elements(before) WITH ORDINALITY AS b (said, place) USING (place)
        WHERE p.said IS NULL OR b.said IS NOT NULL AND p.said <> b.said
            OR b.said IS NULL AND p.said ->> 'by' IS DISTINCT FROM session_user::text
                AND NOT approves_for(coalesce(p.said ->> 'by', ''), coalesce(p.said ->> 'action', ''),
                    jsonb_build_object('case_id', NEW.case_id, 'why', coalesce(p.said ->> 'why', '')))) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' adds its own decisions alone';
    END IF;
    RETURN NEW;
END
$$;
DROP FUNCTION approves_for(text, bigint, text, text);

-- What a person's login is about to decide of a case is its own, or what it approves; what that replaces is the decision that stands,
-- and when anything happened is by this database's clock.
CREATE FUNCTION intend_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    me text := session_user;
    replaced jsonb := CASE
        WHEN OLD.state = 'decided' THEN jsonb_build_object('decision', OLD.decision, 'decided_by', OLD.decided_by, 'why', OLD.why,
            'decided_at', OLD.decided_at, 'until', clock_timestamp())
        ELSE OLD.intention -> 'before' END;
    again boolean;
BEGIN
    IF NOT speaks_as_person() THEN
        RETURN NEW;
    END IF;
    again := stands_again(to_jsonb(OLD), to_jsonb(NEW));
    IF (NEW.intention IS NOT NULL AND (NEW.state <> 'open' OR NEW.intention IS DISTINCT FROM OLD.intention)
            OR NEW.state = 'decided' AND OLD.state <> 'decided' AND NOT again)
        AND NEW.decided_by IS DISTINCT FROM me
        AND NOT approves_for(coalesce(NEW.decided_by, ''), coalesce(NEW.decision, ''), to_jsonb(NEW)) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || me || ' decides in its own name alone';
    END IF;
    IF jsonb_typeof(NEW.intention) = 'object' THEN
        NEW.intention := NEW.intention || jsonb_build_object('before', replaced);
    END IF;
    NEW.opened_at := CASE WHEN NEW.opened_at = OLD.opened_at THEN OLD.opened_at ELSE clock_timestamp() END;
    NEW.last_seen_at := CASE WHEN NEW.last_seen_at = OLD.last_seen_at THEN OLD.last_seen_at ELSE clock_timestamp() END;
    NEW.decided_at := CASE
        WHEN NEW.decided_at IS NULL OR NEW.decided_at = OLD.decided_at THEN NEW.decided_at
        WHEN again AND replaced ->> 'decided_at' IS NOT NULL THEN (replaced ->> 'decided_at')::timestamptz
        ELSE clock_timestamp() END;
    NEW.closed_at := CASE WHEN NEW.closed_at IS NULL OR NEW.closed_at = OLD.closed_at THEN NEW.closed_at ELSE clock_timestamp() END;
    RETURN NEW;
END
$$;

-- A person's own login writes its own name, as in revision 0025. What it puts back is what stood; what a producer had written it keeps
-- of the message that it is editing; and for triage it speaks of what a log proves done.
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
    IF mode IN ('approves', 'case', 'letter') AND approves_for(
            said, CASE mode WHEN 'case' THEN coalesce(line ->> 'decision', '') ELSE doing END,
            CASE TG_TABLE_NAME WHEN 'message_version' THEN line ELSE line - 'content' END)
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

-- Asked when the transaction commits: does it have an entry about this row? If not, the database appends one. TG_ARGV[0]: 'own': the
-- entry names the row's own case or plan; 'topic': a case, a plan or a list of the row's topic will do, because a decision has
-- effects on other rows. An entry that the database appended speaks for its own table and subject alone.
CREATE FUNCTION log_what_sql_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    line jsonb := pg_catalog.to_jsonb(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END);
    before jsonb := CASE WHEN TG_OP = 'UPDATE' THEN pg_catalog.to_jsonb(OLD) END;
    me text := session_user;
    of_topic text := line ->> 'topic';
    named text;
    of_case bigint;
    plan record;
BEGIN
    IF NOT speaks_as_person() THEN
        RETURN NULL;
    END IF;
    IF TG_TABLE_NAME IN ('incident', 'incident_delivery') THEN
        SELECT i.* INTO plan FROM incident i WHERE i.run_id = (line ->> 'run_id')::bigint;
        -- Making a plan decides nothing: asking for what is in it does.
        IF TG_TABLE_NAME = 'incident' AND NOT (before ->> 'whole')::boolean AND line -> 'approved_by' = before -> 'approved_by'
            OR TG_TABLE_NAME = 'incident_delivery' AND NOT plan.whole THEN
            RETURN NULL;
        END IF;
        of_topic := plan.wanted ->> 'topic';
        named := 'plan ' || plan.run_id || ' of ' || of_topic;
    ELSIF line ->> 'case_id' IS NOT NULL THEN
        named := 'case ' || (line ->> 'case_id');
        of_topic := coalesce(of_topic, (SELECT c.topic FROM case_file c WHERE c.case_id = (line ->> 'case_id')::bigint));
    END IF;
    IF EXISTS (
        SELECT FROM decision_log d
        -- The entries of this transaction are the newest ones: nobody else appends before it ends.
        WHERE d.entry > (SELECT max(e.entry) - 200 FROM decision_log e) AND d.transaction = pg_current_xact_id() AND d.login = me
            AND CASE
                WHEN d.action = TG_OP || ' by SQL' THEN d.details ->> 'table' = TG_TABLE_NAME AND d.subject = coalesce(named, of_topic, '?')
                WHEN right(d.action, 7) = ' by SQL' THEN false
                ELSE d.subject = named OR TG_ARGV[0] = 'topic' AND (
                    TG_TABLE_NAME = 'pause' AND d.subject IN (of_topic, '*') OR right(d.subject, length(of_topic) + 4) = ' of ' || of_topic
                    OR EXISTS (
                        SELECT FROM case_file c
                        WHERE c.case_id = substring(d.subject FROM '^case ([0-9]{1,18})$')::bigint AND c.topic = of_topic))
            END) THEN
        RETURN NULL;
    END IF;
    -- A decision of this login that goes on over several transactions has said so in the log, and nothing since.
    IF TG_TABLE_NAME IN ('withdrawal', 'message_version') THEN
        of_case := coalesce((line ->> 'case_id')::bigint, (
            SELECT v.case_id FROM message_version v
            WHERE (v.topic, v.message_id) = (of_topic, line ->> 'message_id') ORDER BY v.content_version DESC LIMIT 1));
        IF NOT (TG_OP = 'DELETE' AND line ->> 'applied_at' IS NOT NULL)
            AND EXISTS (
                SELECT FROM case_member m WHERE (m.case_id, m.topic, m.message_id) = (of_case, of_topic, line ->> 'message_id'))
            AND (
                SELECT d.login = me AND d.action = CASE TG_TABLE_NAME WHEN 'withdrawal' THEN 'begin to void' ELSE 'begin to edit' END
                FROM decision_log d WHERE d.subject = 'case ' || of_case ORDER BY d.entry DESC LIMIT 1) THEN
            RETURN NULL;
        END IF;
    END IF;
    -- A decision that was refused puts the one before back.
    IF TG_TABLE_NAME = 'case_file' AND stands_again(before, line)
        AND line - '{state,decision,decided_by,why,decided_at,intention}'::text[]
            = before - '{state,decision,decided_by,why,decided_at,intention}'::text[] THEN
        RETURN NULL;
    END IF;
    PERFORM append_decision(me, TG_OP || ' by SQL', coalesce(named, of_topic, '?'), 'changed beside the program',
        jsonb_build_object('table', TG_TABLE_NAME, 'first', (
            SELECT jsonb_object_agg(k.key, k.value) FROM jsonb_each(line) AS k
            WHERE k.key IN ('case_id', 'run_id', 'place', 'proposal_id', 'request_id', 'dead_letter_id', 'shard', 'topic', 'message_id',
                'consumer_group', 'broker', 'queue_id', 'send_number', 'content_version', 'state', 'how', 'decision', 'dedup_key')),
            'columns', (SELECT jsonb_agg(k.key ORDER BY k.key) FROM jsonb_each(line) AS k WHERE before -> k.key <> k.value)));
    RETURN NULL;
END
$$;

-- By hand people open runs that are dry or of some topics; a duty's run over everything, and its lease while it lives, are no person's.
CREATE FUNCTION keep_off_duties() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    dead timestamptz := clock_timestamp() - interval '2 minutes';
    fits boolean;
BEGIN
    IF NOT speaks_as_person() THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    IF TG_TABLE_NAME = 'run' THEN
        fits := NEW.dry_run OR NEW.scope <> '*'
            OR TG_OP = 'UPDATE' AND NEW.state = 'abandoned' AND OLD.heartbeat_at < dead;
    ELSE
        fits := (TG_OP = 'DELETE' OR NEW.heartbeat_at < clock_timestamp() + interval '1 minute' AND EXISTS (
                SELECT FROM run r
                WHERE r.run_id = NEW.run_id AND (r.dry_run OR r.scope <> '*') AND (r.duty, r.scope) = (NEW.duty, NEW.scope)))
            AND (TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND NEW.run_id = OLD.run_id OR OLD.heartbeat_at < dead
                OR TG_OP = 'DELETE' AND EXISTS (SELECT FROM run r WHERE r.run_id = OLD.run_id AND (r.dry_run OR r.scope <> '*')));
    END IF;
    IF fits THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' opens runs that are dry or of some topics alone';
END
$$;

-- What a person's login proposes is what is there now.
CREATE FUNCTION propose_now() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said jsonb := CASE jsonb_typeof(NEW.options) WHEN 'object' THEN NEW.options ELSE '{}' END;
    shown jsonb := CASE jsonb_typeof(said -> 'shown') WHEN 'object' THEN said -> 'shown' ELSE '{}' END;
BEGIN
    IF speaks_as_person() THEN
        NEW.options := said || jsonb_build_object('shown', shown || jsonb_build_object(
            'at', least((shown ->> 'at')::timestamptz, clock_timestamp()),
            'letter', least((shown ->> 'letter')::bigint,
                (SELECT coalesce(max(d.dead_letter_id), 0) FROM dead_letter d WHERE d.case_id = NEW.case_id))));
    END IF;
    RETURN NEW;
END
$$;

-- A person's login tells of cases alone, under their own keys: a key that is there already is told of nobody again.
CREATE FUNCTION tell_of_cases() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() AND NOT coalesce(starts_with(NEW.dedup_key || '/', 'case/' || NEW.case_id || '/'), false) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' tells of cases alone';
    END IF;
    RETURN NEW;
END
$$;

-- What joins a case again joins it now: a second person approves what was in it when somebody proposed.
CREATE FUNCTION join_now() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF speaks_as_person() THEN
        NEW.added_at := clock_timestamp();
    END IF;
    RETURN NEW;
END
$$;

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
    -- Asked of each row that a duty writes, so it costs little. Without the role nobody is a person; a superuser never is.
    person text := 'current_setting(''is_superuser'') = ''off'' '
        || 'AND pg_has_role(coalesce(to_regrole(''backstop_person'')::oid, 10::oid), ''usage'')';
    one record;
BEGIN
    EXECUTE 'ALTER FUNCTION append_decision(text, text, text, text, jsonb)' || path;
    EXECUTE 'ALTER FUNCTION log_what_sql_changed()' || path;
    EXECUTE 'ALTER FUNCTION keep_off_duties()' || path;
    EXECUTE 'ALTER FUNCTION join_now()' || path;
    EXECUTE 'ALTER FUNCTION propose_now()' || path;
    EXECUTE 'ALTER FUNCTION tell_of_cases()' || path;
    EXECUTE 'ALTER FUNCTION stands_again(jsonb, jsonb)' || path;
    EXECUTE 'ALTER FUNCTION approves_for(text, text, jsonb)' || path;
    EXECUTE 'ALTER FUNCTION decide_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION intend_for_yourself()' || path;
    EXECUTE 'ALTER FUNCTION speak_for_yourself()' || path;
    FOR one IN
        SELECT * FROM (VALUES
            -- Not the intention: it decides nothing. But one that goes without putting back what it could put back does.
            ('case_file', 'UPDATE', 'own',
                'NEW.state <> OLD.state AND NOT (NEW.state = ''open'' AND NEW.intention IS NOT NULL) OR NEW.state <> ''open'' AND '
                || '(NEW.decision, NEW.decided_by, NEW.why, NEW.decided_at) '
                || 'IS DISTINCT FROM (OLD.decision, OLD.decided_by, OLD.why, OLD.decided_at) OR '
                || 'NEW.state = ''open'' AND NEW.intention IS NULL '
                || 'AND OLD.last_seen_at <= (OLD.intention #>> ''{before,until}'')::timestamptz OR '
                || '(NEW.kind, NEW.topic, NEW.consumer_group, NEW.subject, NEW.severity, NEW.summary, NEW.evidence, NEW.opened_at, '
                || 'NEW.last_seen_at) IS DISTINCT FROM '
                || '(OLD.kind, OLD.topic, OLD.consumer_group, OLD.subject, OLD.severity, OLD.summary, OLD.evidence, OLD.opened_at, '
                || 'OLD.last_seen_at)'),
            ('case_member', 'INSERT OR UPDATE OR DELETE', 'topic', ''),
            ('proposal', 'INSERT', 'own', ''),
            ('proposal', 'UPDATE', 'own', '(NEW.ended_at, NEW.how, NEW.content) IS DISTINCT FROM (OLD.ended_at, OLD.how, OLD.content) '
                || 'OR NEW.ended_by IS DISTINCT FROM OLD.ended_by AND NEW.ended_by IS NOT NULL'),
            ('incident', 'UPDATE', 'own', 'OLD.* IS DISTINCT FROM NEW.*'),
            ('incident_delivery', 'INSERT OR UPDATE', 'own', ''),
            ('resend_request', 'INSERT OR UPDATE', 'topic', ''), ('resend_batch', 'INSERT OR UPDATE', 'topic', ''),
            ('dead_letter', 'UPDATE', 'topic', ''), ('queue_epoch', 'UPDATE', 'topic', ''),
            ('delivery_decision', 'INSERT', 'own', ''), ('drained_broker', 'INSERT', 'own', ''),
            ('withdrawal', 'INSERT OR UPDATE OR DELETE', 'own', ''), ('message_version', 'INSERT OR UPDATE', 'own', ''),
            ('pause', 'INSERT OR DELETE', 'topic', ''), ('alert', 'INSERT', 'topic', '')
        ) AS t (held, events, entry, changed)
    LOOP
        EXECUTE 'CREATE CONSTRAINT TRIGGER logs_what_sql_changed'
            || CASE WHEN one.held = 'proposal' THEN '_by_' || lower(one.events) ELSE '' END
            || ' AFTER ' || one.events || ' ON ' || one.held || ' DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (' || person
            || CASE WHEN one.changed <> '' THEN ' AND (' || one.changed || ')' ELSE '' END
            || ') EXECUTE FUNCTION log_what_sql_changed(' || quote_literal(one.entry) || ')';
    END LOOP;
    -- The same question in the triggers of revisions 0022 and 0025: they did not ask it of a login that takes the role by SET ROLE.
    FOR one IN
        SELECT * FROM (VALUES
            ('resend_request', 'speaks_for_itself', 'INSERT OR UPDATE OF requested_by', 'speak_for_yourself(''requested_by'', ''request'')'),
            ('dead_letter', 'speaks_for_itself', 'INSERT OR UPDATE OF decided_by, decision, state',
                'speak_for_yourself(''decided_by'', ''letter'', ''edit'', ''decision'', ''state'')'),
            ('withdrawal', 'speaks_for_itself', 'INSERT OR UPDATE OF decided_by, why, case_id',
                'speak_for_yourself(''decided_by'', ''approves'', ''void'', ''why'', ''case_id'')'),
            ('message_version', 'speaks_for_itself', 'INSERT OR UPDATE OF written_by, shard, content, why, case_id',
                'speak_for_yourself(''written_by'', ''approves'', ''edit'', ''shard'', ''content'', ''why'', ''case_id'')'),
            ('case_file', 'speaks_for_itself', 'INSERT OR UPDATE OF decided_by, decision, why',
                'speak_for_yourself(''decided_by'', ''case'', '''', ''decision'', ''why'')'),
            ('incident_delivery', 'plans_for_itself', 'INSERT', 'plan_for_yourself()'),
            ('case_file', 'decides_for_itself', 'INSERT OR UPDATE OF evidence', 'decide_for_yourself()'),
            ('proposal', 'speaks_for_itself', 'INSERT OR UPDATE OF who', 'speak_for_yourself(''who'', '''')'),
            ('proposal', 'ends_for_itself', 'INSERT OR UPDATE', 'end_for_yourself()'),
            ('incident', 'speaks_for_itself', 'INSERT OR UPDATE OF planned_by', 'speak_for_yourself(''planned_by'', '''')'),
            ('incident', 'approves_for_itself', 'INSERT OR UPDATE OF approved_by', 'speak_for_yourself(''approved_by'', '''')'),
            ('case_note', 'speaks_for_itself', 'INSERT OR UPDATE OF written_by', 'speak_for_yourself(''written_by'', '''')'),
            ('pause', 'speaks_for_itself', 'INSERT OR UPDATE OF paused_by', 'speak_for_yourself(''paused_by'', '''')'),
            ('drained_broker', 'speaks_for_itself', 'INSERT OR UPDATE OF stated_by', 'speak_for_yourself(''stated_by'', '''')')
        ) AS t (held, name, events, asks)
    LOOP
        EXECUTE 'DROP TRIGGER ' || one.name || ' ON ' || one.held;
        EXECUTE 'CREATE TRIGGER ' || one.name || ' BEFORE ' || one.events || ' ON ' || one.held || ' FOR EACH ROW WHEN (' || person
            || ') EXECUTE FUNCTION ' || one.asks;
    END LOOP;
    EXECUTE 'CREATE TRIGGER keeps_off_duties BEFORE INSERT ON run FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION keep_off_duties()';
    EXECUTE 'CREATE TRIGGER keeps_off_duties_too BEFORE UPDATE ON run FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION keep_off_duties()';
    EXECUTE 'CREATE TRIGGER intends_for_itself BEFORE UPDATE ON case_file FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION intend_for_yourself()';
    EXECUTE 'CREATE TRIGGER proposes_now BEFORE INSERT ON proposal FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION propose_now()';
    EXECUTE 'CREATE TRIGGER tells_of_cases BEFORE INSERT ON alert FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION tell_of_cases()';
    EXECUTE 'CREATE TRIGGER joins_now BEFORE UPDATE OF added_at ON case_member FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION join_now()';
    EXECUTE 'CREATE TRIGGER keeps_off_duties BEFORE INSERT OR UPDATE OR DELETE ON duty_lease FOR EACH ROW WHEN (' || person
        || ') EXECUTE FUNCTION keep_off_duties()';
END
$$;
