-- What crosses tables or shards; the expectations over single rows are in stub_contract.yaml.

-- name: no_stub_twice: no message id is judged on two shards
-- By itself, because expect_compound_columns_to_be_unique takes three times as long over millions of rows. Numbers are sorted, and
-- only what they name is looked at as text; the first thousand of them are enough to stop a run. Without one no row is read again.
WITH twice AS MATERIALIZED (
    SELECT hashtextextended(o.message_id, hashtext(o.topic)) AS number
    FROM {batch} AS run_of
    JOIN staged_stub AS o USING (run_id, stage)
    WHERE o.deliveries > 0
    GROUP BY 1
    HAVING count(*) > 1
    LIMIT 1000
)
SELECT s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE EXISTS (SELECT FROM twice) AND s.deliveries > 0
  AND hashtextextended(s.message_id, hashtext(s.topic)) = ANY (ARRAY(SELECT number FROM twice))
GROUP BY s.topic, s.message_id
HAVING count(*) > 1;

-- name: broken_rows_not_judged: a stub that this judgement put into quarantine is not judged as well
-- What it set aside is staged without deliveries. A run beside it, or its own first try, may have met the row broken, or on two shards.
-- IS TRUE keeps it one scan of either table: staged_stub has no key to be looked up by. A key that is no text is shown as its hexadecimal,
-- which names no stub.
SELECT s.shard, s.topic, s.message_id
FROM {batch} AS run
JOIN staged_stub AS s USING (run_id, stage)
WHERE s.deliveries > 0 AND ((s.shard, s.topic, s.message_id) IN (
        SELECT b.shard, b.topic, b.message_id
        FROM {batch} AS broken_of
        JOIN staged_stub AS b ON b.run_id = broken_of.run_id AND b.stage = broken_of.stage AND b.deliveries = 0
        JOIN quarantine AS q ON q.store = 'shard ' || b.shard AND q.topic = b.topic AND q.message_id = b.message_id
            AND q.last_seen_at >= broken_of.started_at AND q.consumer_group IS NULL AND q.reason <> 'not_utf8')) IS TRUE;
