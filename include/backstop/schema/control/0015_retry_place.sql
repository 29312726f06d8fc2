-- How far each group was in its retry queues at each look: what a group took from there within its settle grace may come again.
CREATE TABLE retry_place (
    consumer_group text        NOT NULL,
    broker         text        NOT NULL,
    topic          text        NOT NULL,
    recorded_at    timestamptz NOT NULL,
    places         jsonb       NOT NULL
);
CREATE INDEX retry_place_lookup ON retry_place (consumer_group, broker, topic, recorded_at);
COMMENT ON COLUMN retry_place.places IS 'by the broker''s own name of each queue: the first offset not committed';
