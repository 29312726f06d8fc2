-- RocketMQDedupListener's table. Its only index is the unique key, which InnoDB clusters the rows by: every query goes by it.
-- Instants are milliseconds since 1970 at the server's clock (the session's time zone is UTC). `{seen}` is put
-- together in mysql_records.py out of the query `seen_row`; the values are parameters.

-- name: page_end: the last row of a page, when a page's worth of rows is left after the place
SELECT tag, msg_uniq_key
FROM t_rocketmq_dedup
WHERE application_name = %(application)s AND topic = %(topic)s
    AND (%(from_start)s OR tag > %(tag)s OR (tag = %(tag)s AND msg_uniq_key > %(id)s))
ORDER BY tag, msg_uniq_key
LIMIT 1 OFFSET %(offset)s;

-- name: stuck: the first rows of a page that are neither done nor, at the server's clock, still held
SELECT application_name, topic, tag, msg_uniq_key, status, expire_time
FROM t_rocketmq_dedup
WHERE application_name = %(application)s AND topic = %(topic)s
    AND (%(from_start)s OR tag > %(tag)s OR (tag = %(tag)s AND msg_uniq_key > %(id)s))
    AND (%(to_end)s OR tag < %(end_tag)s OR (tag = %(end_tag)s AND msg_uniq_key <= %(end_id)s))
    AND status <> 'CONSUMED'
    AND (status <> 'CONSUMING' OR expire_time <= FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000) - %(skew)s)
ORDER BY tag, msg_uniq_key
LIMIT %(at_most)s;

-- name: seen_row: one row, only while it is what was seen
(application_name = %s AND topic = %s AND tag = %s AND msg_uniq_key = %s AND status = 'CONSUMING' AND expire_time = %s);

-- name: repair: marks rows done, for as long as the other program keeps done work
UPDATE t_rocketmq_dedup
SET status = 'CONSUMED', expire_time = FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000) + %s
WHERE {seen};

-- name: reclaim: frees rows, as the other program does with an expired one that it meets
DELETE FROM t_rocketmq_dedup
WHERE expire_time <= FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000) - %s AND ({seen});
