-- What a resend run left behind.

-- name: closed_means_closed: every request that the run closed has a closed state
SELECT r.topic, r.message_id, r.send_number, r.state
FROM {batch} AS run
JOIN resend_request AS r ON r.closed_by_run = run.run_id
WHERE r.state IN ('open', 'claimed');

-- name: no_claim_left_behind: no claim is older than its deadline by as long again
SELECT r.topic, r.message_id, r.send_number
FROM {batch} AS run
CROSS JOIN resend_request AS r
WHERE r.state = 'claimed'
  AND r.claim_deadline + (r.claim_deadline - r.updated_at) < clock_timestamp();

-- name: one_open_number: no message has two send numbers waiting or under way
SELECT r.topic, r.message_id
FROM {batch} AS run
JOIN resend_request AS r ON r.state IN ('open', 'claimed')
GROUP BY r.topic, r.message_id
HAVING count(*) > 1;

-- name: published_within_handed_out: the run published no more than the numbers that it was handed out
SELECT r.run_id
FROM {batch} AS run
JOIN run AS r USING (run_id)
WHERE coalesce((r.counts ->> 'published')::bigint, 0) > coalesce((r.counts ->> 'handed_out')::bigint, 0);
