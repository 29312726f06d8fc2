-- Logs in a consumer database, read only.

-- name: clock: the store's own time
SELECT clock_timestamp();

-- name: floor: the largest updated_at ever purged of a group; no row or -infinity when nothing was
SELECT log_floor
FROM consumer_log_floor WHERE consumer_group = %(group)s::text;

-- name: broken: how a row breaks its contract, null when it keeps it; other programs write these tables
CASE
    WHEN l.state IS NULL OR l.state NOT IN ('CONSUMING', 'CONSUMED', 'FAILED', 'EXPIRED', 'PARKED')
        THEN 'unknown state ' || coalesce(quote_literal(left(l.state, 40)), 'null')
    WHEN l.updated_at IS NULL THEN 'no updated_at'
    WHEN l.state = 'CONSUMED' AND l.consumed_at IS NULL THEN 'CONSUMED without consumed_at'
    WHEN l.first_received_at IS NULL THEN 'no first_received_at'
    WHEN l.attempts IS NULL OR l.attempts < 0 OR l.duplicates_stopped IS NULL OR l.duplicates_stopped < 0
        THEN 'no count of attempts or of duplicates'
END;

-- name: row_columns: all that is known of a row; of an error, which no one bounds, what a cause is found by (triage/causes/fingerprint.py)
l.topic, l.message_id, l.state, l.owner_token::text, l.lease_expires_at, l.attempts, l.duplicates_stopped,
l.first_received_at, l.updated_at, l.consumed_at, l.conflicts,
CASE WHEN length(l.last_error) > 10240 THEN left(l.last_error, 8192) || chr(10) || right(l.last_error, 2048) ELSE l.last_error END
    AS last_error, l.owner_host, encode(l.payload_hash, 'hex');

-- name: rule_columns: what the rule needs; instants in microseconds (by doubles where exact, ADR 41), out of the calendar as its ends
l.topic, l.message_id, coalesce(l.state, '') AS log_state,
CASE WHEN l.lease_expires_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
    THEN (date_part('epoch', l.lease_expires_at) * 1000000)::bigint
    WHEN l.lease_expires_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
        least(l.lease_expires_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS lease_expires_at,
CASE WHEN l.updated_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
    THEN (date_part('epoch', l.updated_at) * 1000000)::bigint
    WHEN l.updated_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
        least(l.updated_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS log_updated_at,
CASE WHEN l.consumed_at BETWEEN timestamptz '1900-01-01Z' AND timestamptz '2100-01-01Z'
    THEN (date_part('epoch', l.consumed_at) * 1000000)::bigint
    WHEN l.consumed_at IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01Z',
        least(l.consumed_at, timestamptz '9000-01-01Z'))) * 1000000)::bigint END AS log_consumed_at;

-- name: of_keys: one group's rows by key, each through the primary key, whatever the planner guesses of the table
FROM unnest(%(topics)s::text[], %(message_ids)s::text[]) AS k (topic, message_id)
CROSS JOIN LATERAL (
    SELECT * FROM consumer_log m
    WHERE m.consumer_group = %(group)s::text AND m.topic = k.topic AND m.message_id = k.message_id OFFSET 0) l;

-- name: one_row_a_key: whether the table lets a key have one row only
SELECT EXISTS (
    SELECT 1 FROM pg_index i
    WHERE i.indrelid = 'consumer_log'::regclass AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
        AND i.indexprs IS NULL AND i.indnkeyatts = 3 AND (
            SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:2])
        ) = ARRAY['consumer_group', 'message_id', 'topic']);

-- name: lineage: the server's own name, the fork of its history (a failover makes a new one), how far it has come, and since when it runs
-- with which database and which file of the table
SELECT s.system_identifier || ' ' || left(pg_walfile_name(l.at), 8) || ' ' || l.at || ' '
    || concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), d.oid, pg_relation_filenode('consumer_log'::regclass))
FROM pg_control_system() s, pg_database d, (SELECT pg_current_wal_lsn() AS at) l
WHERE d.datname = current_database();

-- name: continues: whether that history goes on here
-- A volume put back has the same name and fork, and has not come so far. A start may follow a crash that lost commits, and a dump that was read
-- back in place has another file.
SELECT s.system_identifier::text = split_part(%(lineage)s::text, ' ', 1)
    AND left(pg_walfile_name(pg_current_wal_lsn()), 8) = split_part(%(lineage)s::text, ' ', 2)
    AND pg_current_wal_lsn() >= split_part(%(lineage)s::text, ' ', 3)::pg_lsn
    AND concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), d.oid, pg_relation_filenode('consumer_log'::regclass))
        = split_part(%(lineage)s::text, ' ', 4)
FROM pg_control_system() s, pg_database d
WHERE d.datname = current_database();

-- name: since: for an estimate, one group's rows first received since an instant
SELECT 1 FROM consumer_log l
WHERE l.consumer_group = %(group)s::text AND l.first_received_at >= %(since)s::timestamptz;

-- name: done_between: one group's valid CONSUMED rows first received in [start, end); final, whenever they are read
FROM consumer_log l
WHERE l.consumer_group = %(group)s::text AND l.state = 'CONSUMED'
    AND l.first_received_at >= %(start)s::timestamptz AND l.first_received_at < %(end)s::timestamptz
LIMIT %(most)s;

-- name: received_between: one group's rows first received in [start, end), oldest first, whose keys can be read
FROM consumer_log l
WHERE l.consumer_group = %(group)s::text
    AND l.first_received_at >= %(start)s::timestamptz AND l.first_received_at < %(end)s::timestamptz AND {only_readable}
ORDER BY l.first_received_at, l.topic, l.message_id
LIMIT %(limit)s;

-- name: count_received: by topic that can be read, one group's rows first received in [start, end)
SELECT l.topic, count(*)
FROM consumer_log l
WHERE l.consumer_group = %(group)s::text
    AND l.first_received_at >= %(start)s::timestamptz AND l.first_received_at < %(end)s::timestamptz
GROUP BY l.topic
HAVING {only_readable};

-- name: highest_logged: in each of these queues and epochs the highest original offset below the queue's end
-- What lies at or above the end was never stored there, whatever offset a row holds: it is not how far anybody got.
SELECT k.queue_id, k.queue_epoch, found.queue_offset
FROM unnest(%(queues)s::integer[], %(epochs)s::text[], %(ends)s::bigint[]) AS k (queue_id, queue_epoch, queue_end)
CROSS JOIN LATERAL (
    SELECT l.queue_offset FROM consumer_log l
    WHERE l.consumer_group = %(group)s::text AND l.topic = %(topic)s::text
        AND l.queue_id = k.queue_id AND l.queue_epoch = k.queue_epoch
        AND l.queue_offset IS NOT NULL AND l.queue_offset < k.queue_end
    ORDER BY l.queue_offset DESC
    LIMIT 1) found;
