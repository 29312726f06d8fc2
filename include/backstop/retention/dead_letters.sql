-- Decided dead letters in the control database: their contents first, then the letters.

-- name: letters: a step of decided letters whose page the broker has acknowledged and whose case is closed; kept by topic
-- Their causes count the letters that are stored.
WITH chosen AS MATERIALIZED (
    SELECT d.dead_letter_id
    FROM dead_letter d
    JOIN drain_batch b ON b.batch_id = d.batch_id AND b.acknowledged_at IS NOT NULL
    LEFT JOIN unnest(%(topics)s::text[], %(instants)s::timestamptz[]) AS k (topic, before) ON k.topic = d.topic
    WHERE d.state IN ('replayed', 'discarded') AND d.closed_at < %(latest)s AND d.closed_at < coalesce(k.before, %(other)s)
        AND NOT EXISTS (SELECT 1 FROM case_file c WHERE c.case_id = d.case_id AND c.closed_at IS NULL)
    ORDER BY d.closed_at
    LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED
), gone AS (
    DELETE FROM dead_letter d USING chosen c WHERE d.dead_letter_id = c.dead_letter_id RETURNING d.cause_id
), counted AS (
    SELECT c.cause_id, g.letters
    FROM (SELECT cause_id, count(*) AS letters FROM gone WHERE cause_id IS NOT NULL GROUP BY cause_id) g
    JOIN cause c USING (cause_id)
    ORDER BY c.cause_id FOR UPDATE OF c
), fewer AS (
    UPDATE cause c SET dead_letters = c.dead_letters - n.letters FROM counted n WHERE c.cause_id = n.cause_id
)
SELECT count(*) FROM gone;

-- name: would_go: as letters, counted and left
SELECT count(*)
FROM dead_letter d
JOIN drain_batch b ON b.batch_id = d.batch_id AND b.acknowledged_at IS NOT NULL
LEFT JOIN unnest(%(topics)s::text[], %(instants)s::timestamptz[]) AS k (topic, before) ON k.topic = d.topic
WHERE d.state IN ('replayed', 'discarded') AND d.closed_at < %(latest)s AND d.closed_at < coalesce(k.before, %(other)s)
    AND NOT EXISTS (SELECT 1 FROM case_file c WHERE c.case_id = d.case_id AND c.closed_at IS NULL);

-- name: contents: a step of contents of decided letters, where the policy keeps them shorter than the letter; the rest stays
-- Who decides the rest of an open case may want to compare.
WITH chosen AS MATERIALIZED (
    SELECT d.dead_letter_id
    FROM dead_letter d
    LEFT JOIN unnest(%(topics)s::text[], %(instants)s::timestamptz[]) AS k (topic, before) ON k.topic = d.topic
    WHERE d.state IN ('replayed', 'discarded') AND d.closed_at < %(latest)s AND d.closed_at < coalesce(k.before, %(other)s)
        AND d.emptied_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM case_file c WHERE c.case_id = d.case_id AND c.closed_at IS NULL)
    ORDER BY d.closed_at
    LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED
), aside AS (
    DELETE FROM dead_letter_aside a USING chosen c WHERE a.dead_letter_id = c.dead_letter_id
), emptied AS (
    UPDATE dead_letter d SET content = NULL, aside = false, emptied_at = clock_timestamp()
    FROM chosen c WHERE d.dead_letter_id = c.dead_letter_id RETURNING 1
)
SELECT count(*) FROM emptied;
