-- The tables of the shop that the demo runs: what producers change, and what consumer groups do about it.

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
INSERT INTO business_order (number, topic, message_id, amount)
SELECT * FROM unnest(%(numbers)s::bigint[], %(topics)s::text[], %(message_ids)s::text[], %(amounts)s::integer[]);

-- name: work_done: one group's work for one message
INSERT INTO effect (consumer_group, topic, message_id, amount, fence, worker)
VALUES (%(consumer_group)s, %(topic)s, %(message_id)s, %(amount)s, %(fence)s, %(worker)s);

-- name: effects_of: for which of these messages a group has done its work
SELECT DISTINCT topic, message_id FROM effect
WHERE consumer_group = %(consumer_group)s AND message_id = ANY(%(message_ids)s);

-- name: stopped_of: of which of these messages the group's database has stopped a second copy
SELECT topic, message_id FROM consumer_log
WHERE consumer_group = %(consumer_group)s AND message_id = ANY(%(message_ids)s) AND duplicates_stopped > 0;

-- name: messages_of: these messages as they were sent first
SELECT topic, message_id, content, headers, tag, ordering_key FROM message_stub
WHERE topic = %(topic)s AND message_id = ANY(%(message_ids)s);

-- name: sent_again: copies that Backstop has sent, or may have
SELECT topic, message_id, send_number FROM send_attempt WHERE send_number > 1 AND outcome IN ('sent', 'unknown');

-- name: under_way: messages of a topic whose producer's own send has no end yet, and began long enough ago to be written
SELECT count(*) FROM message_stub
WHERE topic = %(topic)s AND send_count = 1 AND attempt_token IS NOT NULL
  AND attempted_at < clock_timestamp() - interval '0.5 seconds';
