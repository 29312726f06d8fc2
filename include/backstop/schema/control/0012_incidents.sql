-- Replays by hand: what was planned and shown is what is asked for; a delivery that moved on since is only left out.

CREATE TABLE incident (
    run_id      bigint      PRIMARY KEY REFERENCES run,
    wanted      jsonb       NOT NULL,
    planned_by  text        NOT NULL,
    why         text        NOT NULL,
    whole       boolean     NOT NULL DEFAULT false,
    too_wide    boolean     NOT NULL DEFAULT true,
    left_out    jsonb       NOT NULL DEFAULT '{}',
    planned_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    approved_by text,
    approved_at timestamptz,
    paced_until timestamptz,
    CHECK ((approved_by IS NULL) = (approved_at IS NULL))
);
COMMENT ON COLUMN incident.whole IS 'false: the planning was cut short; nothing of it is asked for';
COMMENT ON COLUMN incident.too_wide IS 'more than the blast radius of the policy: somebody sees the plan and says yes before all of it runs';
COMMENT ON COLUMN incident.left_out IS 'why -> how many deliveries that were asked for are not in the plan';
CREATE TABLE incident_delivery (
    run_id         bigint   NOT NULL REFERENCES incident ON DELETE CASCADE,
    place          integer  NOT NULL CHECK (place >= 1),
    shard          text     NOT NULL,
    topic          text     NOT NULL,
    message_id     text     NOT NULL,
    consumer_group text     NOT NULL,
    send_number    integer  NOT NULL CHECK (send_number >= 1),
    route          text     NOT NULL CHECK (route IN ('topic', 'group')),
    reason         text     NOT NULL,
    letters        bigint[] NOT NULL DEFAULT '{}',
    seen           jsonb    NOT NULL DEFAULT '[]',
    asked_at       timestamptz,
    left_out       text,
    PRIMARY KEY (run_id, place),
    UNIQUE (run_id, topic, message_id, consumer_group),
    CHECK (asked_at IS NULL OR left_out IS NULL)
);
CREATE INDEX incident_delivery_asked ON incident_delivery (topic, consumer_group, asked_at) WHERE asked_at IS NOT NULL;
COMMENT ON COLUMN incident.approved_by IS 'null: nobody was asked, because nobody had to be; who asked for it is in its requests';
COMMENT ON COLUMN incident.paced_until IS 'by its rate, what was asked for of it is out by then';
COMMENT ON COLUMN incident_delivery.asked_at IS 'null: planned, and not asked for yet; a canary asks for the first ones only';
COMMENT ON COLUMN incident_delivery.left_out IS 'why it was not asked for when its turn came; it is not tried again';
COMMENT ON COLUMN incident_delivery.letters IS 'its dead letters, which are replayed with it';
COMMENT ON COLUMN incident_delivery.seen IS 'of each letter, when it was classified and decided: one that was decided since is not replayed';
