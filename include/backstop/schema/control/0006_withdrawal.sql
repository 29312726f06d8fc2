-- Messages that a person withdrew: what was really applied, for a producer's database that is restored later.

CREATE TABLE withdrawal (
    shard      text        NOT NULL,
    topic      text        NOT NULL,
    message_id text        NOT NULL,
    case_id    bigint      NOT NULL REFERENCES case_file,
    decided_by text        NOT NULL,
    why        text        NOT NULL,
    begun_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at timestamptz,
    PRIMARY KEY (shard, topic, message_id)
);
CREATE INDEX withdrawal_begun ON withdrawal (case_id) WHERE applied_at IS NULL;
COMMENT ON COLUMN withdrawal.applied_at IS 'null: begun, and the decision was cut short before it could say whether the stub was voided';

-- Decisions made before this table: which of their members were voided was not kept, so each is only begun.
INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)
SELECT DISTINCT ON (m.shard, m.topic, m.message_id) m.shard, m.topic, m.message_id, c.case_id, c.decided_by, c.why
FROM case_file c JOIN case_member m USING (case_id)
WHERE c.decision = 'void' AND c.decided_by IS NOT NULL AND c.why IS NOT NULL
ORDER BY m.shard, m.topic, m.message_id, c.case_id;
