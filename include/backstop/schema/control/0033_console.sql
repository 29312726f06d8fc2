-- What the console shows without counting: the present verdict of each open delivery, and counts kept beside the rows they count.

CREATE TABLE open_delivery (
    topic          text        NOT NULL,
    message_id     text        NOT NULL,
    consumer_group text        NOT NULL,
    shard          text        NOT NULL,
    verdict        text        NOT NULL,
    reason         text        NOT NULL,
    eligible       boolean     NOT NULL,
    case_kind      text,
    run_id         bigint      NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    judged_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_look_at   timestamptz,
    PRIMARY KEY (topic, message_id, consumer_group)
);
COMMENT ON TABLE open_delivery IS 'the newest verdict of each delivery that is neither confirmed, nor withdrawn, nor merely early; written by promotion';
COMMENT ON COLUMN open_delivery.since IS 'the first promotion that gave it this verdict';
CREATE INDEX open_delivery_verdict ON open_delivery (verdict, topic, message_id, consumer_group);
CREATE INDEX open_delivery_group ON open_delivery (consumer_group, topic, message_id);

-- Each change of the rows appends what it adds or takes away; nobody waits for another's row. The watch adds them up.
CREATE TABLE tally (
    subject        text   NOT NULL CHECK (subject IN ('delivery', 'dead_letter', 'request')),
    topic          text   NOT NULL,
    consumer_group text   NOT NULL,
    state          text   NOT NULL,
    category       text,
    cause_id       bigint,
    day            date,
    number         bigint NOT NULL
);
COMMENT ON TABLE tally IS 'how many rows: the sum of `number`. deliveries by verdict, dead letters by state, requests by state and day';
CREATE INDEX tally_subject ON tally (subject, topic, consumer_group, state);

-- The counts as the watch last saw them in each hour.
CREATE TABLE delivery_hour (
    hour           timestamptz NOT NULL,
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    verdict        text        NOT NULL,
    deliveries     bigint      NOT NULL CHECK (deliveries >= 0),
    PRIMARY KEY (hour, topic, consumer_group, verdict)
);
COMMENT ON COLUMN delivery_hour.deliveries IS 'how many were in this state when the hour was last seen; CONFIRMED: how many became so within it';

-- What the lists of the console are paged by.
CREATE INDEX resend_request_state ON resend_request (state, request_id);
CREATE INDEX resend_request_topic ON resend_request (topic, request_id);
CREATE INDEX dead_letter_topic ON dead_letter (topic, dead_letter_id);
CREATE INDEX dead_letter_broker_id ON dead_letter (broker_id);
CREATE INDEX case_file_newest ON case_file (state, case_id);
CREATE INDEX run_went_wrong ON run (duty, started_at DESC) WHERE state IN ('failed', 'incomplete', 'abandoned');
CREATE INDEX run_not_empty ON run (run_id) WHERE state <> 'done' OR jsonb_path_exists(counts, '$.* ? (@ != 0)');

-- Per statement, so that a page of rows costs one more. They run as the owner: a person's login changes rows, and no counts.
CREATE FUNCTION tally_deliveries() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally (subject, topic, consumer_group, state, number)
        SELECT 'delivery', n.topic, n.consumer_group, n.verdict, count(*) FROM came n GROUP BY 2, 3, 4;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO tally (subject, topic, consumer_group, state, number)
        SELECT 'delivery', o.topic, o.consumer_group, o.verdict, -count(*) FROM went o GROUP BY 2, 3, 4;
    ELSE
        INSERT INTO tally (subject, topic, consumer_group, state, number)
        SELECT 'delivery', b.topic, b.consumer_group, b.verdict, sum(b.n) FROM (
            SELECT topic, consumer_group, verdict, 1 AS n FROM came UNION ALL SELECT topic, consumer_group, verdict, -1 FROM went
        ) b GROUP BY 2, 3, 4 HAVING sum(b.n) <> 0;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION tally_dead_letters() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally (subject, topic, consumer_group, state, category, cause_id, number)
        SELECT 'dead_letter', coalesce(n.topic, '*'), coalesce(n.consumer_group, '*'), n.state, n.category, n.cause_id, count(*)
        FROM came n GROUP BY 2, 3, 4, 5, 6;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO tally (subject, topic, consumer_group, state, category, cause_id, number)
        SELECT 'dead_letter', coalesce(o.topic, '*'), coalesce(o.consumer_group, '*'), o.state, o.category, o.cause_id, -count(*)
        FROM went o GROUP BY 2, 3, 4, 5, 6;
    ELSE
        INSERT INTO tally (subject, topic, consumer_group, state, category, cause_id, number)
        SELECT 'dead_letter', coalesce(b.topic, '*'), coalesce(b.consumer_group, '*'), b.state, b.category, b.cause_id, sum(b.n) FROM (
            SELECT topic, consumer_group, state, category, cause_id, 1 AS n FROM came
            UNION ALL SELECT topic, consumer_group, state, category, cause_id, -1 FROM went
        ) b GROUP BY 2, 3, 4, 5, 6 HAVING sum(b.n) <> 0;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION tally_requests() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally (subject, topic, consumer_group, state, day, number)
        SELECT 'request', n.topic, '*', n.state, (n.updated_at AT TIME ZONE 'UTC')::date, count(*) FROM came n GROUP BY 2, 4, 5;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO tally (subject, topic, consumer_group, state, day, number)
        SELECT 'request', o.topic, '*', o.state, (o.updated_at AT TIME ZONE 'UTC')::date, -count(*) FROM went o GROUP BY 2, 4, 5;
    ELSE
        INSERT INTO tally (subject, topic, consumer_group, state, day, number)
        SELECT 'request', b.topic, '*', b.state, b.day, sum(b.n) FROM (
            SELECT topic, state, (updated_at AT TIME ZONE 'UTC')::date AS day, 1 AS n FROM came
            UNION ALL SELECT topic, state, (updated_at AT TIME ZONE 'UTC')::date, -1 FROM went
        ) b GROUP BY 2, 4, 5 HAVING sum(b.n) <> 0;
    END IF;
    RETURN NULL;
