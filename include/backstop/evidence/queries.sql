-- Named queries on the control database: what the rule needs to remember from earlier runs.

-- name: present_epochs: the present life of each queue of a topic, as last recorded
SELECT queue_id, epoch, accepted, next_offset, read_at
FROM queue_epoch
WHERE broker = %(broker)s AND topic = %(topic)s AND present;

-- name: lives_of_queues: every life of these topics' queues, the one that was seen first first, and when each was seen last
SELECT topic, queue_id, broker, epoch, read_at
FROM queue_epoch
WHERE topic = ANY (%(topics)s::text[])
ORDER BY first_seen_at, epoch;

-- name: settled_progress: for each queue the newest progress recorded at or before an instant
SELECT DISTINCT ON (queue_id) queue_id, epoch, next_offset, passed_until
FROM progress_history
WHERE consumer_group = %(group)s AND broker = %(broker)s AND topic = %(topic)s AND recorded_at <= %(until)s
ORDER BY queue_id, recorded_at DESC;

-- name: retry_last_empty: when the group's retry queue was last seen empty; `until`: by then, null: up to now
SELECT max(recorded_at)
FROM progress_history
WHERE consumer_group = %(group)s AND broker = %(broker)s AND topic = %(topic)s AND retry_pending = 0
    AND (%(until)s::timestamptz IS NULL OR recorded_at <= %(until)s::timestamptz);

-- name: retry_place: how far the group was in its retry queues, by the newest look at or before an instant
SELECT places
FROM retry_place
WHERE consumer_group = %(group)s AND broker = %(broker)s AND topic = %(topic)s AND recorded_at <= %(until)s
ORDER BY recorded_at DESC
LIMIT 1;

-- name: delay_looks: up to when everything that was due had come to a topic's queues, and by when that was seen
SELECT recorded_at, delivered_until FROM delay_look WHERE broker = %(broker)s AND topic = %(topic)s;

-- name: stored_progress: the progress of the last run, which log-derived progress never falls below
SELECT queue_id, epoch, next_offset
FROM progress
WHERE consumer_group = %(group)s AND broker = %(broker)s AND topic = %(topic)s;

-- name: rate_since: for each queue the oldest progress recorded at or after an instant, to measure the rate by
SELECT DISTINCT ON (queue_id) queue_id, epoch, next_offset, recorded_at
FROM progress_history
WHERE consumer_group = %(group)s AND broker = %(broker)s AND topic = %(topic)s AND recorded_at >= %(since)s
ORDER BY queue_id, recorded_at;

-- name: decisions: the deliveries that a person discarded, among these messages
SELECT topic, message_id, consumer_group
FROM delivery_decision
WHERE decision = 'discard' AND (topic, message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: met_on_two_shards: of these messages, those that a run met on more than one shard
SELECT q.topic, q.message_id FROM quarantine q
WHERE q.reason = 'on_two_shards' AND (q.topic, q.message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]));

-- name: every_decision: the deliveries that a person discarded, of these topics
SELECT topic, message_id, consumer_group
FROM delivery_decision
WHERE decision = 'discard' AND topic = ANY (%(topics)s);

-- name: stored_dead_letters: dead letters that were drained and are not decided, of these topics
-- One of an unknown topic may be of any. `ids`: only these messages; null: all of the topics.
SELECT topic, message_id, consumer_group
FROM dead_letter
WHERE state = 'open' AND message_id IS NOT NULL AND (topic = ANY (%(topics)s) OR topic IS NULL)
    AND (%(ids)s::text[] IS NULL OR message_id = ANY (%(ids)s::text[]));

-- name: unaddressed_dead_letters: topics and groups (null: not known) of undecided dead letters without an id
SELECT DISTINCT topic, consumer_group FROM dead_letter
WHERE state = 'open' AND message_id IS NULL AND (topic = ANY (%(topics)s) OR topic IS NULL);

