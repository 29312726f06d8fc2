-- Which groups owe which stub: one row for each (stub, consumer group) that the group owes.
--
-- Portable, as verdict.sql. Instants are microseconds since 1970.
-- In: stub, policy (one row for each topic and group), group_tag (the tags of groups that filter), start_offset (only_until: from
-- then on another life of the queue may have the same epoch).
-- A stub whose number 1 was stored below the offsets at which the group started is not owed; where that place is not known, it
-- is owed by created_at alone. No later send changes who owes it. Where it is only known between which instants a stub was created
-- (created_at, created_latest), it is owed if it may have been created while the group was active.
SELECT
    s.stub_id, s.shard, s.topic, s.message_id, p.consumer_group,
    s.status, s.send_count, s.refusals, s.max_sends,
    s.next_check_at, s.created_at, s.first_seen_at, s.judged_at, s.deliver_at, s.attempted_at, s.sent_at,
    s.attempt_deadline, s.settled, s.broker, s.queue_id, s.queue_offset, s.queue_epoch, s.first_to_all
FROM stub s
JOIN policy p ON p.topic = s.topic
LEFT JOIN start_offset o
    ON o.topic = s.topic AND o.consumer_group = p.consumer_group
    AND o.broker = coalesce(s.first_broker, p.broker)
    AND o.queue_id = s.first_queue_id AND o.epoch = s.first_queue_epoch
    -- Number 1 is sent within attempt_timeout of the record.
    AND (o.only_until IS NULL OR coalesce(s.created_latest, s.created_at) + p.attempt_timeout < o.only_until)
WHERE (p.active_from IS NULL OR coalesce(s.created_latest, s.created_at) >= p.active_from)
    AND (p.active_until IS NULL OR s.created_at < p.active_until)
    AND (o.start_offset IS NULL OR s.first_queue_offset IS NULL OR s.first_queue_offset >= o.start_offset)
    AND (p.every_tag OR EXISTS (
        SELECT 1 FROM group_tag t
        WHERE t.topic = s.topic AND t.consumer_group = p.consumer_group AND t.tag = s.tag))
