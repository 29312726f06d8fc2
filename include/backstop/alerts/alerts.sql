-- Named queries on the control database: which alert goes where, and what became of it.

-- name: one_at_a_time: held until the transaction ends: it changes many alerts at once, and two of them could wait for each other
SELECT pg_advisory_xact_lock(hashtext('backstop.alerts'));

-- name: escalate: open cases that nobody decided in time are told again, one step more severe each time
-- Only the newest step that has come: after a long silence nobody needs the ones before.
INSERT INTO alert (case_id, dedup_key, severity, title, body)
SELECT c.case_id, story.thread || '/escalated/' || step.number,
    (%(severities)s::text[])[least(array_position(%(severities)s::text[], c.severity) + step.number, cardinality(%(severities)s::text[]))],
    format('Case %%s still waits: %%s in %%s', c.case_id, c.kind, c.topic),
    format('Open since %%s UTC, and nobody has decided it (reminder %%s of %%s). %%s. See: backstop cases show %%s',
        to_char(story.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'), step.number, step.steps, c.summary, c.case_id)
FROM case_file c
CROSS JOIN LATERAL (
    SELECT 'case/' || c.case_id || CASE WHEN c.reopened > 0 THEN '/reopened/' || c.reopened ELSE '' END AS thread) key
CROSS JOIN LATERAL (
    -- A case that came back waits since it came back.
    SELECT key.thread, coalesce((SELECT a.created_at FROM alert a WHERE a.dedup_key = key.thread AND c.reopened > 0),
        c.opened_at) AS since) story
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE clock_timestamp() >= story.since + make_interval(secs => s.after))::integer AS number,
        count(*) AS steps
    FROM unnest(%(owners)s::text[], %(afters)s::float8[]) AS s (severity, after)
    WHERE s.severity = c.severity) step
WHERE c.state = 'open' AND step.number > 0
    AND NOT EXISTS (SELECT 1 FROM alert a WHERE a.dedup_key = story.thread || '/escalated/' || step.number)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: spare: what is over before anybody was told, unless it is critical
UPDATE alert a SET ended = 'spared', ended_at = clock_timestamp()
WHERE a.delivered_at IS NULL AND a.ended IS NULL AND NOT a.closing AND a.severity <> 'critical'
    AND EXISTS (SELECT 1 FROM alert c WHERE c.thread = a.thread AND c.closing);

-- name: spare_on_channels: the same for single channels that another one was quicker than
UPDATE alert_delivery d SET given_up_at = clock_timestamp()
FROM alert a
WHERE a.alert_id = d.alert_id AND d.delivered_at IS NULL AND d.given_up_at IS NULL
    AND NOT a.closing AND (a.severity <> 'critical' OR a.ended IS NOT NULL)
    AND EXISTS (SELECT 1 FROM alert c WHERE c.thread = a.thread AND c.closing);

-- name: spare_closings: nobody was told that it began, and nobody will be
UPDATE alert a SET ended = 'spared', ended_at = clock_timestamp()
WHERE a.delivered_at IS NULL AND a.ended IS NULL AND a.closing
    AND NOT EXISTS (
        SELECT 1 FROM alert t LEFT JOIN alert_delivery d ON d.alert_id = t.alert_id AND d.delivered_at IS NOT NULL
        WHERE t.thread = a.thread AND NOT t.closing
            AND (d.alert_id IS NOT NULL OR (t.delivered_at IS NULL AND t.ended IS NULL)));

-- name: forget_channels: channels that have left the settings take nothing any more
DELETE FROM alert_delivery WHERE delivered_at IS NULL AND channel <> ALL (%(channels)s::text[]);

-- name: route: each alert goes to every channel that takes its severity
INSERT INTO alert_delivery (alert_id, channel)
SELECT a.alert_id, c.channel
FROM (SELECT * FROM alert
    WHERE delivered_at IS NULL AND ended IS NULL AND NOT closing
    ORDER BY severity <> 'critical', alert_id LIMIT %(limit)s) a
JOIN unnest(%(channels)s::text[], %(at_least)s::text[]) AS c (channel, at_least)
    ON array_position(%(severities)s::text[], a.severity) >= array_position(%(severities)s::text[], c.at_least)
    -- That a channel fails is told to the others.
    AND NOT starts_with(a.thread, 'channel/' || c.channel || '@')
ON CONFLICT (alert_id, channel) DO NOTHING;

-- name: route_closings: a closing alert goes to the channels that were told of what it closes, whatever its severity
INSERT INTO alert_delivery (alert_id, channel)
SELECT DISTINCT a.alert_id, d.channel
FROM alert a
JOIN alert t ON t.thread = a.thread AND NOT t.closing
JOIN alert_delivery d ON d.alert_id = t.alert_id AND d.delivered_at IS NOT NULL AND d.channel = ANY (%(channels)s::text[])
WHERE a.closing AND a.ended IS NULL
    AND (a.delivered_at IS NULL OR a.created_at >= clock_timestamp() - make_interval(secs => %(give_up)s))
ON CONFLICT (alert_id, channel) DO NOTHING;

