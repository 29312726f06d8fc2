-- Named parts of queries over a judged batch, in the executors.

-- name: kept: the deliveries whose verdict is stored by itself; of the others the counts are enough
FROM judged WHERE verdict NOT IN ('CONFIRMED', 'WAITING') OR case_kind IS NOT NULL;

-- name: counted: how many deliveries of a topic and group got a verdict
SELECT topic, consumer_group, verdict, count(*) AS deliveries, sum(eligible::int) AS eligible, sum(newly::int) AS newly
FROM judged
GROUP BY topic, consumer_group, verdict;
