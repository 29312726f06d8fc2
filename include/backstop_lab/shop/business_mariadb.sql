-- What stands in business.sql in words that MariaDB does not understand. Names are bytes (UTF-8) there, as in Backstop's own tables.

-- name: make_business_order: the business rows of a producer shard; the stub is written in the same transaction
CREATE TABLE IF NOT EXISTS business_order (
    number     bigint          PRIMARY KEY,
    topic      varbinary(255)  NOT NULL,
    message_id varbinary(1024) NOT NULL,
    amount     integer         NOT NULL,
    made_at    datetime(6)     NOT NULL DEFAULT current_timestamp(6),
    UNIQUE (topic, message_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- name: make_effect: what a group did; nothing is unique here, so that work done twice shows
CREATE TABLE IF NOT EXISTS effect (
    consumer_group varbinary(255)  NOT NULL,
    topic          varbinary(255)  NOT NULL,
    message_id     varbinary(1024) NOT NULL,
    amount         integer         NOT NULL,
    fence          bigint          NOT NULL,
    worker         varchar(255)    NOT NULL,
    done_at        datetime(6)     NOT NULL DEFAULT current_timestamp(6)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4;

-- name: messages_of: these messages as they were sent first
SELECT topic, message_id, content, headers, convert(tag USING utf8mb4), ordering_key FROM message_stub
WHERE topic = %(topic)s AND message_id IN %(message_ids)s;

-- name: under_way: messages of a topic whose producer's own send has no end yet, and began long enough ago to be written
SELECT count(*) FROM message_stub
WHERE topic = %(topic)s AND send_count = 1 AND attempt_token IS NOT NULL
  AND attempted_at < current_timestamp(6) - INTERVAL 500000 MICROSECOND;

-- name: due: stubs that a run would judge now, and those that it would judge within `soon` seconds, but for the `held` ones (JSON)
SELECT coalesce(sum(s.next_check_at <= now(6)), 0), coalesce(sum(s.next_check_at > now(6)), 0)
FROM message_stub s
LEFT JOIN (SELECT DISTINCT unhex(a.topic) AS topic, unhex(a.message_id) AS message_id
           FROM json_table(%(held)s, '$[*]' COLUMNS (
               topic varchar(510) CHARACTER SET ascii PATH '$.topic',
               message_id varchar(2048) CHARACTER SET ascii PATH '$.message_id')) a) held
    USING (topic, message_id)
WHERE s.status = 'pending' AND s.next_check_at <= now(6) + INTERVAL %(soon)s SECOND AND held.message_id IS NULL;

-- name: open_stubs: stubs that nobody has finished, by their status, but for the `held` ones (JSON)
SELECT s.status, count(*)
FROM message_stub s
LEFT JOIN (SELECT DISTINCT unhex(a.topic) AS topic, unhex(a.message_id) AS message_id
           FROM json_table(%(held)s, '$[*]' COLUMNS (
               topic varchar(510) CHARACTER SET ascii PATH '$.topic',
               message_id varchar(2048) CHARACTER SET ascii PATH '$.message_id')) a) held
    USING (topic, message_id)
WHERE s.status NOT IN ('confirmed', 'voided') AND held.message_id IS NULL
GROUP BY s.status;

-- name: oldest_due: how many seconds ago the oldest of the stubs was made that a run would judge; 0: none
SELECT coalesce(timestampdiff(MICROSECOND, min(created_at), now(6)) / 1000000, 0) FROM message_stub
WHERE status = 'pending' AND next_check_at <= now(6);

-- name: in_a_second: that instant
SELECT now(6) + INTERVAL 1 SECOND;