-- name: give_up: a channel is no longer tried with what is too old and another channel took; what nobody took is never too old
UPDATE alert_delivery d SET given_up_at = clock_timestamp()
FROM alert a
WHERE a.alert_id = d.alert_id AND d.delivered_at IS NULL AND d.given_up_at IS NULL
    AND a.created_at < clock_timestamp() - make_interval(secs => %(give_up)s)
    AND a.delivered_at IS NOT NULL;

-- name: end_given_up: closing alerts whose opening was told by channels alone that have left the settings
-- In whole passes: row by row it would be quadratic in a storm, whose rows no statistics know yet.
WITH pending AS MATERIALIZED (
    SELECT alert_id, thread, closing, created_at FROM alert WHERE delivered_at IS NULL AND ended IS NULL
), routed AS MATERIALIZED (
    SELECT DISTINCT d.alert_id FROM alert_delivery d JOIN pending p ON p.alert_id = d.alert_id
)
UPDATE alert a SET ended = 'given_up', ended_at = clock_timestamp()
FROM pending p
WHERE a.alert_id = p.alert_id AND p.closing AND p.created_at < clock_timestamp() - make_interval(secs => %(give_up)s)
    AND p.alert_id NOT IN (SELECT alert_id FROM routed)
    AND p.thread NOT IN (SELECT thread FROM pending WHERE NOT closing);

-- name: end_unrouted: alerts that no channel wants
UPDATE alert a SET ended = 'unrouted', ended_at = clock_timestamp()
WHERE a.delivered_at IS NULL AND a.ended IS NULL AND NOT a.closing
    AND NOT EXISTS (
        SELECT 1 FROM unnest(%(channels)s::text[], %(at_least)s::text[]) AS c (channel, at_least)
        WHERE array_position(%(severities)s::text[], a.severity) >= array_position(%(severities)s::text[], c.at_least)
            AND NOT starts_with(a.thread, 'channel/' || c.channel || '@'));

-- name: any_waiting: whether a deliverer would find something now: an alert without a channel yet, or one that may be tried
SELECT EXISTS (
        SELECT 1 FROM alert_delivery
        WHERE delivered_at IS NULL AND given_up_at IS NULL AND next_try_at <= clock_timestamp())
    OR EXISTS (
        SELECT 1 FROM alert a
        WHERE a.delivered_at IS NULL AND a.ended IS NULL
            AND NOT EXISTS (SELECT 1 FROM alert_delivery d WHERE d.alert_id = a.alert_id));

-- name: any_due: channels that have something to send now, those that work first
SELECT d.channel FROM alert_delivery d LEFT JOIN alert_channel c USING (channel)
WHERE d.delivered_at IS NULL AND d.given_up_at IS NULL AND d.next_try_at <= clock_timestamp()
GROUP BY d.channel, c.failing_since
ORDER BY c.failing_since NULLS FIRST, d.channel;

-- name: claim: this deliverer alone speaks to the channel until its claim ends
INSERT INTO alert_channel AS c (channel, claim_token, claim_until)
VALUES (%(channel)s, %(token)s, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (channel) DO UPDATE SET claim_token = excluded.claim_token, claim_until = excluded.claim_until
WHERE c.claim_until IS NULL OR c.claim_until <= clock_timestamp()
RETURNING channel;

-- name: claim_on: before each message; no row: somebody else has taken the channel over
UPDATE alert_channel SET claim_until = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE channel = %(channel)s AND claim_token = %(token)s
RETURNING channel;

-- name: release: the channel is free for the next deliverer
UPDATE alert_channel SET claim_token = NULL, claim_until = NULL WHERE channel = %(channel)s AND claim_token = %(token)s;

-- name: due: what waits for a channel: the gravest first, what was tried least before what was tried often
-- Whatever else waits of a story goes with its end, also before its next try: after the end it would begin the story again, and
-- nothing would end that.
SELECT a.alert_id, a.dedup_key, a.thread, a.closing, a.severity, a.title, a.body, a.facts, c.kind, c.topic
FROM alert_delivery d
JOIN alert a USING (alert_id)
LEFT JOIN case_file c ON c.case_id = a.case_id
WHERE d.channel = %(channel)s AND d.delivered_at IS NULL AND d.given_up_at IS NULL
    AND (d.next_try_at <= clock_timestamp() OR a.thread IN (
        SELECT o.thread FROM alert o JOIN alert_delivery e USING (alert_id)
        WHERE o.closing AND e.channel = %(channel)s AND e.delivered_at IS NULL AND e.given_up_at IS NULL
            AND e.next_try_at <= clock_timestamp()))
ORDER BY a.severity <> 'critical', d.attempts, a.alert_id
LIMIT %(limit)s;

-- name: sent_lately: how many messages a channel took within the last hour, and how long ago the newest was
SELECT count(*), extract(epoch FROM clock_timestamp() - max(sent_at))::float8 FROM alert_message
WHERE channel = %(channel)s AND sent_at > clock_timestamp() - interval '1 hour';

-- name: keep_message: a channel took a message about so many alerts
INSERT INTO alert_message (channel, alerts) VALUES (%(channel)s, %(alerts)s) RETURNING message_id;

-- name: told: the channel was told of these alerts
UPDATE alert_delivery SET delivered_at = clock_timestamp(), attempts = attempts + 1, message_id = %(message_id)s, error = NULL
WHERE channel = %(channel)s AND alert_id = ANY (%(alerts)s::bigint[]) AND delivered_at IS NULL AND given_up_at IS NULL;

-- name: delivered: somebody was told; only the first channel counts
UPDATE alert SET delivered_at = clock_timestamp(), ended = NULL, ended_at = NULL
WHERE alert_id = ANY (%(alerts)s::bigint[]) AND delivered_at IS NULL;

-- name: works: the channel took a message; since when it had failed, if it had
WITH was AS (SELECT channel, failures, failing_since FROM alert_channel WHERE channel = %(channel)s FOR UPDATE)
UPDATE alert_channel c SET failures = 0, failing_since = NULL FROM was WHERE c.channel = was.channel
RETURNING was.failures, extract(epoch FROM was.failing_since)::bigint;

-- name: not_told: the channel did not take it: again at the next two looks, then after 1, 2, 4, 8 and every 15 minutes
UPDATE alert_delivery SET attempts = attempts + 1, error = %(error)s,
    next_try_at = clock_timestamp() + make_interval(secs =>
        CASE WHEN attempts < 2 THEN 0 ELSE least(900, 60 * 2 ^ least(attempts - 2, 10)) END)
WHERE channel = %(channel)s AND alert_id = ANY (%(alerts)s::bigint[]) AND delivered_at IS NULL AND given_up_at IS NULL;

-- name: fails: the channel did not take a message; how often in a row, since when
UPDATE alert_channel SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp())
WHERE channel = %(channel)s
RETURNING failures, extract(epoch FROM failing_since)::bigint;

