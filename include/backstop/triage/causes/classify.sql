-- Named queries on the control database: classifying dead letters, and promoting their causes.

-- name: to_classify: open letters that these rules have not classified, in a range of ids
SELECT d.dead_letter_id, d.topic, d.message_id, d.consumer_group, d.cause_text, d.error, d.invalid
FROM dead_letter d
WHERE d.state = 'open' AND d.dead_letter_id > %(after)s
    AND (%(until)s::bigint IS NULL OR d.dead_letter_id <= %(until)s::bigint)
    AND (d.cause_id IS NULL OR d.classified_by IS DISTINCT FROM %(version)s)
    AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
ORDER BY d.dead_letter_id
LIMIT %(limit)s;

-- name: bounds: the last id of each range of letters to classify
SELECT max(n.dead_letter_id)
FROM (
    SELECT d.dead_letter_id, row_number() OVER (ORDER BY d.dead_letter_id) - 1 AS place
    FROM dead_letter d
    WHERE d.state = 'open' AND (d.cause_id IS NULL OR d.classified_by IS DISTINCT FROM %(version)s)
        AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
) AS n
GROUP BY n.place / %(size)s
ORDER BY 1;

-- name: forget_letters: what an earlier try of a task staged
DELETE FROM staged_letter WHERE run_id = %(run_id)s AND stage = %(stage)s AND dead_letter_id = ANY (%(ids)s::bigint[]);

-- name: open_incoming: rows on their way to the staging table
CREATE TEMP TABLE incoming_letter (LIKE staged_letter) ON COMMIT DROP;

-- name: copy_incoming: they come as CSV
COPY incoming_letter (run_id, stage, dead_letter_id, fingerprint, template, rule_category, category, classified_by)
FROM STDIN WITH (FORMAT csv);

-- name: keep_incoming: a task that runs twice stages the same
INSERT INTO staged_letter (run_id, stage, dead_letter_id, fingerprint, template, rule_category, category, classified_by)
SELECT run_id, stage, dead_letter_id, fingerprint, template, rule_category, category, classified_by FROM incoming_letter
ON CONFLICT DO NOTHING;

-- name: read: what a run looked at, for the audit
INSERT INTO staged_read (run_id, stage, subject, rows_read, complete, detail)
VALUES (%(run_id)s, %(stage)s, %(subject)s, %(rows)s, %(complete)s, %(detail)s)
ON CONFLICT (run_id, stage, subject) DO UPDATE SET
    rows_read = EXCLUDED.rows_read, complete = EXCLUDED.complete, detail = EXCLUDED.detail;

-- name: kept_patterns: templates with a place for words and with so many blanks, the oldest first
SELECT template FROM cause
WHERE (strpos(template, '<name>') > 0 OR strpos(template, '<any>') > 0)
    AND length(template) - length(replace(template, ' ', '')) = ANY (%(blanks)s::integer[])
ORDER BY cause_id;

-- name: plain_causes: templates of causes that were seen last, of categories and with as many blanks as asked for
SELECT c.template, c.category
FROM unnest(%(categories)s::text[], %(blanks)s::integer[]) AS w (category, blanks)
CROSS JOIN LATERAL (
    SELECT one.template, one.category, one.last_seen_at, one.cause_id FROM cause one
    WHERE one.category = w.category AND length(one.template) - length(replace(one.template, ' ', '')) = w.blanks
    ORDER BY one.last_seen_at DESC, one.cause_id DESC
    LIMIT %(limit)s) AS c
ORDER BY c.last_seen_at DESC, c.cause_id DESC
LIMIT %(limit)s;

-- name: staged_templates: the commonest first
SELECT template, rule_category FROM staged_letter
WHERE run_id = %(run_id)s AND stage = %(stage)s
GROUP BY template, rule_category
ORDER BY count(*) DESC, template, rule_category
LIMIT %(limit)s;

-- name: restage: letters whose template fits a pattern are of its cause
UPDATE staged_letter s SET template = w.pattern, fingerprint = w.name
FROM unnest(%(templates)s::text[], %(said)s::text[], %(patterns)s::text[], %(names)s::text[])
    AS w (template, said, pattern, name)
WHERE s.run_id = %(run_id)s AND s.stage = %(stage)s AND s.template = w.template AND s.rule_category = w.said;

