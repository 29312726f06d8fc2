-- What runs remember of a producer's mapped table, in the control database. Every instant but created_at is that database's.

-- name: clock: the control database's time
SELECT clock_timestamp();

-- name: last_look: the newest complete look at a store
SELECT mapping, server, began_at, ended_at, window_from, newest_at, rows_read, left_out
FROM mapped_look WHERE store = %(store)s::text FOR UPDATE;

-- name: read_last_look: ... without a lock
SELECT mapping, server, began_at, ended_at, window_from, newest_at, rows_read, left_out
FROM mapped_look WHERE store = %(store)s::text;

-- name: note_brokers: at which broker each topic is; of a topic that is noted first, also where its queues were seen before
WITH present AS (
    SELECT * FROM unnest(%(at_topics)s::text[], %(at_brokers)s::text[]) AS t (topic, broker)
),
newest AS (
    SELECT DISTINCT ON (b.topic) b.* FROM topic_broker b JOIN present t ON t.topic = b.topic
    ORDER BY b.topic, b.seen_until DESC, b.seen_from DESC
)
INSERT INTO topic_broker AS b (topic, broker, seen_from, seen_until)
SELECT t.topic, t.broker,
    CASE WHEN n.topic IS NULL THEN timestamptz '-infinity' WHEN n.broker = t.broker THEN n.seen_from ELSE n.seen_until END,
    %(ended_at)s::timestamptz
FROM present t LEFT JOIN newest n ON n.topic = t.topic
UNION ALL
SELECT q.topic, q.broker, min(q.first_seen_at), max(coalesce(q.read_at, q.first_seen_at))
FROM queue_epoch q JOIN present t ON t.topic = q.topic AND t.broker <> q.broker
WHERE NOT EXISTS (SELECT 1 FROM newest n WHERE n.topic = q.topic)
GROUP BY q.topic, q.broker
ORDER BY 1, 2
ON CONFLICT (topic, broker, seen_from) DO UPDATE SET seen_until = greatest(b.seen_until, excluded.seen_until);

-- name: brokers_of: at which brokers a copy of the row `r` may be, the topic's newest one first
-- Its relay may have moved up to a day before or after the topic did here; what may be of any age may have gone to any of them.
coalesce(p.brokers, ARRAY(
    SELECT h.broker FROM topic_broker h
    WHERE h.topic = r.topic AND h.seen_until >= coalesce(r.committed_after, '-infinity') - interval '1 day'
        AND h.seen_from <= greatest(r.state_seen_at, r.attempted_at) + interval '1 day'
    GROUP BY h.broker ORDER BY max(h.seen_until) DESC, h.broker));

-- name: only_broker: ... joined to `r`: the same for all rows of a topic that was never moved
LEFT JOIN (
    SELECT b.topic, ARRAY[min(b.broker)] AS brokers FROM topic_broker b GROUP BY b.topic HAVING min(b.broker) = max(b.broker)
) p ON p.topic = r.topic;

-- name: lives: by topic, at which brokers a copy of an open row may be, or of one that is not met yet; looks do not say in which queue
SELECT f.topic, b.broker
FROM (
    SELECT r.topic, {brokers_of} AS brokers FROM mapped_stub r {only_broker}
    WHERE r.store = %(store)s::text AND r.topic = ANY (%(topics)s::text[]) AND r.status = 'pending') f
CROSS JOIN LATERAL unnest(f.brokers) AS b (broker)
UNION
SELECT b.topic, b.broker FROM topic_broker b
WHERE b.topic = ANY (%(topics)s::text[]) AND b.seen_until >= clock_timestamp() - interval '1 day'
    AND EXISTS (SELECT 1 FROM topic_broker o WHERE o.topic = b.topic AND o.broker <> b.broker);

-- name: make_room: where the rows of a look are put
CREATE TEMPORARY TABLE mapped_row (topic text, message_id text, created_us bigint, state text, row_version text) ON COMMIT DROP;

-- name: one_row_a_key: ... one row for each key; a key of two rows is nobody's promise
CREATE TEMPORARY TABLE mapped_seen ON COMMIT DROP AS
SELECT coalesce(topic, '') AS topic, coalesce(message_id, '') AS message_id,
    least(%(ended_at)s::timestamptz, min(timestamptz 'epoch' + created_us * interval '1 microsecond')) AS created_at,
    CASE WHEN count(*) > 1 THEN 'not_unique' ELSE min(state) END AS state,
    md5(string_agg(coalesce(row_version, ''), ' ' ORDER BY row_version)) AS row_version