-- name: owed_since: from when each known group owes these topics' messages; null: all of them
SELECT topic, consumer_group, owed_from FROM owed_since WHERE topic = ANY (%(topics)s::text[]);

-- name: drained: brokers that these topics left, and that a person states are drained
SELECT topic, broker FROM drained_broker WHERE topic = ANY (%(topics)s::text[]);

-- name: forget_drained: ... of which the topic has one again: what goes there from now on is judged there
DELETE FROM drained_broker d USING unnest(%(topics)s::text[], %(brokers)s::text[]) AS t (topic, broker)
WHERE d.topic = t.topic AND d.broker = t.broker;

-- name: servers_seen: the servers of a broker, as long as it is of this kind, that runs have seen for a topic
SELECT server FROM broker_server WHERE broker = %(broker)s AND kind = %(kind)s AND topic = %(topic)s;

-- name: topics_seen: the topics of which servers of a broker of this kind were seen
SELECT DISTINCT topic FROM broker_server WHERE broker = %(broker)s AND kind = %(kind)s;

-- name: record_servers: ... and those of this look
INSERT INTO broker_server (broker, kind, topic, server) SELECT %(broker)s, %(kind)s, %(topic)s, unnest(%(servers)s::text[])
ON CONFLICT DO NOTHING;

-- name: control_clock: the one clock that as_of is read from
SELECT clock_timestamp();

-- name: control_restored: up to when logs count as touched before this database was restored; no row: it never was
SELECT reached FROM watermark WHERE subject = 'control restored';

-- name: end_epoch: the present life of a queue is over, unless a run that began after this one saw it
UPDATE queue_epoch SET present = false
WHERE broker = %(broker)s AND topic = %(topic)s AND queue_id = %(queue_id)s AND present AND epoch <> %(epoch)s
    AND coalesce(read_run_id, 0) <= %(run_id)s;

-- name: record_epoch: what a run saw of a queue; the offsets before become the previous ones
-- Nothing while a later run's look says that the queue lives another life.
INSERT INTO queue_epoch (broker, topic, queue_id, epoch, accepted, first_offset, next_offset, read_at, read_run_id)
SELECT %(broker)s, %(topic)s, %(queue_id)s, %(epoch)s, %(accepted)s, %(first_offset)s, %(next_offset)s, %(read_at)s, %(run_id)s
WHERE NOT EXISTS (
    SELECT 1 FROM queue_epoch
    WHERE broker = %(broker)s AND topic = %(topic)s AND queue_id = %(queue_id)s AND present AND epoch <> %(epoch)s)
ON CONFLICT (broker, topic, queue_id, epoch) DO UPDATE SET
    present = true,
    previous_next_offset = queue_epoch.next_offset, previous_read_at = queue_epoch.read_at,
    first_offset = excluded.first_offset, next_offset = excluded.next_offset,
    read_at = excluded.read_at, read_run_id = excluded.read_run_id;

-- name: record_regression: a group's offset went back within one epoch
-- Of two runs beside one another either may have looked first: only what had ended before this run began can be gone back on.
INSERT INTO anomaly (kind, subject, topic, consumer_group, detail, first_run_id)
SELECT 'REGRESSION', concat_ws('/', %(group)s::text, %(topic)s::text, %(queue_id)s::text, %(epoch)s::text, next_offset::text),
    %(topic)s, %(group)s, 'queue ' || %(queue_id)s::text || ' from ' || next_offset || ' to ' || %(next_offset)s::text, %(run_id)s
FROM progress
WHERE consumer_group = %(group)s AND broker = %(broker)s AND topic = %(topic)s AND queue_id = %(queue_id)s
    AND epoch = %(epoch)s AND next_offset > %(next_offset)s
    AND EXISTS (
        SELECT 1 FROM run o JOIN run m ON m.run_id = %(run_id)s
        WHERE o.run_id = progress.run_id AND (o.run_id = m.run_id OR o.finished_at <= m.as_of))
