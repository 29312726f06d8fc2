-- The tables of the shop that the demo runs: what producers change, and what consumer groups do about it; and what the demo asks
-- the databases of producers and consumers. See databases.py for MariaDB.

-- name: make_business_order: the business rows of a producer shard; the stub is written in the same transaction
CREATE TABLE IF NOT EXISTS business_order (
    number     bigint      PRIMARY KEY,
    topic      text        NOT NULL,
    message_id text        NOT NULL,
    amount     integer     NOT NULL,
    made_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (topic, message_id)
);

-- name: make_effect: what a group did; nothing is unique here, so that work done twice shows
CREATE TABLE IF NOT EXISTS effect (
    consumer_group text        NOT NULL,
    topic          text        NOT NULL,
    message_id     text        NOT NULL,
    amount         integer     NOT NULL,
    fence          bigint      NOT NULL,
    worker         text        NOT NULL,
    done_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: index_effect: to look up a few messages among many
CREATE INDEX IF NOT EXISTS effect_by_message ON effect (topic, message_id);

-- name: last_number: where a producer that was restarted goes on
SELECT coalesce(max(number), 0) FROM business_order;

-- name: order_placed: one batch of business changes
INSERT INTO business_order (number, topic, message_id, amount) VALUES {rows};

-- name: work_done: one group's work for one message
INSERT INTO effect (consumer_group, topic, message_id, amount, fence, worker)
VALUES (%(consumer_group)s, %(topic)s, %(message_id)s, %(amount)s, %(fence)s, %(worker)s);

-- name: effects_of: for which of these messages a group has done its work
SELECT DISTINCT topic, message_id FROM effect
WHERE consumer_group = %(consumer_group)s AND message_id IN %(message_ids)s;

-- name: stopped_of: of which of these messages the group's database has stopped a second copy
SELECT topic, message_id FROM consumer_log
WHERE consumer_group = %(consumer_group)s AND message_id IN %(message_ids)s AND duplicates_stopped > 0;

-- name: messages_of: these messages as they were sent first
SELECT topic, message_id, content, headers, tag, ordering_key FROM message_stub
WHERE topic = %(topic)s AND message_id IN %(message_ids)s;

-- name: sent_again: copies that Backstop has sent, or may have
SELECT topic, message_id, send_number FROM send_attempt WHERE send_number > 1 AND outcome IN ('sent', 'unknown');

-- name: under_way: messages of a topic whose producer's own send has no end yet, and began long enough ago to be written
SELECT count(*) FROM message_stub
WHERE topic = %(topic)s AND send_count = 1 AND attempt_token IS NOT NULL
  AND attempted_at < clock_timestamp() - interval '0.5 seconds';

-- name: due: stubs that a run would judge now, and those that it would judge within `soon` seconds, but for the `held` ones (JSON)
SELECT count(*) FILTER (WHERE s.next_check_at <= now()), count(*) FILTER (WHERE s.next_check_at > now())
FROM message_stub s
LEFT JOIN (SELECT DISTINCT convert_from(decode(a.topic, 'hex'), 'UTF8') AS topic,
               convert_from(decode(a.message_id, 'hex'), 'UTF8') AS message_id
           FROM jsonb_to_recordset(%(held)s::jsonb) AS a (topic text, message_id text) OFFSET 0) held
    USING (topic, message_id)
WHERE s.status = 'pending' AND s.next_check_at <= now() + %(soon)s * interval '1 second' AND held.message_id IS NULL;

-- name: open_stubs: stubs that nobody has finished, by their status, but for the `held` ones (JSON); counted here, for at first
-- every message of the traffic is one of them
SELECT s.status, count(*)
FROM message_stub s
LEFT JOIN (SELECT DISTINCT convert_from(decode(a.topic, 'hex'), 'UTF8') AS topic,
               convert_from(decode(a.message_id, 'hex'), 'UTF8') AS message_id
           FROM jsonb_to_recordset(%(held)s::jsonb) AS a (topic text, message_id text) OFFSET 0) held
    USING (topic, message_id)
WHERE s.status NOT IN ('confirmed', 'voided') AND held.message_id IS NULL
GROUP BY s.status;

-- name: oldest_due: how many seconds ago the oldest of the stubs was made that a run would judge; 0: none
SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0) FROM message_stub
WHERE status = 'pending' AND next_check_at <= now();

-- name: in_a_second: that instant
SELECT clock_timestamp() + interval '1 second';

-- name: next_check: Backstop judges these stubs at this instant
UPDATE message_stub SET next_check_at = %(instant)s WHERE (topic, message_id) IN %(keys)s;

-- name: ended_leases: leases that a sweep would take back
SELECT count(*) FROM consumer_log WHERE state = 'CONSUMING' AND lease_expires_at <= current_timestamp(6);

-- name: delete_logs: logs of work that was done, gone by hand
DELETE FROM consumer_log
WHERE consumer_group = %(consumer_group)s AND state = 'CONSUMED' AND (topic, message_id) IN %(keys)s
RETURNING topic, message_id;

-- name: allow_timeless_logs: as in a table from before there was this rule
ALTER TABLE consumer_log DROP CONSTRAINT IF EXISTS consumer_log_consumed_has_time;

-- name: forget_time: work that was done carries no time any more
UPDATE consumer_log SET consumed_at = NULL
WHERE consumer_group = %(consumer_group)s AND state = 'CONSUMED' AND (topic, message_id) IN %(keys)s;

-- name: timeless_logs: for which of these messages the group's log carries none
SELECT topic, message_id FROM consumer_log
WHERE consumer_group = %(consumer_group)s AND state = 'CONSUMED' AND consumed_at IS NULL AND (topic, message_id) IN %(keys)s;