FROM mapped_row
WHERE coalesce(octet_length(topic), 0) <= %(topic_bytes)s AND coalesce(octet_length(message_id), 0) <= %(id_bytes)s
GROUP BY 1, 2;

-- name: left_out: ... and those that no key of the control database holds, the first of them: as much of each as shows it, and a digest
SELECT DISTINCT left(coalesce(topic, ''), %(topic_bytes)s + 1), left(coalesce(message_id, ''), %(id_bytes)s + 1),
    encode(sha256(convert_to(coalesce(topic, '') || chr(1) || coalesce(message_id, ''), 'UTF8')), 'hex')
FROM mapped_row
WHERE octet_length(topic) > %(topic_bytes)s OR octet_length(message_id) > %(id_bytes)s
LIMIT %(listed)s;

-- name: slot_is_past: ... of which the relay's slot is past the end that the log had when a look first met them
UPDATE mapped_seen s SET state = 'sent' FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.topic = s.topic AND m.message_id = s.message_id AND s.state = 'unsent'
    AND m.met_at_wal <= %(slot_at)s::pg_lsn;

-- name: is_open_again: whether a row `m` of a closed message that is met as `excluded` has to be judged again
-- Two rows of a message that was done, in two looks: which of them the log is about, nobody knows. In one look they may be the same row
-- on its way to an archive.
((m.status = 'exhausted' AND (m.state, m.row_version) <> (excluded.state, excluded.row_version))
    OR (m.status IN ('confirmed', 'no_taker') AND excluded.state = 'not_unique'
        AND (m.state, m.row_version) = (excluded.state, excluded.row_version)));

-- name: remember: rows that were met: new ones, and what changed of others
-- A row is new only where the look before would have met it. A changed row may stand for another send: its state counts from now.
INSERT INTO mapped_stub AS m (store, topic, message_id, state, row_version, created_at, committed_after, first_seen_at, state_seen_at,
    last_seen_at, next_check_at, met_at_wal)
SELECT %(store)s::text, s.topic, s.message_id, s.state, s.row_version, s.created_at,
    CASE WHEN s.created_at >= %(known_from)s::timestamptz THEN %(known_since)s::timestamptz END,
    %(ended_at)s::timestamptz, %(ended_at)s::timestamptz, %(ended_at)s::timestamptz, %(as_of)s::timestamptz, %(wal)s::pg_lsn
FROM mapped_seen s
ORDER BY s.topic, s.message_id
ON CONFLICT (store, topic, message_id) DO UPDATE SET
    state = excluded.state, row_version = excluded.row_version, last_seen_at = excluded.last_seen_at,
    state_seen_at = CASE WHEN (m.state, m.row_version) = (excluded.state, excluded.row_version)
        THEN m.state_seen_at ELSE excluded.state_seen_at END,
    status = CASE WHEN {is_open_again} THEN 'pending' ELSE m.status END,
    next_check_at = CASE WHEN {is_open_again} THEN excluded.next_check_at ELSE m.next_check_at END;

-- name: remember_numbers: what the overlay says of rows that were met: a status that is not final is the overlay's, once it has the row
UPDATE mapped_stub m SET
    send_count = greatest(m.send_count, o.send_count),
    refusals = CASE WHEN o.send_count >= m.send_count THEN o.refusals ELSE m.refusals END,
    max_sends = CASE WHEN o.send_count >= m.send_count THEN o.max_sends ELSE m.max_sends END,
    attempted_at = CASE WHEN o.send_count >= m.send_count THEN o.attempted_at ELSE m.attempted_at END,
    attempt_deadline = CASE WHEN o.send_count >= m.send_count THEN o.attempt_deadline ELSE m.attempt_deadline END,
    number_version = CASE WHEN o.send_count >= m.send_count THEN o.number_version ELSE m.number_version END,
    next_check_at = o.next_check_at,
    -- What changed since it was given up is judged again.
    status = CASE WHEN m.status IN ('confirmed', 'voided') OR (m.status = 'pending' AND o.status = 'exhausted')
        THEN m.status ELSE o.status END,
    -- What the overlay alone has closed so far was closed there: a restore of a log asks when.
    updated_at = CASE WHEN m.status IN ('confirmed', 'voided', o.status) OR (m.status = 'pending' AND o.status = 'exhausted')
        THEN m.updated_at ELSE greatest(m.updated_at, o.updated_at) END
