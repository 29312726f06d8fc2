-- What runs remember of a consumer's own inbox table, in the control database.

-- name: proven: whether a message of the topic was found done by this mapping
SELECT EXISTS (SELECT 1 FROM mapped_log_proof p
    WHERE p.store = %(store)s::text AND p.mapping = %(mapping)s::text AND p.consumer_group = %(group)s::text
        AND p.topic = %(topic)s::text);

-- name: prove: that one was
INSERT INTO mapped_log_proof (store, mapping, consumer_group, topic)
VALUES (%(store)s, %(mapping)s, %(group)s, %(topic)s) ON CONFLICT DO NOTHING;