END
$$;

-- What people and their cases end is open no more, though no run judges it again.
CREATE FUNCTION end_open_deliveries() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_TABLE_NAME = 'case_member' THEN
        DELETE FROM open_delivery o USING came n JOIN case_file c ON c.case_id = n.case_id
        WHERE n.settled_at IS NOT NULL AND c.kind <> 'dead_letters' AND o.topic = n.topic AND o.message_id = n.message_id
            AND (n.consumer_group = '*' OR o.consumer_group = n.consumer_group);
    ELSIF TG_TABLE_NAME = 'withdrawal' THEN
        DELETE FROM open_delivery o USING came n
        WHERE n.applied_at IS NOT NULL AND o.topic = n.topic AND o.message_id = n.message_id;
    ELSE
        DELETE FROM open_delivery o USING came n
        WHERE o.topic = n.topic AND o.message_id = n.message_id AND o.consumer_group = n.consumer_group;
    END IF;
    RETURN NULL;
END
$$;

DO $$
DECLARE
    path text := ' SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
    counted record;
BEGIN
    FOR counted IN SELECT * FROM (VALUES
        ('open_delivery', 'tally_deliveries'), ('dead_letter', 'tally_dead_letters'), ('resend_request', 'tally_requests')
    ) AS v (name, does) LOOP
        EXECUTE 'ALTER FUNCTION ' || counted.does || '()' || path;
        EXECUTE 'CREATE TRIGGER counts_what_came AFTER INSERT ON ' || counted.name || ' REFERENCING NEW TABLE AS came FOR EACH STATEMENT'
            || ' EXECUTE FUNCTION ' || counted.does || '()';
        EXECUTE 'CREATE TRIGGER counts_what_went AFTER DELETE ON ' || counted.name || ' REFERENCING OLD TABLE AS went FOR EACH STATEMENT'
            || ' EXECUTE FUNCTION ' || counted.does || '()';
        EXECUTE 'CREATE TRIGGER counts_what_changed AFTER UPDATE ON ' || counted.name || ' REFERENCING OLD TABLE AS went NEW TABLE AS came FOR EACH STATEMENT'
            || ' EXECUTE FUNCTION ' || counted.does || '()';
    END LOOP;
    EXECUTE 'ALTER FUNCTION end_open_deliveries()' || path;
END
$$;
REVOKE ALL ON FUNCTION tally_deliveries(), tally_dead_letters(), tally_requests(), end_open_deliveries() FROM PUBLIC;
CREATE TRIGGER ends_open_deliveries AFTER UPDATE ON case_member REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION end_open_deliveries();
CREATE TRIGGER ends_open_deliveries AFTER INSERT ON delivery_decision REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION end_open_deliveries();
CREATE TRIGGER ends_open_deliveries AFTER UPDATE ON withdrawal REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION end_open_deliveries();

-- What is there already. Exhausted deliveries are judged by no later run; all others come with their next look.
INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, case_kind, run_id, since, judged_at)
SELECT DISTINCT ON (v.topic, v.message_id, v.consumer_group) v.topic, v.message_id, v.consumer_group, v.shard, v.verdict, v.reason,
    v.eligible, v.case_kind, v.run_id, r.started_at, r.started_at
FROM case_member m
JOIN case_file c ON c.case_id = m.case_id AND c.closed_at IS NULL AND c.kind = 'exhausted'
JOIN verdict v ON v.topic = m.topic AND v.message_id = m.message_id AND m.consumer_group IN (v.consumer_group, '*')
JOIN run r ON r.run_id = v.run_id
WHERE m.settled_at IS NULL AND v.verdict = 'EXHAUSTED'
ORDER BY v.topic, v.message_id, v.consumer_group, v.run_id DESC;
INSERT INTO tally (subject, topic, consumer_group, state, category, cause_id, number)
SELECT 'dead_letter', coalesce(topic, '*'), coalesce(consumer_group, '*'), state, category, cause_id, count(*)
FROM dead_letter GROUP BY 2, 3, 4, 5, 6;
INSERT INTO tally (subject, topic, consumer_group, state, day, number)
SELECT 'request', topic, '*', state, (updated_at AT TIME ZONE 'UTC')::date, count(*) FROM resend_request GROUP BY 2, 4, 5;