FROM unnest(%(numbered_topics)s::text[], %(numbered_ids)s::text[], %(statuses)s::text[], %(send_counts)s::integer[],
        %(refusals)s::integer[], %(max_sends)s::integer[], %(next_checks)s::timestamptz[], %(attempted_ats)s::timestamptz[],
        %(attempt_deadlines)s::timestamptz[], %(number_versions)s::text[], %(updates)s::timestamptz[])
    AS o (topic, message_id, status, send_count, refusals, max_sends, next_check_at, attempted_at, attempt_deadline, number_version,
        updated_at)
WHERE m.store = %(store)s::text AND m.topic = o.topic AND m.message_id = o.message_id;

-- name: remember_attempts: ... and how numbers ended, each once
INSERT INTO mapped_attempt (store, topic, message_id, send_number, groups, outcome, broker, queue_id, queue_offset, queue_epoch,
    started_at, finished_at)
SELECT m.store, m.topic, m.message_id, a.send_number, CASE WHEN a.groups IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(a.groups)) END,
    a.outcome, a.broker, a.queue_id, a.queue_offset, a.queue_epoch, a.started_at, a.finished_at
FROM jsonb_to_recordset(%(attempts)s::jsonb) AS a(topic text, message_id text, send_number integer, groups jsonb, outcome text, broker text,
    queue_id integer, queue_offset bigint, queue_epoch text, started_at timestamptz, finished_at timestamptz)
JOIN mapped_stub m ON m.store = %(store)s::text AND m.topic = a.topic AND m.message_id = a.message_id
ON CONFLICT DO NOTHING;

-- name: behind: how many numbers and how many withdrawals looks remember that the overlay does not know any more
-- A withdrawn row that is not there may have been purged.
SELECT count(*) FILTER (WHERE m.status IN ('pending', 'exhausted') AND m.send_count > coalesce(o.send_count, 1)),
    count(*) FILTER (WHERE m.status = 'voided' AND o.status <> 'voided')
FROM mapped_stub m
LEFT JOIN unnest(%(numbered_topics)s::text[], %(numbered_ids)s::text[], %(statuses)s::text[], %(send_counts)s::integer[])
    AS o (topic, message_id, status, send_count)
    ON o.topic = m.topic AND o.message_id = m.message_id
WHERE m.store = %(store)s::text AND (m.send_count > 1 OR m.status = 'voided');

-- name: overtaken: what of these rows of the overlay is confirmed, or was given up and has changed since; and the time
SELECT o.topic, o.message_id, o.status, m.status, o.send_count, clock_timestamp()
FROM unnest(%(numbered_topics)s::text[], %(numbered_ids)s::text[], %(statuses)s::text[], %(send_counts)s::integer[])
    AS o (topic, message_id, status, send_count)
JOIN mapped_stub m ON m.store = %(store)s::text AND m.topic = o.topic AND m.message_id = o.message_id
WHERE m.status = 'confirmed' OR (m.status = 'pending' AND o.status = 'exhausted');

-- name: record_look: this look is the newest
INSERT INTO mapped_look (store, mapping, mapped_at, server, began_at, ended_at, window_from, newest_at, rows_read, left_out, run_id)
SELECT %(store)s::text, %(mapping)s::text, %(began_at)s::timestamptz, %(server)s::text, %(began_at)s::timestamptz, %(ended_at)s::timestamptz,
    %(window_from)s::timestamptz, (SELECT max(timestamptz 'epoch' + created_us * interval '1 microsecond') FROM mapped_row),
    (SELECT count(*) FROM mapped_row),
    (SELECT count(*) FROM mapped_row WHERE octet_length(topic) > %(topic_bytes)s OR octet_length(message_id) > %(id_bytes)s),
    %(run_id)s::bigint
