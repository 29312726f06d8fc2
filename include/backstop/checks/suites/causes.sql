-- What classify staged, before a letter is given its cause.

-- name: letters_exist_and_are_open: every letter staged is stored, and was open when the run began
SELECT s.dead_letter_id
FROM {batch} AS run
JOIN staged_letter AS s USING (run_id, stage)
LEFT JOIN dead_letter AS d USING (dead_letter_id)
WHERE d.dead_letter_id IS NULL
   OR (d.state <> 'open' AND coalesce(d.closed_at, d.decided_at) < run.started_at);

-- name: one_cause_one_template: a fingerprint stands for one template and one category
SELECT s.fingerprint
FROM {batch} AS run
JOIN staged_letter AS s USING (run_id, stage)
GROUP BY s.fingerprint
HAVING count(DISTINCT s.template) > 1 OR count(DISTINCT s.rule_category) > 1;

-- name: letters_conserved: the letters looked at and those that moved with a pattern are as many as were staged or wait
SELECT run.run_id
FROM {batch} AS run
JOIN (
    SELECT r.run_id, r.stage,
        sum(CASE WHEN r.subject = 'letters waiting' THEN -r.rows_read ELSE r.rows_read END) AS staged
    FROM staged_read AS r
    WHERE r.subject IN ('letters looked at', 'letters waiting', 'letters moved')
    GROUP BY r.run_id, r.stage
) AS said USING (run_id, stage)
WHERE said.staged <> (
    SELECT count(*) FROM staged_letter AS s WHERE s.run_id = run.run_id AND s.stage = run.stage);

-- name: staging_is_whole: what was staged was also counted
SELECT DISTINCT s.run_id
FROM {batch} AS run
JOIN staged_letter AS s USING (run_id, stage)
WHERE NOT EXISTS (
    SELECT 1 FROM staged_read AS r
    WHERE r.run_id = s.run_id AND r.stage = s.stage AND r.subject = 'letters looked at');

-- name: causes_count_their_letters: each cause of which letters were staged counts as many letters as have it
SELECT c.cause_id
FROM (
    SELECT DISTINCT s.fingerprint FROM {batch} AS run JOIN staged_letter AS s USING (run_id, stage)
) AS staged
JOIN cause AS c USING (fingerprint)
WHERE c.dead_letters <> (SELECT count(*) FROM dead_letter AS d WHERE d.cause_id = c.cause_id);
