-- Named queries on the control database as a whole.

-- name: kept_bytes: what dead letters that are not emptied take, by group
SELECT coalesce(d.consumer_group, '*'), sum(d.content_bytes) + count(*) * %(row_bytes)s::bigint
FROM dead_letter d
WHERE d.emptied_at IS NULL
GROUP BY 1;
