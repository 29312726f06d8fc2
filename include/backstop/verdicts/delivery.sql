-- Each owed delivery with its group's log row, or the proven absence of one.
--
-- Portable, as verdict.sql. In: owed (the rows of deliveries.sql), found_log (the groups' log rows), answered.
-- Two rows for one key, which only a table without our unique key can have: neither may be taken for the truth.
WITH one_log AS (
    SELECT consumer_group, topic, message_id,
        CASE WHEN count(*) > 1 THEN 'two rows for one key' ELSE max(log_broken) END AS log_broken,
        max(log_state) AS log_state, max(lease_expires_at) AS lease_expires_at,
        max(log_updated_at) AS log_updated_at, max(log_consumed_at) AS log_consumed_at
    FROM found_log
    GROUP BY consumer_group, topic, message_id
)
SELECT
    o.stub_id, o.shard, o.topic, o.message_id, o.consumer_group,
    o.status, o.send_count, o.refusals, o.max_sends,
    o.next_check_at, o.created_at, o.first_seen_at, o.judged_at, o.deliver_at, o.attempted_at, o.sent_at,
    o.attempt_deadline, o.settled, o.broker, o.queue_id, o.queue_offset, o.queue_epoch, o.first_to_all,
    coalesce(a.answered, false) AS log_answered,
    l.message_id IS NOT NULL AS log_found,
    CASE WHEN l.message_id IS NOT NULL THEN l.log_broken IS NULL END AS log_valid,
    l.log_broken, l.log_state, l.lease_expires_at, l.log_updated_at, l.log_consumed_at
FROM owed o
LEFT JOIN answered a ON a.consumer_group = o.consumer_group
LEFT JOIN one_log l
    ON l.consumer_group = o.consumer_group AND l.topic = o.topic AND l.message_id = o.message_id