ON CONFLICT (store) DO UPDATE SET
    mapped_at = CASE WHEN mapped_look.mapping = excluded.mapping THEN mapped_look.mapped_at ELSE excluded.mapped_at END,
    mapping = excluded.mapping, server = excluded.server, began_at = excluded.began_at, ended_at = excluded.ended_at,
    window_from = excluded.window_from, newest_at = excluded.newest_at, rows_read = excluded.rows_read,
    left_out = excluded.left_out, run_id = excluded.run_id;

-- name: of_another_mapping: rows that only looks by another mapping met: perhaps nothing has their key, so that they are neither sent nor gone
UPDATE mapped_stub m SET state = 'unsent', state_seen_at = %(ended_at)s::timestamptz
FROM mapped_look l
WHERE l.store = %(store)s::text AND m.store = l.store AND m.last_seen_at < l.mapped_at
    AND m.state <> 'unsent' AND m.status NOT IN ('confirmed', 'voided');

-- name: remember_gone: rows that the look would have met and did not; what was done with them before that, nobody saw
UPDATE mapped_stub m SET
    state = CASE WHEN m.state = 'sent' THEN 'gone_sent' ELSE 'gone_unsent' END, state_seen_at = %(ended_at)s::timestamptz
FROM mapped_look l
WHERE l.store = %(store)s::text AND m.store = l.store AND m.last_seen_at >= l.mapped_at AND m.last_seen_at < %(ended_at)s::timestamptz
    AND m.created_at >= %(window_from)s::timestamptz AND m.state IN ('sent', 'unsent', 'unknown_state', 'not_unique');

-- name: forget: closed rows that no look has met for as long as closed stubs are kept
DELETE FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.status IN ('confirmed', 'voided', 'no_taker')
    AND m.last_seen_at < %(ended_at)s::timestamptz - %(kept)s::interval;

-- name: proves: whether a message of the topic was found done in each log since the table is mapped so, one that a look by this mapping met
SELECT EXISTS (
    SELECT 1 FROM mapped_look l JOIN mapped_stub m ON m.store = l.store
    WHERE l.store = %(store)s::text AND l.mapping = %(mapping)s::text AND m.topic = %(topic)s::text
        AND m.status = 'confirmed' AND m.updated_at >= l.mapped_at AND m.last_seen_at > l.mapped_at);

-- name: count_due: how many remembered rows are due, counted up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM mapped_stub m
    WHERE m.store = %(store)s::text AND m.status = 'pending' AND m.next_check_at <= %(as_of)s::timestamptz
        AND (%(topics)s::text[] IS NULL OR m.topic = ANY (%(topics)s::text[]))
        AND (%(created_from)s::timestamptz IS NULL OR m.created_at >= %(created_from)s::timestamptz)
        AND (%(created_to)s::timestamptz IS NULL OR m.created_at < %(created_to)s::timestamptz)
    LIMIT %(limit)s) due;

-- name: bounds: how many are due, and the instants (as text) that cut them into ranges of equal size
SELECT count(*), (percentile_disc(%(fractions)s::float8[]) WITHIN GROUP (ORDER BY m.next_check_at))::text[]
FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.status = 'pending' AND m.next_check_at <= %(as_of)s::timestamptz
    AND (%(topics)s::text[] IS NULL OR m.topic = ANY (%(topics)s::text[]))
    AND (%(created_from)s::timestamptz IS NULL OR m.created_at >= %(created_from)s::timestamptz)
    AND (%(created_to)s::timestamptz IS NULL OR m.created_at < %(created_to)s::timestamptz);

