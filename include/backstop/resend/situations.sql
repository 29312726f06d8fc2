-- name: situations: requests with all that a decision reads of them, each combination once (DuckDB)
-- `request`: place (of the topic in a shard), request_id, topic, message_id, send_number, groups, requested_by, asker, asked_by (JSON); `topic_shard`: place, shard,
-- too_old (the latest instant that is too old, in microseconds); `stub`, `delivery`: what a judgement found, numbered.
WITH message AS (
    SELECT topic, message_id, list(shard ORDER BY shard) AS shards,
        arg_min(greatest(created_at, deliver_at), stub_place) AS replay_from, arg_min(send_count <= refusals, stub_place) AS never_sent
    FROM stub
    GROUP BY topic, message_id
), verdicts AS (
    SELECT topic, message_id, list(verdict_number ORDER BY verdict_number) AS verdict_numbers
    FROM delivery
    GROUP BY topic, message_id
), asked AS (
    SELECT *, send_number > min(send_number) OVER (PARTITION BY topic, message_id) AS is_later FROM request
)
SELECT a.place, a.groups, a.asked_by, a.send_number, any_value(a.requested_by) AS requested_by, a.is_later, m.shards, v.verdict_numbers,
    min(m.replay_from) AS replay_from, m.never_sent, list(a.request_id) AS request_ids
FROM asked AS a
JOIN topic_shard AS l ON l.place = a.place
LEFT JOIN message AS m ON m.topic = a.topic AND m.message_id = a.message_id
LEFT JOIN verdicts AS v ON v.topic = a.topic AND v.message_id = a.message_id
GROUP BY a.place, a.groups, a.asked_by, a.send_number, a.asker, a.is_later, m.shards, v.verdict_numbers, m.never_sent, m.replay_from <= l.too_old;
