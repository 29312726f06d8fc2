-- One row for each delivery of a proof: its verdict, and its standing, which is what a proof counts by.
--
-- For DuckDB, over a judged batch. A proof rests on logs: a stub that an earlier run confirmed is done only
-- while its log is there; when it was purged since, that is said; when it is not there though nothing was purged, it is not
-- proven.
SELECT j.shard, j.topic, j.message_id, j.consumer_group,
    CASE
        WHEN j.verdict = 'VOIDED' THEN 'withdrawn'
        WHEN j.verdict = 'CONFIRMED' AND j.missing = 'log_invalid' THEN 'unknown'
        WHEN j.verdict = 'CONFIRMED' AND j.received AND j.log_state = 'CONSUMED' THEN 'done'
        WHEN j.verdict = 'CONFIRMED' AND j.missing = 'log_purged' AND NOT j.received THEN 'confirmed_earlier'
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
