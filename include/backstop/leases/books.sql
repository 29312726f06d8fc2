-- The books of consumers, in the consumer database: one row for each member of a group.

-- name: write: this member's books as they are now; those of members that are long gone are forgotten
WITH gone AS (
    DELETE FROM consumer_books
    WHERE consumer_group = %(group)s::text AND member <> %(member)s::text
        AND written_at < clock_timestamp() - %(kept_seconds)s::float8 * interval '1 second'
)
INSERT INTO consumer_books AS b (consumer_group, member, life, counts, in_process, has_ended)
VALUES (%(group)s::text, %(member)s::text, %(life)s::text, %(counts)s::jsonb, %(in_process)s::integer, %(has_ended)s::boolean)
ON CONFLICT (consumer_group, member) DO UPDATE SET
    counts = excluded.counts, in_process = excluded.in_process, has_ended = excluded.has_ended, written_at = clock_timestamp(),
    started_at = CASE WHEN b.life = excluded.life THEN b.started_at ELSE clock_timestamp() END, life = excluded.life
RETURNING member;