-- name: stub_columns: begins a table for the rule: the columns of STUB_COLUMNS, over `f` with what is known of each row
-- Sent: a copy was stored by the time that a look met the row so. Any other state: one is under way, whatever the time is. The same
-- dates the newest number, wherever its own attempt does not (attempt_columns). created_at is the earliest instant of its commit, and
-- created_latest the latest: by its own time, which may be in another zone, only where the row may be of any age.
-- Which broker its relay sent it to is not in the row. Where several are possible, its attempts tell, as `first_to_all` says.
-- What is gone can neither be read nor set back: its budget is used.
SELECT f.store AS shard, f.topic, f.message_id, NULL::text AS tag,
    CASE WHEN f.state IN ('unknown_state', 'not_unique') AND f.status = 'pending' THEN f.state ELSE f.status END AS status,
    f.send_count, f.refusals,
    CASE WHEN %(repairs)s AND f.state IN ('gone_sent', 'gone_unsent')
        THEN least(f.max_sends, f.send_count - f.refusals) ELSE f.max_sends END AS max_sends,
    (extract(epoch FROM f.next_check_at) * 1000000)::bigint AS next_check_at,
    (extract(epoch FROM greatest(timestamptz '0001-01-01 00:00:00+00',
        least(f.created_at, coalesce(f.committed_after, f.created_at - %(doubt)s::interval)))) * 1000000)::bigint AS created_at,
    (extract(epoch FROM f.first_seen_at) * 1000000)::bigint AS first_seen_at,
    (extract(epoch FROM f.judged_at) * 1000000)::bigint AS judged_at,
    NULL::bigint AS deliver_at,
    (extract(epoch FROM greatest(f.attempted_at, CASE WHEN f.state IN ('sent', 'gone_sent', 'gone_unsent') THEN f.state_seen_at
        ELSE coalesce(f.first_seen_at, f.state_seen_at) END)) * 1000000)::bigint AS attempted_at,
    CASE WHEN f.state IN ('sent', 'gone_sent') AND f.send_count = 1
        THEN (extract(epoch FROM f.state_seen_at) * 1000000)::bigint END AS sent_at,
    (extract(epoch FROM CASE WHEN f.state IN ('sent', 'gone_sent', 'gone_unsent')
        THEN greatest(f.state_seen_at, coalesce(f.attempt_deadline, f.attempted_at))
        ELSE clock_timestamp() + interval '1 day' END) * 1000000)::bigint AS attempt_deadline,
    f.state IN ('sent', 'gone_sent', 'gone_unsent') AND f.attempt_deadline IS NULL AS settled,
    f.brokers[1] AS broker, NULL::integer AS queue_id, NULL::bigint AS queue_offset, NULL::text AS queue_epoch,
    NULL::text AS first_broker, NULL::integer AS first_queue_id, NULL::bigint AS first_queue_offset,
    NULL::text AS first_queue_epoch, cardinality(f.brokers) < 2 AS first_to_all,
    (extract(epoch FROM CASE WHEN f.first_seen_at IS NULL THEN clock_timestamp() WHEN f.committed_after IS NOT NULL THEN f.first_seen_at
        ELSE least(f.first_seen_at, greatest(timestamptz '0001-01-01 00:00:00+00', f.created_at) + %(zones)s::interval) END)
        * 1000000)::bigint AS created_latest;

-- name: of_due: ... of the remembered rows that are due, then cut_at, by which the scan is cut
, f.next_check_at AS cut_at
FROM (SELECT r.*, {brokers_of} AS brokers FROM mapped_stub r {only_broker}) f
WHERE f.store = %(store)s::text AND f.status = 'pending' AND f.next_check_at <= %(as_of)s::timestamptz
    AND (%(topics)s::text[] IS NULL OR f.topic = ANY (%(topics)s::text[]))
    AND (%(created_from)s::timestamptz IS NULL OR f.created_at >= %(created_from)s::timestamptz)
    AND (%(created_to)s::timestamptz IS NULL OR f.created_at < %(created_to)s::timestamptz);

-- name: attempt_columns: begins a table for the rule: the columns of ATTEMPT_COLUMNS, one row an addressed group
SELECT f.topic, f.message_id, a.send_number, g.consumer_group, a.outcome, a.broker, a.queue_id, a.queue_offset, a.queue_epoch,
    (extract(epoch FROM a.started_at) * 1000000)::bigint AS started_at,
    (extract(epoch FROM a.finished_at) * 1000000)::bigint AS finished_at;

-- name: number_one: ... of the row `f`: its own relay's number, which looks date, at each broker that it may have gone to
SELECT 1 AS send_number, NULL::text[] AS groups, CASE WHEN f.state IN ('sent', 'gone_sent') THEN 'sent' ELSE 'unknown' END AS outcome,
    b.broker, NULL::integer AS queue_id, NULL::bigint AS queue_offset, NULL::text AS queue_epoch, s.sent_by AS started_at,
    s.sent_by AS finished_at
