-- The place, the broker and the groups of number 1, which no later send changes: they say who owes a message, and whether the
-- stub tells by itself what became of a message that was sent once. While send_count is 1 the place is in the columns of the
-- newest send; the claim of number 2 keeps it here. A producer's own number 1 goes to every group (first_groups null).
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS first_broker text;
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS first_queue_id integer;
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS first_queue_offset bigint;
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS first_queue_epoch text;
ALTER TABLE message_stub ADD COLUMN IF NOT EXISTS first_groups text[];
-- What is still open, and so may yet be sent again; what is closed owes nothing to anybody.
UPDATE message_stub s SET
    first_broker = CASE WHEN s.send_count > 1 THEN s.broker END,
    first_queue_id = CASE WHEN s.send_count > 1 THEN a.queue_id END,
    first_queue_offset = CASE WHEN s.send_count > 1 THEN a.queue_offset END,
    first_queue_epoch = CASE WHEN s.send_count > 1 THEN a.queue_epoch END,
    first_groups = a.groups
FROM send_attempt a
WHERE a.topic = s.topic AND a.message_id = s.message_id AND a.send_number = 1
    AND s.status IN ('pending', 'exhausted') AND (s.send_count > 1 OR a.groups IS NOT NULL);
UPDATE message_stub SET first_groups = attempt_groups
WHERE attempt_token IS NOT NULL AND send_count = 1 AND attempt_groups IS NOT NULL;
