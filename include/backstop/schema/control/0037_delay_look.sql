-- By when whatever was due in a topic had left its broker's delay storage: a delayed message may come late, and is stored then.
CREATE TABLE delay_look (
    broker          text        NOT NULL,
    topic           text        NOT NULL,
    recorded_at     timestamptz NOT NULL,
    delivered_until timestamptz NOT NULL
);
CREATE INDEX delay_look_lookup ON delay_look (broker, topic, delivered_until);
COMMENT ON COLUMN delay_look.delivered_until IS 'by the broker''s clock: nothing that was due before it was left when this was recorded';
