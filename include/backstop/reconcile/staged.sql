-- Queries over a judged batch, for DuckDB in the executors.

-- name: kept: the deliveries whose verdict is stored by itself, with its evidence; of the others the counts are enough
SELECT shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, case_kind, next_look_at,
    -- A merge patch leaves out what is null.
    json_merge_patch('{}', json_object(
        'received', received, 'log_state', log_state, 'log_updated_at', log_updated_at, 'lease_expires_at',
        lease_expires_at, 'copies', copies, 'copies_ahead', copies_ahead, 'acknowledged', acknowledged, 'queue_id',
        queue_id, 'copy_offset', copy_offset, 'settled_offset', settled_offset, 'passed_until', passed_until,
        'missing', missing, 'send_count', send_count, 'refusals', refusals, 'budget', budget)) AS evidence
FROM judged WHERE verdict NOT IN ('CONFIRMED', 'WAITING') OR case_kind IS NOT NULL;

-- name: counted: how many deliveries of a topic and group got a verdict
SELECT topic, consumer_group, verdict, count(*) AS deliveries, sum(eligible::int) AS eligible, sum(newly::int) AS newly
FROM judged
GROUP BY topic, consumer_group, verdict;
