-- Since when each group is known to take a topic: a group that comes to a live topic owes nothing of its history, unless
-- somebody says so with active_from.
CREATE TABLE owed_since (
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    first_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    owed_from      timestamptz,
    PRIMARY KEY (topic, consumer_group)
);
COMMENT ON COLUMN owed_since.owed_from IS 'null: the group was in the first configuration of its topic, and owes everything';