FROM unnest(CASE WHEN f.brokers = '{}' THEN ARRAY[NULL::text] ELSE f.brokers END) AS b (broker)
CROSS JOIN (SELECT CASE WHEN f.state IN ('sent', 'gone_sent', 'gone_unsent') THEN f.state_seen_at ELSE clock_timestamp() END AS sent_by) s;

-- name: later_numbers: ... and those that were handed out beside it
SELECT m.send_number, m.groups, m.outcome, m.broker, m.queue_id, m.queue_offset, m.queue_epoch, m.started_at, m.finished_at
FROM mapped_attempt m
WHERE m.store = f.store AND m.topic = f.topic AND m.message_id = f.message_id AND m.send_number > 1;

-- name: attempts_of_due: ... of the remembered rows that are due
-- The newest number tells by its attempt only while the row is as it was when the number was handed out: a row that was set back,
-- by Backstop or by a person, is dated by looks.
, f.next_check_at AS cut_at
FROM (SELECT r.*, {brokers_of} AS brokers FROM mapped_stub r {only_broker}) f
CROSS JOIN LATERAL (
    {number_one}
    UNION ALL
    {later_numbers} AND (m.send_number < f.send_count OR (f.attempt_deadline IS NULL AND f.number_version = f.row_version
        AND f.state IN ('sent', 'gone_sent', 'gone_unsent')))) a
LEFT JOIN LATERAL unnest(a.groups) AS g (consumer_group) ON true
WHERE f.store = %(store)s::text AND f.status = 'pending' AND f.next_check_at <= %(as_of)s::timestamptz
    AND (f.send_count > 1 OR cardinality(f.brokers) > 1)
    AND (%(topics)s::text[] IS NULL OR f.topic = ANY (%(topics)s::text[]))
    AND (%(created_from)s::timestamptz IS NULL OR f.created_at >= %(created_from)s::timestamptz)
    AND (%(created_to)s::timestamptz IS NULL OR f.created_at < %(created_to)s::timestamptz);

-- name: attempts_of_keys: ... of the messages asked for, as they are remembered: number 1, and, if `later_numbers`, those after it but
-- for the newest
FROM (
    SELECT r.*, {brokers_of} AS brokers
    FROM (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)
    JOIN mapped_stub r ON r.store = %(store)s::text AND r.topic = k.topic AND r.message_id = k.message_id {only_broker}) f
CROSS JOIN LATERAL (
    {number_one}
    UNION ALL
    {later_numbers} AND m.send_number < f.send_count AND %(later_numbers)s) a
LEFT JOIN LATERAL unnest(a.groups) AS g (consumer_group) ON true;

