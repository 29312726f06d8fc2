-- Named queries on the control database: what dead letters may take of it.

-- name: full: the cases that are not closed
SELECT c.topic, c.consumer_group, c.subject FROM case_file c WHERE c.kind = %(kind)s AND c.closed_at IS NULL;
