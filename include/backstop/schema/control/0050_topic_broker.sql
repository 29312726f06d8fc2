-- At which broker a topic was when: rows of mapped tables do not say where their relay sent them.

CREATE TABLE IF NOT EXISTS topic_broker (
    topic      text        NOT NULL,
    broker     text        NOT NULL,
    seen_from  timestamptz NOT NULL,
    seen_until timestamptz NOT NULL,
    PRIMARY KEY (topic, broker, seen_from)
);
COMMENT ON TABLE topic_broker IS 'at which broker runs that looked at mapped tables found each topic';
COMMENT ON COLUMN topic_broker.seen_from IS 'the last run that found the topic at another broker before; -infinity: it was never found elsewhere';
COMMENT ON COLUMN topic_broker.seen_until IS 'the last run that found it there';
