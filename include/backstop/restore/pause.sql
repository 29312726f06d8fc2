-- Named queries on the control database: stopping and going on with sends.

-- name: pause: stops sending for a topic, or for all ('*'), between two batches
INSERT INTO pause (topic, paused_by, why) VALUES (%(topic)s, %(who)s, %(why)s)
ON CONFLICT (topic) DO NOTHING;

-- name: resume: sending goes on
DELETE FROM pause WHERE topic = %(topic)s;

-- name: resume_all: sending goes on for everything
DELETE FROM pause;

-- name: paused: what is paused now
SELECT topic, paused_at, paused_by, why FROM pause ORDER BY topic;
