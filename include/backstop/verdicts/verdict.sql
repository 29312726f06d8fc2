-- The rule: one verdict for every delivery, first match wins.
--
-- Portable: DuckDB evaluates it, in Spark's executors over millions of deliveries and at a claim over those asked for by key;
-- Spark SQL and PostgreSQL give the same answers. Instants and durations are microseconds (bigint). In:
--   instant         as_of: the one instant of the control database at the start of the run
--   delivery        a row of deliveries.sql and its group's log row (log_answered: the primary answered for the key)
--   attempt         send numbers that have ended, of stubs sent more than once, or first to some groups alone; one row for
--                   each group addressed
--   policy          the settings for (topic, consumer_group)
--   group_state     for (topic, consumer_group, broker): how far in time, and what could be read of the group there; for the
--                   topic's broker and each other one that copies went to. removed: that one is not configured any more
--   shard_state     for each shard: what could be read of it
--   progress        for (topic, consumer_group, broker, queue_id): settled offset, the queue's offsets and its epoch
--   waiting         ids that the broker will deliver to the group again, or later
--   delay_look      for (topic, broker): at seen_at nothing was left in delay storage that was due after due_after (null:
--                   since ever) and until due_until; of each instant the first look that says so. A broker that keeps nothing
--                   back has one row, for all instants
--   dead_letter     undecided dead letters; consumer_group null: of no known group
--   decision        deliveries that a person discarded
-- Out: every delivery once. Unknown is never good: a null in a test of completeness makes the evidence incomplete.
WITH ended AS (
    -- A number handed out without a row here is still under way.
    SELECT a.topic, a.message_id, count(DISTINCT a.send_number) AS numbers
    FROM attempt a
    JOIN (SELECT DISTINCT topic, message_id, send_count FROM delivery) s
        ON s.topic = a.topic AND s.message_id = a.message_id
    WHERE a.send_number <= s.send_count
    GROUP BY a.topic, a.message_id
),
addressed AS (
    -- The copies of each delivery. A stub sent once, to every group, tells by itself.
    SELECT d.stub_id, d.consumer_group, d.topic,
        d.sent_at IS NOT NULL AS acknowledged,
        d.broker, d.queue_id, d.queue_offset, d.queue_epoch,
        coalesce(d.attempted_at, d.sent_at) AS started_at, d.sent_at AS finished_at,
        d.sent_at IS NOT NULL OR coalesce(d.settled, false) AS settled, true AS newest,
        d.attempted_at, d.attempt_deadline, d.deliver_at
    FROM delivery d
    WHERE d.send_count = 1 AND coalesce(d.first_to_all, false) AND (d.sent_at IS NOT NULL OR d.refusals = 0)
    UNION ALL
    SELECT d.stub_id, d.consumer_group, d.topic,
        a.outcome = 'sent' AS acknowledged,
        a.broker, a.queue_id, a.queue_offset, a.queue_epoch,
        a.started_at, a.finished_at,
        true AS settled, a.send_number = d.send_count AS newest,
        d.attempted_at, d.attempt_deadline, d.deliver_at
    FROM delivery d
    JOIN attempt a
        ON a.topic = d.topic AND a.message_id = d.message_id AND a.send_number <= d.send_count
        AND (a.consumer_group IS NULL OR a.consumer_group = d.consumer_group)
    WHERE (d.send_count > 1 OR NOT coalesce(d.first_to_all, false)) AND a.outcome <> 'refused'
    UNION ALL
    SELECT d.stub_id, d.consumer_group, d.topic,
        false AS acknowledged,
        d.broker, NULL AS queue_id, NULL AS queue_offset, NULL AS queue_epoch,
        d.attempted_at AS started_at, NULL AS finished_at,
        false AS settled, true AS newest,
        d.attempted_at, d.attempt_deadline, d.deliver_at
    FROM delivery d
    LEFT JOIN ended e ON e.topic = d.topic AND e.message_id = d.message_id
    WHERE (d.send_count > 1 OR NOT coalesce(d.first_to_all, false)) AND coalesce(e.numbers, 0) < d.send_count
),
timed AS (
    -- Only the newest number may still be under way, until its deadline. A row without one ends after attempt_timeout.
    -- A copy whose broker was not recorded is at the one that its topic has now.
    SELECT c.stub_id, c.consumer_group, c.topic, c.acknowledged, c.queue_id, c.queue_offset, c.queue_epoch,
        c.started_at, c.finished_at, c.settled, c.deliver_at, coalesce(c.broker, p.broker) AS broker,
        p.max_send_duration, p.max_clock_skew,
        CASE WHEN c.newest THEN coalesce(c.attempt_deadline, c.attempted_at + p.attempt_timeout) END AS deadline
    FROM addressed c
    JOIN policy p ON p.topic = c.topic AND p.consumer_group = c.consumer_group
),
trusting AS (
    SELECT c.*,
        q.settled_offset, q.first_offset, q.next_offset, q.previous_next_offset, q.previous_read_at, q.rate,
        coalesce(c.acknowledged AND c.queue_offset IS NOT NULL AND c.queue_epoch = q.epoch, false) AS trusted,
        -- Good only when known: a queue that is not there any more, or an acceptance that we cannot read, proves nothing.
        -- Acknowledged or not: whoever recorded another life's epoch met a queue that is not this one. What went to a broker
        -- that is configured no more is older than every life that can be seen.
        CASE WHEN coalesce(g.removed, false) THEN NOT coalesce(g.lives_accepted, false)
            ELSE c.queue_epoch IS NOT NULL
                AND NOT coalesce(c.queue_epoch = q.epoch OR q.epoch_accepted, false) END AS of_older_epoch,
        coalesce(g.clock_good, false) AS clock_good,
        coalesce(g.offsets_read AND g.retry_read, false) AS offsets_read,
        coalesce(g.dead_letters_read, false) AS dead_letters_read,
        -- A send begins at the latest at deadline - max_send_duration, and settling records when it began: until then, the
        -- latest instant counts. `attempted_at` is that of the business transaction, which may commit much later.
        greatest(
            c.started_at, CASE WHEN NOT c.settled THEN c.deadline - c.max_send_duration END, c.deliver_at
        ) + c.max_send_duration AS sent_by,
        g.passed_until, coalesce(g.lives_accepted, true) AS lives_accepted, i.as_of
    FROM timed c
    CROSS JOIN instant i
    LEFT JOIN group_state g ON g.topic = c.topic AND g.consumer_group = c.consumer_group AND g.broker = c.broker
    LEFT JOIN progress q
        ON q.topic = c.topic AND q.consumer_group = c.consumer_group AND q.broker = c.broker AND q.queue_id = c.queue_id
),
delivered AS (
    -- What a broker keeps back until its time may come to the topic later than then, and is stored there when it comes.
    SELECT t.*,
        greatest(t.sent_by, k.seen_at) AS stored_by,
        t.deliver_at IS NOT NULL AND k.seen_at IS NULL AS kept_back
    FROM trusting t
    LEFT JOIN delay_look k
        ON t.deliver_at IS NOT NULL AND k.topic = t.topic AND k.broker = t.broker
        AND (k.due_after IS NULL OR k.due_after < t.sent_by + 2 * t.max_clock_skew) AND k.due_until >= t.sent_by + 2 * t.max_clock_skew
),
placed AS (
    -- Past is tested first; what is known and not past is ahead.
    SELECT t.*,
        CASE
            WHEN t.trusted AND t.queue_offset < t.settled_offset THEN 'passed'
            WHEN t.trusted AND t.queue_offset < t.first_offset THEN 'expired'
            WHEN t.trusted AND t.queue_offset >= t.next_offset AND t.queue_offset >= t.previous_next_offset
                AND t.finished_at + t.max_clock_skew < t.previous_read_at THEN 'truncated'
            WHEN t.trusted AND t.settled_offset IS NOT NULL THEN 'ahead'
            WHEN t.trusted THEN 'unknown'
            WHEN t.of_older_epoch THEN 'unknown'
            WHEN t.started_at IS NULL OR t.passed_until IS NULL THEN 'unknown'
            WHEN t.kept_back THEN 'ahead'
            -- The producer's clock and the broker's are each compared with the control database's: twice the skew lies between.
            WHEN t.stored_by + 2 * t.max_clock_skew < t.passed_until AND coalesce(t.deadline, t.as_of) <= t.as_of THEN 'passed'
            ELSE 'ahead'
        END AS place
    FROM delivered t
),
seen AS (
    SELECT stub_id, consumer_group,
        count(*) AS copies,
        sum(CASE WHEN place = 'ahead' THEN 1 ELSE 0 END) AS copies_ahead,
        sum(CASE WHEN place IN ('passed', 'expired', 'truncated') THEN 1 ELSE 0 END) AS copies_past,
        bool_or(acknowledged) AS acknowledged,
        -- Without a position it may be in a queue whose life nobody has accepted; no time is known then to judge it by.
        bool_or(of_older_epoch OR (NOT trusted AND passed_until IS NULL AND NOT lives_accepted)) AS of_older_epoch,
        bool_and(clock_good) AS clock_good,
        bool_and(offsets_read) AS offsets_read,
        bool_and(dead_letters_read) AS dead_letters_read,
        bool_or(CASE WHEN trusted THEN settled_offset IS NULL ELSE passed_until IS NULL END) AS progress_unknown,
        bool_or(place = 'expired') AS expired,
        bool_or(place = 'truncated') AS truncated,
        -- Only within the queue's present epoch. Divided first, rounded down and bounded before the cast: the engines round
        -- differently, and a slow rate over a long queue would overflow and end the run.
        max(CASE WHEN place = 'ahead' AND trusted AND rate > 0
            THEN CAST(floor(least((queue_offset - settled_offset) / rate * 1000000, 1e15)) AS bigint) END) AS wait_estimate,
        max(queue_offset) AS copy_offset,
        max(settled_offset) AS settled_offset,
        max(passed_until) AS passed_until
    FROM placed
    GROUP BY stub_id, consumer_group
),
facts AS (
    SELECT d.*, i.as_of,
        p.max_clock_skew, p.first_check, p.consume_timeout, p.redelivery_horizon, p.recheck,
        p.unknown_horizon, p.backlog_horizon, p.overdue_horizon, p.replay_horizon, p.queue_delay_cap,
        p.max_refusals, p.duplicates,
        coalesce(d.max_sends, p.max_sends) AS budget,
        coalesce(c.copies, 0) AS copies, coalesce(c.copies_ahead, 0) AS copies_ahead,
        coalesce(c.copies_past, 0) AS copies_past, coalesce(c.acknowledged, false) AS acknowledged,
        coalesce(c.expired, false) AS expired, coalesce(c.truncated, false) AS truncated,
        c.wait_estimate, c.copy_offset, c.settled_offset, c.passed_until,
        coalesce(d.log_found, false) AS received,
        z.message_id IS NOT NULL AS discarded,
        w.message_id IS NOT NULL AS waits,
        (l.message_id IS NOT NULL OR n.message_id IS NOT NULL) AS dead_lettered,
        greatest(d.created_at, d.deliver_at, d.attempted_at) AS base,
        -- A lease exists only while a worker consumes; a state we do not know may be one.
        coalesce(d.log_found, false) AND coalesce(d.log_state NOT IN ('CONSUMED', 'FAILED', 'EXPIRED', 'PARKED'), true)
            AS leased,
        -- Also an end that never comes (stores read it as the year 9000 or later): the sweep may take such a lease back at any time.
        d.lease_expires_at IS NULL OR d.lease_expires_at >= 221845392000000000 AS endless,
        CASE
            WHEN NOT coalesce(d.log_answered, false) OR d.log_found IS NULL THEN 'logs_unread'
            WHEN d.log_found AND NOT coalesce(d.log_valid, false) THEN 'log_invalid'
            -- Of the topic's broker, and of the broker of each copy.
            WHEN NOT coalesce(s.clock_good AND g.clock_good AND coalesce(c.clock_good, true), false) THEN 'clock_skew'
            WHEN NOT coalesce(d.created_at >= g.log_floor, false) THEN 'log_purged'
            WHEN NOT coalesce(s.attempts_read, false) THEN 'attempts_unread'
            WHEN NOT coalesce(g.offsets_read AND g.retry_read AND coalesce(c.offsets_read, true), false) THEN 'offsets_unread'
            -- After the offsets: without them no epoch is known, and nobody should be asked about a new one.
            WHEN coalesce(c.of_older_epoch, false) THEN 'new_epoch'
            WHEN NOT coalesce(g.dead_letters_read AND coalesce(c.dead_letters_read, true), false) THEN 'dlq_not_read'
            WHEN coalesce(c.progress_unknown, false) THEN 'progress_unknown'
        END AS missing
    FROM delivery d
    CROSS JOIN instant i
    JOIN policy p ON p.topic = d.topic AND p.consumer_group = d.consumer_group
    LEFT JOIN shard_state s ON s.shard = d.shard
    LEFT JOIN group_state g ON g.topic = d.topic AND g.consumer_group = d.consumer_group AND g.broker = p.broker
    LEFT JOIN seen c ON c.stub_id = d.stub_id AND c.consumer_group = d.consumer_group
    LEFT JOIN (SELECT DISTINCT topic, message_id, consumer_group FROM decision) z
        ON z.topic = d.topic AND z.message_id = d.message_id AND z.consumer_group = d.consumer_group
    LEFT JOIN (SELECT DISTINCT topic, message_id, consumer_group FROM waiting) w
        ON w.topic = d.topic AND w.message_id = d.message_id AND w.consumer_group = d.consumer_group
    LEFT JOIN (SELECT DISTINCT topic, message_id, consumer_group FROM dead_letter WHERE consumer_group IS NOT NULL) l
        ON l.topic = d.topic AND l.message_id = d.message_id AND l.consumer_group = d.consumer_group
    LEFT JOIN (SELECT DISTINCT topic, message_id FROM dead_letter WHERE consumer_group IS NULL) n
        ON n.topic = d.topic AND n.message_id = d.message_id
),
matched AS (
    SELECT f.*,
        CASE
            WHEN f.status = 'voided' OR f.discarded THEN 'VOIDED'
            WHEN f.status = 'confirmed' OR (f.received AND f.log_valid AND f.log_state = 'CONSUMED') THEN 'CONFIRMED'
            WHEN f.dead_lettered THEN 'DEAD_LETTERED'
            WHEN f.received AND f.log_state = 'PARKED' THEN 'PARKED'
            WHEN f.leased AND (f.endless OR f.lease_expires_at + f.max_clock_skew > f.as_of)
                THEN 'IN_PROGRESS'
            WHEN f.received AND f.as_of < f.log_updated_at + f.consume_timeout THEN 'IN_PROGRESS'
            WHEN NOT f.received AND f.as_of < f.next_check_at THEN 'WAITING'
            WHEN NOT f.acknowledged AND f.as_of < coalesce(f.first_seen_at, f.as_of) + f.first_check THEN 'WAITING'
            -- What waits for another delivery is ahead, however far the group has passed its place in the topic.
            WHEN f.copies_ahead > 0 OR f.waits THEN 'BACKLOGGED'
            WHEN f.missing IS NOT NULL THEN 'UNKNOWN'
            WHEN f.received AND f.copies_past = f.copies THEN 'STALLED'
            WHEN NOT f.received AND f.copies_past = f.copies AND NOT f.acknowledged THEN 'UNSENT'
            WHEN NOT f.received AND f.copies_past = f.copies AND f.acknowledged THEN 'LOST'
            ELSE 'UNKNOWN'
        END AS matched
    FROM facts f
),
repairable AS (
    SELECT m.*,
        coalesce(m.matched IN ('UNSENT', 'LOST')
            OR (m.matched = 'STALLED' AND m.duplicates <> 'no'
                AND m.as_of >= m.log_updated_at + m.redelivery_horizon), false) AS repairable,
        CASE
            WHEN m.status = 'exhausted' THEN 'given_up'
            WHEN m.send_count - m.refusals >= m.budget THEN 'sends_used'
            WHEN m.refusals >= m.max_refusals THEN 'refused'
            WHEN m.as_of >= greatest(m.created_at, m.deliver_at) + m.replay_horizon THEN 'too_old'
        END AS spent
    FROM matched m
),
judged AS (
    SELECT r.*,
        CASE WHEN r.repairable AND r.spent IS NOT NULL THEN 'EXHAUSTED' ELSE r.matched END AS verdict,
        r.repairable AND r.spent IS NULL AS eligible,
        CASE
            WHEN r.repairable AND r.spent IS NOT NULL THEN r.spent
            WHEN r.matched = 'VOIDED' AND r.status = 'voided' THEN 'stub_voided'
            WHEN r.matched = 'VOIDED' THEN 'discarded'
            WHEN r.matched = 'CONFIRMED' AND r.received THEN 'consumed'
            WHEN r.matched = 'CONFIRMED' THEN 'stub_confirmed'
            WHEN r.matched = 'DEAD_LETTERED' THEN 'dead_letter'
            WHEN r.matched = 'PARKED' THEN 'ordering_key'
            WHEN r.matched = 'IN_PROGRESS' AND r.leased AND r.endless THEN 'lease_without_expiry'
            WHEN r.matched = 'IN_PROGRESS' AND r.leased AND r.lease_expires_at + r.max_clock_skew > r.as_of THEN 'leased'
            WHEN r.matched = 'IN_PROGRESS' THEN 'touched_lately'
            WHEN r.matched = 'WAITING' AND NOT r.received AND r.as_of < r.next_check_at THEN 'not_due'
            WHEN r.matched = 'WAITING' THEN 'first_check'
            WHEN r.matched = 'BACKLOGGED' AND r.waits THEN 'unacknowledged'
            WHEN r.matched = 'BACKLOGGED' AND r.received THEN 'to_be_redelivered'
            WHEN r.matched = 'BACKLOGGED' THEN 'ahead_of_group'
            WHEN r.matched = 'UNKNOWN' THEN coalesce(r.missing, 'undecidable')
            WHEN r.matched = 'STALLED' AND r.repairable THEN 'not_finished'
            WHEN r.matched = 'STALLED' AND r.duplicates = 'no' THEN 'no_duplicates_allowed'
            WHEN r.matched = 'STALLED' THEN 'redelivery_possible'
            WHEN r.matched = 'UNSENT' AND r.copies = 0 AND r.send_count = 0 THEN 'never_sent'
            WHEN r.matched = 'UNSENT' AND r.copies = 0 THEN 'refused'
            WHEN r.matched = 'UNSENT' THEN 'not_stored'
            WHEN r.expired THEN 'expired_in_broker'
            WHEN r.truncated THEN 'truncated'
            ELSE 'passed_over'
        END AS reason,
        -- Null: never again, or only the claim moves it.
        CASE
            WHEN r.matched IN ('VOIDED', 'CONFIRMED') OR r.repairable THEN NULL
            WHEN r.matched = 'IN_PROGRESS' AND r.leased AND r.endless
                THEN greatest(r.as_of + r.recheck, r.log_updated_at + r.consume_timeout)
            WHEN r.matched = 'IN_PROGRESS' AND r.leased
                THEN greatest(r.lease_expires_at + r.max_clock_skew, r.log_updated_at + r.consume_timeout)
            WHEN r.matched = 'IN_PROGRESS' THEN r.log_updated_at + r.consume_timeout
            WHEN r.matched = 'WAITING' THEN greatest(
                CASE WHEN NOT r.received THEN r.next_check_at END,
                CASE WHEN NOT r.acknowledged THEN coalesce(r.first_seen_at, r.as_of) + r.first_check END)
            WHEN r.matched = 'BACKLOGGED'
                THEN r.as_of + greatest(r.recheck, least(coalesce(r.wait_estimate, r.recheck), r.queue_delay_cap))
            WHEN r.matched = 'STALLED' AND r.as_of < r.log_updated_at + r.redelivery_horizon
                THEN r.log_updated_at + r.redelivery_horizon
            ELSE r.as_of + r.recheck
        END AS planned_look
    FROM repairable r
)
SELECT
    j.stub_id, j.shard, j.topic, j.message_id, j.consumer_group,
    j.status, j.send_count, j.refusals, j.budget, j.verdict, j.reason, j.eligible,
    CASE
        WHEN j.verdict IN ('VOIDED', 'CONFIRMED') THEN NULL
        WHEN j.verdict = 'EXHAUSTED' THEN 'exhausted'
        WHEN j.verdict = 'UNKNOWN' AND j.reason = 'new_epoch' THEN 'new_epoch'
        WHEN j.reason = 'no_duplicates_allowed' AND j.as_of >= j.log_updated_at + j.redelivery_horizon THEN 'stalled'
        WHEN j.as_of >= j.base + j.overdue_horizon THEN 'overdue'
        WHEN j.verdict = 'BACKLOGGED' AND j.as_of >= j.base + j.backlog_horizon THEN 'backlog'
        WHEN j.verdict = 'UNKNOWN' AND j.as_of >= j.base + j.unknown_horizon THEN 'unknown'
    END AS case_kind,
    -- Never later than the next horizon that makes a case, nor than the replay horizon from now, whatever instants a row holds.
    CASE WHEN j.planned_look IS NULL THEN NULL ELSE least(
        j.planned_look,
        j.as_of + j.replay_horizon,
        CASE WHEN j.as_of < j.base + j.overdue_horizon THEN j.base + j.overdue_horizon END,
        CASE WHEN j.verdict = 'BACKLOGGED' AND j.as_of < j.base + j.backlog_horizon THEN j.base + j.backlog_horizon END,
        CASE WHEN j.verdict = 'UNKNOWN' AND j.as_of < j.base + j.unknown_horizon THEN j.base + j.unknown_horizon END)
    END AS next_look_at,
    -- One that lies far ahead would be counted by each run: too few only ask a person too early.
    coalesce(j.verdict = 'CONFIRMED' AND j.log_consumed_at > coalesce(j.judged_at, 0)
        AND j.log_consumed_at < j.as_of + j.unknown_horizon, false) AS newly,
    j.received, j.log_state, j.log_updated_at, j.lease_expires_at, j.copies, j.copies_ahead, j.acknowledged,
    j.queue_id, j.copy_offset, j.settled_offset, j.passed_until, j.missing
FROM judged j
