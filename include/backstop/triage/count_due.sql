-- Named queries on the control database: what a triage run would find to do.

-- name: due: letters to classify by the present rules, letters to decide, replays whose request has ended; each up to a limit.
-- Every part reads its own index alone: it is asked every minute, however many letters wait for a person.
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NULL
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        UNION ALL
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NOT NULL AND d.classified_by IS NULL
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        UNION ALL
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NOT NULL AND d.classified_by < %(version)s
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        UNION ALL
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NOT NULL AND d.classified_by > %(version)s
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        LIMIT %(limit)s) AS to_classify),
    (SELECT count(*) FROM (
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NULL
            AND (d.look_at IS NULL OR d.look_at <= statement_timestamp())
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        UNION ALL
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NOT NULL AND d.look_at IS NULL
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        UNION ALL
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.cause_id IS NOT NULL AND d.look_at <= statement_timestamp()
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        UNION ALL
        SELECT 1 FROM dead_letter d
        WHERE d.state = 'open' AND d.classified_at > d.decided_at AND d.look_at > statement_timestamp()
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        LIMIT %(limit)s) AS to_decide),
    (SELECT count(*) FROM (
        SELECT 1 FROM dead_letter d
        LEFT JOIN resend_request r ON r.topic = d.topic AND r.message_id = d.message_id AND r.send_number = d.send_number
        WHERE d.state = 'replaying'
            AND (r.state IS NULL OR r.state NOT IN ('open', 'claimed')
                OR r.groups IS NOT NULL AND NOT d.consumer_group = ANY (r.groups))
            AND (%(topics)s::text[] IS NULL OR d.topic = ANY (%(topics)s::text[]))
        LIMIT %(limit)s) AS replays_ended);

-- name: unread: what a run could not read, besides what its steps raised
SELECT DISTINCT s.detail FROM staged_read s JOIN run r USING (run_id, stage)
WHERE s.run_id = %(run_id)s AND NOT s.complete AND s.detail IS NOT NULL
ORDER BY 1;
