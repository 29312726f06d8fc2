-- A stub over its deliveries: its next status and its next look.
--
-- Portable, as verdict.sql. In: instant, stub, judged (the rows of verdict.sql), no_taker (topic -> overdue_horizon,
-- replay_horizon). No look lies beyond the replay horizon from now, whatever instants a row holds.
-- next_look_at null: leave next_check_at (an eligible stub keeps it, which only the claim moves; a closed one has none).
WITH over_deliveries AS (
    SELECT stub_id,
        count(*) AS deliveries,
        sum(CASE WHEN verdict IN ('CONFIRMED', 'VOIDED') THEN 1 ELSE 0 END) AS done,
        sum(CASE WHEN verdict = 'EXHAUSTED' THEN 1 ELSE 0 END) AS exhausted,
        sum(CASE WHEN eligible THEN 1 ELSE 0 END) AS eligible,
        min(next_look_at) AS next_look_at
    FROM judged
    GROUP BY stub_id
),
decided AS (
    SELECT s.stub_id, s.shard, s.topic, s.message_id, s.status AS old_status, s.send_count, i.as_of,
        coalesce(o.deliveries, 0) AS deliveries, coalesce(o.eligible, 0) AS eligible, o.next_look_at,
        least(greatest(s.created_at, s.deliver_at, s.attempted_at) + t.overdue_horizon, i.as_of + t.replay_horizon) AS no_taker_at,
        CASE
            WHEN s.status IN ('confirmed', 'voided') THEN s.status
            -- Only a log or a person moves an exhausted stub on, also when no group owes it any more.
            WHEN o.deliveries IS NULL AND s.status = 'exhausted' THEN 'exhausted'
            WHEN o.deliveries IS NULL AND i.as_of
                >= greatest(s.created_at, s.deliver_at, s.attempted_at) + t.overdue_horizon THEN 'no_taker'
            WHEN o.deliveries IS NULL THEN 'pending'
            WHEN o.done = o.deliveries THEN 'confirmed'
            WHEN o.done + o.exhausted = o.deliveries THEN 'exhausted'
            WHEN s.status = 'exhausted' THEN 'exhausted'
            ELSE 'pending'
        END AS new_status
    FROM stub s
    CROSS JOIN instant i
    JOIN no_taker t ON t.topic = s.topic
    LEFT JOIN over_deliveries o ON o.stub_id = s.stub_id
)
SELECT stub_id, shard, topic, message_id, old_status, new_status, send_count, deliveries,
    CASE
        WHEN new_status <> 'pending' OR eligible > 0 THEN NULL
        WHEN deliveries = 0 THEN no_taker_at
        ELSE next_look_at
    END AS next_look_at
FROM decided
