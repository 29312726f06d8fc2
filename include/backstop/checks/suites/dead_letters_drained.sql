-- What a triage run took out of the brokers' dead-letter queues.

-- name: acknowledged: every page of a queue whose end the run met was acknowledged to the broker
SELECT b.batch_id, b.broker, b.queue
FROM {batch} AS run
JOIN drain_batch AS b ON b.run_id = run.run_id
JOIN drain_mark AS m ON m.run_id = run.run_id AND m.broker = b.broker AND m.queue = b.queue
WHERE b.acknowledged_at IS NULL;

-- name: nothing_left_open: no page that is older than what its queue was drained up to is still open
SELECT b.batch_id, b.broker, b.queue
FROM {batch} AS run
JOIN drain_mark AS m ON m.run_id = run.run_id
JOIN drain_batch AS b ON b.broker = m.broker AND b.queue = m.queue
WHERE b.acknowledged_at IS NULL AND b.stored_at < m.drained_until;

-- name: counted: every page holds as many letters as were stored in it, all of them of its queue
SELECT b.batch_id
FROM {batch} AS run
JOIN drain_batch AS b ON b.run_id = run.run_id
LEFT JOIN dead_letter AS l ON l.batch_id = b.batch_id AND l.broker = b.broker AND l.queue = b.queue
GROUP BY b.batch_id
HAVING count(l.dead_letter_id) <> b.letters;

-- name: contents_whole: every content is there, or aside, with all its bytes
SELECT l.dead_letter_id
FROM {batch} AS run
JOIN drain_batch AS b ON b.run_id = run.run_id
JOIN dead_letter AS l ON l.batch_id = b.batch_id
LEFT JOIN dead_letter_aside AS a ON l.aside AND a.dead_letter_id = l.dead_letter_id
WHERE octet_length(CASE WHEN l.aside THEN a.content ELSE l.content END) IS DISTINCT FROM l.content_bytes;

-- name: once: no letter was stored twice: the same death under a broker's id and under a number after it
SELECT l.dead_letter_id, base.dead_letter_id AS the_same
FROM {batch} AS run
JOIN drain_batch AS b ON b.run_id = run.run_id
JOIN dead_letter AS l ON l.batch_id = b.batch_id AND l.broker_id ~ '#[0-9]+$'
JOIN dead_letter AS base ON base.broker = l.broker AND base.queue = l.queue
    AND base.broker_id = regexp_replace(l.broker_id, '#[0-9]+$', '')
WHERE l.died_at = base.died_at AND l.topic IS NOT DISTINCT FROM base.topic
  AND l.consumer_group IS NOT DISTINCT FROM base.consumer_group AND l.message_id IS NOT DISTINCT FROM base.message_id;
