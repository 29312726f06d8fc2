-- A proof of a window, before its sentence is given to anybody.

-- name: counts_add_up: the counts by group and standing add up to the deliveries of the proof
SELECT p.run_id::text AS run_id, p.topic
FROM {batch} AS run
JOIN proof AS p USING (run_id)
WHERE p.deliveries <> (SELECT coalesce(sum(c.deliveries), 0) FROM proof_count AS c WHERE c.run_id = p.run_id);

-- name: stubs_add_up: no delivery belongs to a stub that was not read, and broken rows are not among the owed
SELECT p.run_id::text AS run_id, p.topic
FROM {batch} AS run
JOIN proof AS p USING (run_id)
WHERE p.owed_stubs + p.broken > (SELECT coalesce(sum(s.value::bigint), 0) FROM jsonb_each_text(p.stubs) AS s);

-- name: nothing_lost_means_it: the good answer is given only when everything was read and everything is done
SELECT p.run_id::text AS run_id, p.topic
FROM {batch} AS run
JOIN proof AS p USING (run_id)
WHERE p.answer = 'nothing_lost' AND (p.broken > 0 OR p.missed <> jsonb_build_object() OR EXISTS (
    SELECT 1 FROM proof_count AS c
    WHERE c.run_id = p.run_id AND c.standing NOT IN ('done', 'withdrawn', 'confirmed_earlier')));

-- name: losses_are_told: a lost delivery never hides behind another answer
SELECT p.run_id::text AS run_id, p.topic
FROM {batch} AS run
JOIN proof AS p USING (run_id)
WHERE p.answer <> 'lost' AND EXISTS (
    SELECT 1 FROM proof_count AS c WHERE c.run_id = p.run_id AND c.standing = 'lost');