-- name: of_keys: ... of the messages asked for, as their table (met) and the overlay (numbered) have them now, and as they are remembered
-- What changed since a look met it counts from now, at whichever broker.
FROM (
    SELECT r.*, CASE WHEN r.as_met THEN {brokers_of} ELSE ({brokers_of})[1:1] END AS brokers FROM (
    SELECT %(store)s::text AS store, k.topic, k.message_id,
        CASE WHEN s.state IS NOT NULL THEN s.state -- as the slot is now
            WHEN m.state = 'sent' THEN 'gone_sent' WHEN m.state = 'unsent' THEN 'gone_unsent' ELSE m.state END AS state,
        coalesce(m.created_at, least(clock_timestamp(), s.created_at)) AS created_at, m.committed_after, m.first_seen_at,
        c.as_met, CASE WHEN c.as_met THEN m.state_seen_at ELSE clock_timestamp() END AS state_seen_at,
        CASE WHEN m.status IN ('confirmed', 'voided') THEN m.status ELSE coalesce(o.status, m.status, 'pending') END AS status,
        coalesce(o.next_check_at, m.next_check_at, least(clock_timestamp(), s.created_at)) AS next_check_at, m.judged_at,
        -- An overlay that was restored knows less than looks remember: no number is handed out twice.
        greatest(m.send_count, o.send_count, 1) AS send_count,
        CASE WHEN o.send_count >= coalesce(m.send_count, 1) THEN o.refusals ELSE coalesce(m.refusals, 0) END AS refusals,
        CASE WHEN o.send_count >= coalesce(m.send_count, 1) THEN o.max_sends ELSE m.max_sends END AS max_sends,
        CASE WHEN o.send_count >= coalesce(m.send_count, 1) THEN o.attempted_at ELSE m.attempted_at END AS attempted_at,
        CASE WHEN o.send_count >= coalesce(m.send_count, 1) THEN o.attempt_deadline ELSE m.attempt_deadline END AS attempt_deadline
    FROM (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)
    LEFT JOIN mapped_stub m ON m.store = %(store)s::text AND m.topic = k.topic AND m.message_id = k.message_id
    LEFT JOIN LATERAL (SELECT g.row_version, g.created_at,
            CASE WHEN g.state = 'unsent' AND m.met_at_wal <= %(slot_at)s::pg_lsn THEN 'sent' ELSE g.state END AS state FROM (
        SELECT topic, message_id, min(timestamptz 'epoch' + created_us * interval '1 microsecond') AS created_at,
            CASE WHEN count(*) > 1 THEN 'not_unique' ELSE min(state) END AS state,
            md5(string_agg(coalesce(row_version, ''), ' ' ORDER BY row_version)) AS row_version
        FROM unnest(%(met_topics)s::text[], %(met_ids)s::text[], %(met_created)s::bigint[], %(met_states)s::text[],
            %(met_versions)s::text[]) AS met (topic, message_id, created_us, state, row_version)
        GROUP BY 1, 2) g WHERE g.topic = k.topic AND g.message_id = k.message_id) s ON true
    LEFT JOIN unnest(%(numbered_topics)s::text[], %(numbered_ids)s::text[], %(statuses)s::text[], %(send_counts)s::integer[],
            %(refusals)s::integer[], %(max_sends)s::integer[], %(next_checks)s::timestamptz[], %(attempted_ats)s::timestamptz[],
            %(attempt_deadlines)s::timestamptz[], %(number_versions)s::text[])
        AS o (topic, message_id, status, send_count, refusals, max_sends, next_check_at, attempted_at, attempt_deadline, number_version)
        ON o.topic = k.topic AND o.message_id = k.message_id
    CROSS JOIN LATERAL (SELECT coalesce((m.state, m.row_version) = (s.state, s.row_version)
        OR (s.state IS NULL AND m.state IN ('gone_sent', 'gone_unsent')), false) AS as_met) c
    WHERE s.state IS NOT NULL OR m.state IS NOT NULL) r {only_broker}) f;

-- name: of_remembered_keys: ... of the messages asked for, as they are remembered, where the table itself is not asked by key
FROM (
    SELECT r.*, {brokers_of} AS brokers
    FROM (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)
    JOIN mapped_stub r ON r.store = %(store)s::text AND r.topic = k.topic AND r.message_id = k.message_id {only_broker}) f;

-- name: remembered_sent: the topic's rows that a look met as sent, by when, where (null: at one of several brokers), and when first
SELECT f.topic, f.message_id, f.row_version, (extract(epoch FROM f.state_seen_at) * 1000000)::bigint AS seen_at,
    CASE WHEN cardinality(f.brokers) = 1 THEN f.brokers[1] END AS went_to,
    (extract(epoch FROM f.first_seen_at) * 1000000)::bigint AS met_at
FROM (
    SELECT r.*, {brokers_of} AS brokers FROM mapped_stub r {only_broker}
    WHERE r.store = %(store)s::text AND r.topic = %(topic)s::text AND r.state = 'sent' AND r.created_at >= %(start)s::timestamptz) f;

-- name: has_moved: whether looks found a topic at several brokers
SELECT count(DISTINCT b.broker) > 1 FROM topic_broker b WHERE b.topic = %(topic)s::text;

-- name: oldest_due: since when the oldest due row is due
SELECT m.next_check_at FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.status = 'pending' AND m.next_check_at <= clock_timestamp()
ORDER BY m.next_check_at LIMIT 1;

-- name: recorded_between: by topic, how many rows were created in a window
SELECT m.topic, count(*) FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.created_at >= %(start)s::timestamptz AND m.created_at < %(end)s::timestamptz
GROUP BY m.topic;

-- name: exhausted: a page of the exhausted rows, by key
SELECT m.topic, m.message_id FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.status = 'exhausted' AND (m.topic, m.message_id) > (%(after_topic)s::text, %(after_id)s::text)
ORDER BY m.topic, m.message_id LIMIT %(limit)s;

