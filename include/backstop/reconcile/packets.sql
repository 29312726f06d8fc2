-- Queries over rows on their way into packets, for DuckDB in the executors. All of them deal keys to the same buckets.
-- `at` is a row's place in the table that is dealt.

-- name: stubs: of each stub its bucket, and how it breaks its contract, null when it keeps it
-- Broken: a topic or id longer than the contract allows, text that is no UTF-8, no id, no topic, a topic that no policy names,
-- a status that nobody knows, more refusals than sends or fewer than none, or an instant from which no horizon would ever come.
SELECT s.at, (hash(s.topic, s.message_id) % d.buckets)::int AS bucket,
    CASE
        WHEN strlen(s.message_id) > b.id_bytes OR strlen(s.topic) > b.topic_bytes THEN 'key_too_long'
        WHEN s.status = 'unreadable' THEN 'not_utf8'
        WHEN trim(coalesce(s.message_id, ''), ' ') = '' THEN 'no_message_id'
        WHEN trim(coalesce(s.topic, ''), ' ') = '' THEN 'no_topic'
        WHEN s.topic NOT IN (SELECT topic FROM known_topic) THEN 'topic_without_policy'
        WHEN NOT coalesce(s.status IN (SELECT status FROM met_status), false) THEN 'unknown_status'
        WHEN coalesce(s.send_count < s.refusals OR s.refusals < 0, true) THEN 'more_refusals_than_sends'
        WHEN s.send_count >= b.last_number THEN 'no_number_left'
        WHEN coalesce(s.created_at <= b.earliest, true) OR s.next_check_at IS NULL THEN 'no_time'
        WHEN greatest(s.created_at, s.next_check_at, s.attempted_at, s.deliver_at) >= b.latest THEN 'no_time'
        WHEN s.attempted_at <= b.earliest THEN 'no_time'
    END AS broken
FROM part s CROSS JOIN bound b CROSS JOIN dealt d;

-- name: read: what was read, by topic and status; oldest: all but one in a hundred were created since
SELECT shard, topic, status, broken IS NULL AS sound, count(*) AS rows, quantile_disc(created_at, 0.01) AS oldest,
    list(DISTINCT broker) AS brokers
FROM part GROUP BY ALL;

-- name: attempts: the bucket of each attempt
SELECT a.at, (hash(a.topic, a.message_id) % d.buckets)::int AS bucket FROM part a CROSS JOIN dealt d;

-- name: logs: the bucket of each log row
SELECT l.at, (hash(l.topic, l.message_id) % d.buckets)::int AS bucket FROM part l CROSS JOIN dealt d;

-- name: sent_to: where attempts went
SELECT DISTINCT topic, broker FROM part WHERE broker IS NOT NULL;

-- name: met_twice: whether a key has more than one row
SELECT 1 FROM part GROUP BY topic, message_id HAVING count(*) > 1 LIMIT 1;

-- name: numbered: the stubs of a bucket in which a key is met twice, numbered; one id on two shards is broken, because which of
-- the two promises is the real one, a machine cannot know. A key that is no text is shown as its hexadecimal, which may be the text of
-- another stub's key: it is not that stub.
SELECT s.* EXCLUDE (broken), row_number() OVER (ORDER BY s.shard, s.topic, s.message_id) AS stub_id,
    coalesce(s.broken, CASE
        WHEN count(*) FILTER (WHERE s.broken IS DISTINCT FROM 'not_utf8') OVER (PARTITION BY s.topic, s.message_id) > 1
            THEN 'on_two_shards' END) AS broken
FROM (
    -- A store without snapshots may give a row twice: its newer version stays.
    SELECT * FROM part
    QUALIFY row_number() OVER (
        PARTITION BY shard, topic, message_id, broken IS NOT DISTINCT FROM 'not_utf8' ORDER BY send_count DESC, next_check_at DESC NULLS LAST) = 1
) s;

-- name: not_proven: the owed deliveries that the scan did not show to be done
SELECT o.consumer_group, o.topic, o.message_id FROM owed o ANTI JOIN scanned l
    ON l.consumer_group = o.consumer_group AND l.topic = o.topic AND l.message_id = o.message_id;

-- name: proven: the log row of each owed delivery among those that were scanned, every one of which shows it to be done; another
-- program's table may have several of a key
SELECT l.* FROM scanned l SEMI JOIN owed o
    ON l.consumer_group = o.consumer_group AND l.topic = o.topic AND l.message_id = o.message_id
QUALIFY row_number() OVER (PARTITION BY l.consumer_group, l.topic, l.message_id) = 1;

-- name: with_attempts: each stub with the list of its attempts' rows, null when it has none
SELECT s.*, a.attempts
FROM part s LEFT JOIN (
    SELECT topic, message_id, list(struct_pack(
        topic := topic, message_id := message_id, send_number := send_number, consumer_group := consumer_group,
        outcome := outcome, broker := broker, queue_id := queue_id, queue_offset := queue_offset, queue_epoch := queue_epoch,
        started_at := started_at, finished_at := finished_at)) AS attempts
    FROM attempt GROUP BY topic, message_id
) a ON a.topic = s.topic AND a.message_id = s.message_id;