-- name: move_letters: open letters of older causes that a new pattern takes in, but for those in a case
INSERT INTO staged_letter (run_id, stage, dead_letter_id, fingerprint, template, rule_category, category, classified_by)
SELECT %(run_id)s, %(stage)s, d.dead_letter_id, w.name, w.pattern, c.category, d.category, d.classified_by
FROM unnest(%(templates)s::text[], %(said)s::text[], %(patterns)s::text[], %(names)s::text[])
    AS w (template, said, pattern, name)
JOIN cause c ON c.template = w.template AND c.category = w.said
JOIN dead_letter d ON d.cause_id = c.cause_id
WHERE d.state = 'open' AND d.case_id IS NULL AND d.classified_by = %(version)s
ON CONFLICT DO NOTHING;

-- name: forget_staged: what no run will promote any more, as forget_staging of reconcile
DELETE FROM staged_letter s USING run r
WHERE r.run_id = s.run_id AND (s.stage < r.stage OR r.finished_at < clock_timestamp() - interval '1 day');

-- name: hold_batch: staged letters in order of their ids, each held until the transaction ends, with what it is now
-- The stage is one value to the planner, so that the key gives this order: a join would read and sort all that is left for each batch.
-- Where it walks both keys at once, each begins behind the batch before.
-- What another run has classified since this one began is newer than what is staged, and the next run classifies it if it must. A letter
-- that came into a case since then keeps its pattern: somebody is asked about it by that.
CREATE TEMP TABLE held_letter ON COMMIT DROP AS
SELECT s.dead_letter_id, s.fingerprint, s.template, s.rule_category, s.category, s.classified_by,
    d.state, d.cause_id AS old_cause, d.category AS old_category, coalesce(d.died_at, d.drained_at) AS seen_at
FROM staged_letter s
JOIN dead_letter d ON d.dead_letter_id = s.dead_letter_id
WHERE s.run_id = %(run_id)s AND s.stage = (SELECT r.stage FROM run r WHERE r.run_id = %(run_id)s) AND s.dead_letter_id > %(after)s
    AND d.dead_letter_id > %(after)s
    AND (d.classified_at IS NULL OR d.classified_at <= (SELECT r.started_at FROM run r WHERE r.run_id = %(run_id)s))
    AND (d.case_id IS NULL OR d.classified_by IS DISTINCT FROM s.classified_by)
ORDER BY s.dead_letter_id
LIMIT %(limit)s
FOR UPDATE OF d;

-- name: held: how far the batch goes, and which causes its letters had
SELECT max(h.dead_letter_id), coalesce(array_agg(DISTINCT h.old_cause) FILTER (WHERE h.state = 'open' AND h.old_cause IS NOT NULL), '{}')
FROM held_letter h;

-- name: held_causes: what the batch's open letters are to be
SELECT h.fingerprint, min(h.template), min(h.rule_category), min(h.seen_at), max(h.seen_at)
FROM held_letter h
WHERE h.state = 'open'
GROUP BY h.fingerprint
ORDER BY h.fingerprint;

-- name: hold_causes: those that will change, in one order for everybody
SELECT cause_id FROM cause
WHERE fingerprint = ANY (%(fingerprints)s) OR cause_id = ANY (%(causes)s)
ORDER BY cause_id
FOR UPDATE;

-- name: keep_causes: new ones are made, known ones take the rules' present category
INSERT INTO cause AS c (fingerprint, template, shown, category, first_seen_at, last_seen_at)
SELECT w.fingerprint, w.template, w.shown, w.category, w.first_seen_at, w.last_seen_at
FROM unnest(%(fingerprints)s::text[], %(templates)s::text[], %(shown)s::text[], %(categories)s::text[],
    %(firsts)s::timestamptz[], %(lasts)s::timestamptz[])
    AS w (fingerprint, template, shown, category, first_seen_at, last_seen_at)
ORDER BY w.fingerprint
ON CONFLICT (fingerprint) DO UPDATE SET
    category = EXCLUDED.category, shown = EXCLUDED.shown,
    first_seen_at = least(c.first_seen_at, EXCLUDED.first_seen_at),
    last_seen_at = greatest(c.last_seen_at, EXCLUDED.last_seen_at)
RETURNING cause_id, fingerprint, xmax = 0 AS is_new;

-- name: not_shown: causes of an earlier version, of which nothing is shown yet; held
SELECT c.cause_id, c.template FROM cause c WHERE c.shown IS NULL ORDER BY c.cause_id LIMIT %(limit)s FOR UPDATE;