ON CONFLICT (kind, subject) DO UPDATE SET times = anomaly.times + 1, last_seen_at = clock_timestamp();

-- name: record_progress: how far a group had got in a queue when this run looked; of runs beside one another, the farther
INSERT INTO progress (consumer_group, broker, topic, queue_id, epoch, next_offset, passed_until, retry_pending, recorded_at, run_id)
VALUES (%(group)s, %(broker)s, %(topic)s, %(queue_id)s, %(epoch)s, %(next_offset)s, %(passed_until)s, %(retry_pending)s, %(recorded_at)s, %(run_id)s)
ON CONFLICT (consumer_group, broker, topic, queue_id, epoch) DO UPDATE SET
    next_offset = CASE WHEN EXISTS (
            SELECT 1 FROM run o JOIN run m ON m.run_id = excluded.run_id
            WHERE o.run_id = progress.run_id AND (o.run_id = m.run_id OR o.finished_at <= m.as_of))
        THEN excluded.next_offset ELSE greatest(progress.next_offset, excluded.next_offset) END,
    passed_until = excluded.passed_until, retry_pending = excluded.retry_pending,
    recorded_at = excluded.recorded_at, run_id = excluded.run_id;

-- name: record_history: the same, kept for settled progress
INSERT INTO progress_history (consumer_group, broker, topic, queue_id, epoch, next_offset, passed_until, retry_pending, recorded_at, run_id)
VALUES (%(group)s, %(broker)s, %(topic)s, %(queue_id)s, %(epoch)s, %(next_offset)s, %(passed_until)s, %(retry_pending)s, %(recorded_at)s, %(run_id)s);

-- name: record_retry_place: how far a group was in its retry queues when this run looked
INSERT INTO retry_place (consumer_group, broker, topic, recorded_at, places)
VALUES (%(group)s, %(broker)s, %(topic)s, %(recorded_at)s, %(places)s);

-- name: record_delay_look: up to when everything that was due had come by this look, if farther than any look before said
INSERT INTO delay_look (broker, topic, recorded_at, delivered_until)
SELECT %(broker)s, %(topic)s, %(recorded_at)s, %(delivered_until)s
WHERE NOT EXISTS (
    SELECT 1 FROM delay_look
    WHERE broker = %(broker)s AND topic = %(topic)s AND delivered_until >= %(delivered_until)s);

-- name: forget_delay_looks: what is older than any progress that can be settled
DELETE FROM delay_look WHERE topic = %(topic)s AND recorded_at < %(before)s;

-- name: forget_retry_places: what no look can need any more
-- The newest of what is older stays, however old: it is what a look finds that comes long after the one before.
DELETE FROM retry_place o WHERE o.consumer_group = %(group)s AND o.topic = %(topic)s AND o.recorded_at < %(before)s
    AND EXISTS (
        SELECT FROM retry_place n
        WHERE n.consumer_group = %(group)s AND n.topic = %(topic)s AND n.broker = o.broker
            AND n.recorded_at > o.recorded_at AND n.recorded_at < %(before)s);

-- name: forget_history: what no settled progress can need any more
-- Of what is older, the newest of each queue stays, as above; and the newest that found the group's retry queue empty, at each broker:
-- while messages wait in it, settled progress rests on when that was.
DELETE FROM progress_history h WHERE h.consumer_group = %(group)s AND h.topic = %(topic)s AND h.recorded_at < %(before)s
    AND EXISTS (
        SELECT FROM progress_history n
        WHERE n.consumer_group = %(group)s AND n.topic = %(topic)s AND n.broker = h.broker AND n.queue_id = h.queue_id
            AND n.recorded_at > h.recorded_at AND n.recorded_at < %(before)s)
    AND h.recorded_at IS DISTINCT FROM (
        SELECT max(e.recorded_at) FROM progress_history e
        WHERE e.broker = h.broker AND e.consumer_group = %(group)s AND e.topic = %(topic)s AND e.retry_pending = 0
            AND e.recorded_at < %(before)s
    );
