-- What each audit saw last of the log of decisions: a log whose newest entries were taken away, or all of them, is a whole chain.
CREATE TABLE decision_seen (
    entry   bigint      PRIMARY KEY CHECK (entry >= 1),
    hash    text        NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE decision_seen IS 'the newest entry of decision_log at each audit, which is there still, or was forgotten';
