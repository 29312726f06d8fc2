-- What crosses rows; the expectations over single rows are in attempts.yaml.

-- name: one_open_number: no message has two send numbers waiting or under way
-- Not expect_compound_columns_to_be_unique, which joins the rows with their counts: without statistics each row with every other.
SELECT r.topic, r.message_id
FROM {batch} AS run
JOIN resend_request AS r ON r.state IN ('open', 'claimed')
GROUP BY r.topic, r.message_id
HAVING count(*) > 1;
