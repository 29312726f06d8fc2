-- Brokers that a topic left, of which a person states that nothing will be delivered from them any more.
CREATE TABLE drained_broker (
    topic     text        NOT NULL,
    broker    text        NOT NULL,
    case_id   bigint      NOT NULL,
    stated_by text        NOT NULL CHECK (btrim(stated_by) <> ''),
    why       text        NOT NULL,
    stated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, broker)
);
COMMENT ON TABLE drained_broker IS 'copies of the topic that went there are judged by the time of its present broker';
COMMENT ON COLUMN drained_broker.case_id IS 'the case that was answered so';
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON drained_broker
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('stated_by', 'approves');