-- name: alert: tells people, once for each key
INSERT INTO alert (dedup_key, severity, title, body, facts)
VALUES (%(dedup_key)s, %(severity)s, %(title)s, %(body)s, %(facts)s::jsonb)
ON CONFLICT (dedup_key) DO NOTHING;

-- name: alert_exists: whether this alert was written
SELECT 1 FROM alert WHERE dedup_key = %(dedup_key)s;

-- name: untold: alerts that nobody was told of, by severity; `stuck`: every channel that wants it failed, or is not known here
SELECT a.severity, count(*),
    count(*) FILTER (WHERE EXISTS (SELECT 1 FROM alert_delivery d WHERE d.alert_id = a.alert_id)
        AND NOT EXISTS (SELECT 1 FROM alert_delivery d
            WHERE d.alert_id = a.alert_id AND d.attempts = 0 AND d.channel <> ALL (%(unknown)s::text[]))) AS stuck
FROM alert a
WHERE a.delivered_at IS NULL AND a.ended IS NULL
GROUP BY a.severity;

-- name: missed: alerts that another channel took and that wait for one of these
SELECT count(DISTINCT d.alert_id) FROM alert_delivery d JOIN alert a USING (alert_id)
WHERE d.channel = ANY (%(channels)s::text[]) AND d.delivered_at IS NULL AND d.given_up_at IS NULL AND a.delivered_at IS NOT NULL;

-- name: troubles: which of these channels do not take what they should, since when, and why not
SELECT c.channel, c.failures, c.failing_since,
    (SELECT d.error FROM alert_delivery d WHERE d.channel = c.channel AND d.error IS NOT NULL
        ORDER BY d.next_try_at DESC LIMIT 1) AS error
FROM alert_channel c WHERE c.failures > 0 AND c.channel = ANY (%(channels)s::text[])
ORDER BY c.channel;

-- name: list: alerts, the newest first, and where each was told
SELECT a.alert_id, a.created_at, a.severity, a.dedup_key, a.title, a.body, a.delivered_at, a.ended,
    coalesce(jsonb_object_agg(d.channel, CASE
        WHEN d.delivered_at IS NOT NULL THEN 'told'
        WHEN d.given_up_at IS NOT NULL THEN 'given up'
        WHEN d.attempts > 0 THEN format('%%s tries: %%s', d.attempts, d.error)
        ELSE 'waits' END) FILTER (WHERE d.channel IS NOT NULL), '{}') AS channels
FROM alert a LEFT JOIN alert_delivery d USING (alert_id)
WHERE NOT %(undelivered)s OR (a.delivered_at IS NULL AND a.ended IS NULL)
GROUP BY a.alert_id
ORDER BY a.alert_id DESC
LIMIT %(limit)s;

-- name: forget_messages: the rate looks back an hour
DELETE FROM alert_message WHERE sent_at < clock_timestamp() - interval '7 days';

-- name: forget_runs: deliver_alerts' own runs that went well, a day later, but for the newest: one a minute would bury the others
DELETE FROM run WHERE duty = 'deliver_alerts' AND state = 'done' AND started_at < clock_timestamp() - interval '1 day'
    AND run_id < (SELECT max(r.run_id) FROM run r
        WHERE r.duty = 'deliver_alerts' AND r.scope = '*' AND r.state = 'done' AND NOT r.dry_run);