-- name: never_looked_at: pending rows that have been due for long and were not judged since, and those that are due too late for any run
SELECT m.topic, m.message_id FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.status = 'pending' AND (m.next_check_at > %(until)s::timestamptz
    OR m.next_check_at < %(since)s::timestamptz AND coalesce(m.judged_at, '-infinity') < %(since)s::timestamptz)
ORDER BY m.next_check_at LIMIT %(limit)s;

-- name: overdue: a page of the pending rows whose horizons began long ago, by key
SELECT m.topic, m.message_id FROM mapped_stub m
JOIN unnest(%(topics)s::text[], %(instants)s::timestamptz[]) AS k (topic, since) ON k.topic = m.topic
WHERE m.store = %(store)s::text AND m.status = 'pending'
    AND greatest(m.created_at, m.first_seen_at, m.state_seen_at, m.attempted_at) < k.since
    AND (m.topic, m.message_id) > (%(after_topic)s::text, %(after_id)s::text)
ORDER BY m.topic, m.message_id LIMIT %(limit)s;

-- name: no_taker_between: a page of one topic's rows that no group owed, by when that was decided
SELECT m.topic, m.message_id, m.updated_at::text FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.topic = %(topic)s::text AND m.status = 'no_taker'
    AND m.updated_at >= %(start)s::timestamptz AND m.updated_at < %(end)s::timestamptz
    AND (m.updated_at, m.message_id) > (%(after_moved)s::timestamptz, %(after_id)s::text)
ORDER BY m.updated_at, m.message_id
LIMIT %(limit)s;

-- name: promote: what a run decided, only where the status is as judged and no later run has judged; final states stay
UPDATE mapped_stub s SET
    status = CASE WHEN d.new_status IN ('unknown_state', 'not_unique') THEN s.status ELSE d.new_status END,
    next_check_at = greatest(s.next_check_at, d.next_look), updated_at = clock_timestamp(),
    judged_at = greatest(s.judged_at, %(as_of)s::timestamptz)
FROM (
    SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[], %(old_statuses)s::text[], %(new_statuses)s::text[],
            %(send_counts)s::integer[], %(next_looks)s::timestamptz[])
        AS given (topic, message_id, old_status, new_status, send_count, next_look)
    ORDER BY topic, message_id) d
WHERE s.store = %(store)s::text AND s.topic = d.topic AND s.message_id = d.message_id AND d.send_count = s.send_count
    AND (s.status = d.old_status OR (s.status = 'pending' AND d.old_status IN ('unknown_state', 'not_unique')))
    AND s.status NOT IN ('confirmed', 'voided')
    AND d.new_status IN ('pending', 'confirmed', 'exhausted', 'voided', 'no_taker', 'unknown_state', 'not_unique')
    AND (d.new_status = 'confirmed' OR s.judged_at IS NULL OR s.judged_at <= %(as_of)s::timestamptz);

-- name: closed_since: after a restore of a consumer's database, a page of what was closed since, by key
SELECT m.topic, m.message_id FROM mapped_stub m
WHERE m.store = %(store)s::text AND m.topic = ANY (%(topics)s::text[]) AND m.status IN ('confirmed', 'exhausted')
    AND m.updated_at >= %(since)s::timestamptz AND (m.topic, m.message_id) > (%(topic)s::text, %(message_id)s::text)
ORDER BY m.topic, m.message_id
LIMIT %(limit)s;

-- name: reopen: those of these that a run closed are pending and due
-- A log had the key of a confirmed row: it is somebody's, whatever maps the table now. The instant of the mapping keeps that: a look by it
-- is later.
UPDATE mapped_stub m SET status = 'pending', next_check_at = clock_timestamp(), updated_at = clock_timestamp(),
    last_seen_at = CASE WHEN m.status = 'confirmed'
        THEN greatest(m.last_seen_at, (SELECT l.mapped_at FROM mapped_look l WHERE l.store = m.store)) ELSE m.last_seen_at END
WHERE m.store = %(store)s::text AND m.status IN ('confirmed', 'exhausted')
    AND (m.topic, m.message_id) IN (SELECT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[]));
