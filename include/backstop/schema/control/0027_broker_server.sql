-- Servers of a broker that ever had, or could have, a part of a topic: a look at fewer of them is not whole.
CREATE TABLE broker_server (
    broker        text        NOT NULL,
    kind          text        NOT NULL,
    topic         text        NOT NULL,
    server        text        NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, kind, topic, server)
);
COMMENT ON COLUMN broker_server.kind IS 'of the broker when it was seen: another kind under the same name has other servers';
COMMENT ON COLUMN broker_server.server IS 'the name of a RocketMQ master; other brokers are one server and have no rows';