-- name: show: what is shown of causes, and of the cases about them
WITH w AS (
    SELECT * FROM unnest(%(causes)s::bigint[], %(shown)s::text[]) AS w (cause_id, shown)
), cases AS (
    UPDATE case_file f SET evidence = f.evidence || jsonb_build_object('template', w.shown)
    FROM w JOIN cause c USING (cause_id)
    WHERE f.kind = 'dead_letters' AND f.subject = c.fingerprint AND f.evidence ? 'template'
)
UPDATE cause c SET shown = w.shown FROM w WHERE c.cause_id = w.cause_id;

-- name: move: the batch's letters to their causes; one that stays what it was only learns by which rules
UPDATE dead_letter d SET
    cause_id = w.cause_id, category = h.category, classified_by = h.classified_by,
    classified_at = CASE WHEN d.cause_id = w.cause_id AND d.category = h.category THEN d.classified_at
                         ELSE clock_timestamp() END
FROM held_letter h
JOIN unnest(%(fingerprints)s::text[], %(causes)s::bigint[]) AS w (fingerprint, cause_id) USING (fingerprint)
WHERE d.dead_letter_id = h.dead_letter_id AND h.state = 'open';

-- name: count: the causes that letters of the batch came to or left, with the first few of each as examples; how many are new, or changed
WITH promoted AS MATERIALIZED (
    SELECT h.dead_letter_id, h.old_cause, w.cause_id AS new_cause, h.old_category, h.category
    FROM held_letter h
    JOIN unnest(%(fingerprints)s::text[], %(causes)s::bigint[]) AS w (fingerprint, cause_id) USING (fingerprint)
    WHERE h.state = 'open'
), moved AS (
    SELECT m.cause_id, sum(m.number) AS number,
        (array_agg(m.dead_letter_id ORDER BY m.dead_letter_id) FILTER (WHERE m.number > 0))[:%(examples)s] AS came,
        coalesce(array_agg(m.dead_letter_id) FILTER (WHERE m.number < 0), '{}') AS went
    FROM (
        SELECT p.new_cause AS cause_id, p.dead_letter_id, 1 AS number FROM promoted p WHERE p.old_cause IS DISTINCT FROM p.new_cause
        UNION ALL
        SELECT p.old_cause, p.dead_letter_id, -1 FROM promoted p WHERE p.old_cause <> p.new_cause) AS m
    GROUP BY m.cause_id
), counted AS (
    UPDATE cause c SET
        dead_letters = c.dead_letters + m.number,
        examples = (
            SELECT coalesce(array_agg(e.id ORDER BY e.id), '{}')
            FROM (
                SELECT DISTINCT one.id FROM unnest(c.examples || m.came) AS one (id)
                WHERE one.id <> ALL (m.went)
                ORDER BY one.id LIMIT %(examples)s) AS e)
    FROM moved m
    WHERE c.cause_id = m.cause_id
)
SELECT count(*) FILTER (WHERE p.old_cause IS NULL),
    count(*) FILTER (WHERE p.old_cause <> p.new_cause OR p.old_cause = p.new_cause AND p.old_category <> p.category)
FROM promoted p;

-- name: trial: what open letters are by the rules that were in force, page by page
SELECT d.dead_letter_id, d.topic, d.message_id, d.consumer_group, d.cause_text, d.error, d.invalid, d.category
FROM dead_letter d
WHERE d.state = 'open' AND d.dead_letter_id > %(after)s
    AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
ORDER BY d.dead_letter_id
LIMIT %(limit)s;

-- name: causes: what letters died of, the most open ones first
SELECT c.cause_id, c.category, c.shown AS template, c.fingerprint, c.dead_letters,
    coalesce(o.open, 0) AS open, c.first_seen_at, c.last_seen_at, c.examples
FROM cause c
LEFT JOIN (
    SELECT d.cause_id, count(*) AS open FROM dead_letter d
    WHERE d.state = 'open' AND d.cause_id IS NOT NULL AND (%(topic)s::text IS NULL OR d.topic = %(topic)s)
    GROUP BY d.cause_id
) AS o USING (cause_id)
WHERE (%(category)s::text IS NULL OR c.category = %(category)s) AND (%(all)s OR o.open > 0)
ORDER BY coalesce(o.open, 0) DESC, c.dead_letters DESC, c.cause_id
LIMIT %(limit)s;
