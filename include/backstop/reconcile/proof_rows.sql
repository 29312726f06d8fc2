-- One row for each delivery of a proof: its verdict, and its standing, which is what a proof counts by.
--
-- For DuckDB, over a judged batch, and instant and group_state as verdict.sql takes them. A proof rests on logs: a stub that an
-- earlier run confirmed is done only while its log is there. If the log was purged since, the proof says so; if the log is not there
-- although nothing was purged, the delivery is not proven. A floor that lies ahead is none up to which logs were purged: it says
-- that nothing can be concluded from an absent log (a mapped inbox that is not proven, or has a row without a readable id).
WITH purged AS (
    SELECT topic, consumer_group, max(log_floor) AS log_floor FROM group_state GROUP BY topic, consumer_group
)
SELECT j.shard, j.topic, j.message_id, j.consumer_group,
    CASE
        WHEN j.verdict = 'VOIDED' THEN 'withdrawn'
        WHEN j.verdict = 'CONFIRMED' AND j.missing = 'log_invalid' THEN 'unknown'
        WHEN j.verdict = 'CONFIRMED' AND j.received AND j.log_state = 'CONSUMED' THEN 'done'
        WHEN j.verdict = 'CONFIRMED' AND j.missing = 'log_purged' AND NOT j.received AND p.log_floor < i.as_of
            THEN 'confirmed_earlier'
        WHEN j.verdict = 'CONFIRMED' AND j.missing = 'log_purged' AND NOT j.received THEN 'unknown'
        WHEN j.verdict = 'CONFIRMED' AND j.missing IN ('logs_unread', 'clock_skew') THEN 'unknown'
        WHEN j.verdict = 'CONFIRMED' THEN 'not_proven'
        WHEN j.verdict IN ('LOST', 'UNSENT', 'EXHAUSTED') THEN 'lost'
        WHEN j.verdict = 'UNKNOWN' THEN 'unknown'
        ELSE 'unfinished'
    END AS standing,
    j.verdict, j.reason, j.status, j.send_count, j.refusals, s.created_at, j.queue_id, j.copy_offset AS queue_offset,
    j.log_state, j.log_updated_at, j.next_look_at, j.missing
FROM judged j
JOIN stub s ON s.stub_id = j.stub_id
CROSS JOIN instant i
LEFT JOIN purged p ON p.topic = j.topic AND p.consumer_group = j.consumer_group
