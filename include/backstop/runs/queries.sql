-- Named queries on the control database: runs and the leases of duties.
-- A transaction that writes for a run holds FOR KEY SHARE on the duty's lease row: heartbeats pass it, a take-over or a
-- close (FOR UPDATE) waits until it has ended. Many workers of one run can hold it at once.

-- name: lock_lease: who holds the duty, if anybody does, and for how long it has not been heard of
SELECT token::text, run_id, clock_timestamp() - heartbeat_at AS silent
FROM duty_lease
WHERE duty = %(lease)s AND scope = %(scope)s
FOR UPDATE;

-- name: insert_run: a new run; as_of is this database's clock
INSERT INTO run (duty, scope, token, dry_run, no_send, policy_version, code_version)
VALUES (%(duty)s, %(scope)s, %(token)s, %(dry_run)s, %(no_send)s, %(policy_version)s, %(code_version)s)
RETURNING run_id, as_of;

-- name: see_groups: notes each group of a topic when a run first has it; those of a topic's first configuration owe everything
INSERT INTO owed_since (topic, consumer_group, owed_from)
SELECT n.topic, n.consumer_group,
    CASE WHEN EXISTS (SELECT 1 FROM owed_since o WHERE o.topic = n.topic) THEN clock_timestamp() END
FROM unnest(%(topics)s::text[], %(groups)s::text[]) AS n (topic, consumer_group)
WHERE NOT EXISTS (SELECT 1 FROM owed_since o WHERE o.topic = n.topic AND o.consumer_group = n.consumer_group)
ON CONFLICT (topic, consumer_group) DO NOTHING;

-- name: take_free_lease: nobody held it; changes no row when somebody was faster
INSERT INTO duty_lease (duty, scope, token, run_id)
VALUES (%(lease)s, %(scope)s, %(token)s, %(run_id)s)
ON CONFLICT (duty, scope) DO NOTHING;

-- name: take_over_lease: the holder is dead
UPDATE duty_lease SET token = %(token)s, run_id = %(run_id)s, heartbeat_at = clock_timestamp()
WHERE duty = %(lease)s AND scope = %(scope)s;

-- name: drop_dead_leases: other runs of the duty that died, dry or not; one whose transaction is under way is left alone
DELETE FROM duty_lease WHERE (duty, scope) IN (
    SELECT d.duty, d.scope FROM duty_lease d
    WHERE d.duty IN (%(duty)s, %(duty)s || ' (dry run)') AND (d.duty, d.scope) <> (%(lease)s, %(scope)s)
        AND d.heartbeat_at < clock_timestamp() - %(dead_after)s
    FOR UPDATE SKIP LOCKED)
RETURNING run_id;

-- name: abandon_run: a run that was taken over can never be anything else any more
UPDATE run
SET state = 'abandoned', finished_at = clock_timestamp(),
    error = coalesce(error, 'Taken over by run ' || %(by)s || ': it was not heard of for too long.')
WHERE run_id = %(run_id)s AND finished_at IS NULL;

-- name: hold: the run is ours and open, until this transaction ends
SELECT 1 FROM duty_lease
WHERE duty = %(lease)s AND scope = %(scope)s AND token = %(token)s AND run_id = %(run_id)s
FOR KEY SHARE;

-- name: beat: the run lives
UPDATE duty_lease SET heartbeat_at = clock_timestamp()
WHERE duty = %(lease)s AND scope = %(scope)s AND token = %(token)s AND run_id = %(run_id)s;

-- name: show_beat: the same, where people look
UPDATE run SET heartbeat_at = clock_timestamp() WHERE run_id = %(run_id)s AND finished_at IS NULL;

-- name: show_phase: what it does
UPDATE run SET phase = %(phase)s, phase_done = %(done)s, phase_of = %(of)s
WHERE run_id = %(run_id)s AND finished_at IS NULL;

-- name: begin_stage: the number of the judge's next attempt; an earlier version numbered them by `stage`
UPDATE run SET stages_begun = greatest(stages_begun, stage) + 1
WHERE run_id = %(run_id)s AND NOT stage_checked RETURNING stages_begun;

-- name: finish_stage: this attempt is whole, and is what is checked and promoted; not after a later one, nor once a check has begun
UPDATE run SET stage = %(stage)s, policy_version = coalesce(%(policy_version)s, policy_version)
WHERE run_id = %(run_id)s AND stage < %(stage)s AND NOT stage_checked RETURNING 1;

-- name: give_back_lease: the run ends
DELETE FROM duty_lease
WHERE duty = %(lease)s AND scope = %(scope)s AND token = %(token)s AND run_id = %(run_id)s;

-- name: close_run: how it ended; counts and phases of several tasks add up
UPDATE run
SET state = %(state)s, finished_at = clock_timestamp(), heartbeat_at = clock_timestamp(), error = %(error)s,
    counts = counts || %(counts)s::jsonb, phases = phases || %(phases)s::jsonb
WHERE run_id = %(run_id)s AND finished_at IS NULL;

-- name: find: an open run by its id and token
SELECT r.duty, r.scope, r.as_of, r.dry_run, r.no_send
FROM run r JOIN duty_lease l USING (run_id)
WHERE r.run_id = %(run_id)s AND r.token::text = %(token)s AND l.token = r.token AND r.finished_at IS NULL;

-- name: add_counts: the counts of a run, added to what another process of it did
UPDATE run SET counts = run.counts || (
    SELECT coalesce(jsonb_object_agg(c.key, coalesce((run.counts ->> c.key)::bigint, 0) + c.value::bigint), '{}')
    FROM jsonb_each_text(%(counts)s::jsonb) AS c)
WHERE run_id = %(run_id)s;

-- name: version_is_there: null: nothing keeps the schema's revision; and whether there is a table of ours
SELECT to_regclass('backstop_control_version'), to_regclass('run') IS NOT NULL;

-- name: version: the schema's revision
SELECT version_num FROM backstop_control_version;
