-- Alerts on their way out: what each channel was told, what nobody needs to be told any more, and how each channel does.

ALTER TABLE alert
    ADD COLUMN facts jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN ended text CHECK (ended IN ('spared', 'given_up', 'unrouted')),
    ADD COLUMN ended_at timestamptz,
    -- A case that was reopened is a new story with a closing of its own.
    ADD COLUMN thread text NOT NULL
        GENERATED ALWAYS AS (substring(dedup_key FROM '^(case/[0-9]+/reopened/[0-9]+|[^/]*/?[^/]*)')) STORED,
    ADD COLUMN closing boolean NOT NULL GENERATED ALWAYS AS (dedup_key ~ '/(closed|over)$') STORED,
    ADD CHECK ((ended IS NULL) = (ended_at IS NULL));
COMMENT ON COLUMN alert.facts IS 'names only, for channels that take fields: the duty, its run, the task';
COMMENT ON COLUMN alert.ended IS 'never sent: over before anybody was told, too old, or wanted by no channel';
COMMENT ON COLUMN alert.thread IS 'the alerts of one story, from the first to the closing one';
CREATE INDEX alert_pending ON alert (alert_id) WHERE delivered_at IS NULL AND ended IS NULL;
CREATE INDEX alert_thread ON alert (thread);

-- One row for each message that a channel took: an alert, or a digest of many.
CREATE TABLE alert_message (
    message_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel    text        NOT NULL,
    alerts     integer     NOT NULL CHECK (alerts >= 1),
    sent_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX alert_message_rate ON alert_message (channel, sent_at);

CREATE TABLE alert_delivery (
    alert_id     bigint      NOT NULL REFERENCES alert ON DELETE CASCADE,
    channel      text        NOT NULL,
    attempts     integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_try_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at timestamptz,
    given_up_at  timestamptz,
    message_id   bigint,
    error        text,
    PRIMARY KEY (alert_id, channel),
    CHECK (delivered_at IS NULL OR given_up_at IS NULL)
);
COMMENT ON COLUMN alert_delivery.message_id IS 'the message that told of it; messages are kept for a week only';
COMMENT ON COLUMN alert_delivery.error IS 'what kind of failure the last try was; never a URL nor what the other side said';
CREATE INDEX alert_delivery_waiting ON alert_delivery (channel, next_try_at) WHERE delivered_at IS NULL AND given_up_at IS NULL;

CREATE TABLE alert_channel (
    channel       text        PRIMARY KEY,
    claim_token   uuid,
    claim_until   timestamptz,
    failures      integer     NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failing_since timestamptz,
    CHECK ((claim_token IS NULL) = (claim_until IS NULL)),
    CHECK ((failures = 0) = (failing_since IS NULL))
);
COMMENT ON COLUMN alert_channel.claim_until IS 'one deliverer at a time speaks to a channel; one that died loses it at this instant';

-- What the webhook was told until now, so that it hears the closing alerts of it.
INSERT INTO alert_delivery (alert_id, channel, attempts, delivered_at)
SELECT alert_id, 'notify', 1, delivered_at FROM alert WHERE delivered_at IS NOT NULL;
