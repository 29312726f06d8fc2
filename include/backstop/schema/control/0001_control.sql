-- Backstop's own: runs, evidence, verdicts, requests, cases. No other program writes here.

CREATE TABLE run (
    run_id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    duty           text        NOT NULL,
    scope          text        NOT NULL DEFAULT '*',
    token          uuid        NOT NULL,
    stage          integer     NOT NULL DEFAULT 0,
    as_of          timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz,
    state          text        NOT NULL DEFAULT 'running'
                   CHECK (state IN ('running', 'audited', 'promoting', 'done', 'incomplete', 'failed', 'abandoned')),
    dry_run        boolean     NOT NULL DEFAULT false,
    counts         jsonb       NOT NULL DEFAULT '{}',
    phases         jsonb       NOT NULL DEFAULT '{}',
    policy_version text        NOT NULL,
    code_version   text        NOT NULL,
    error          text,
    CHECK ((finished_at IS NULL) = (state IN ('running', 'audited', 'promoting')))
);
CREATE INDEX run_by_duty ON run (duty, started_at DESC);

CREATE TABLE duty_lease (
    duty         text        NOT NULL,
    scope        text        NOT NULL,
    token        uuid        NOT NULL,
    run_id       bigint      NOT NULL REFERENCES run,
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (duty, scope)
);

-- One life of a queue. Copies of an older epoch decide nothing until a person accepts the present one.
CREATE TABLE queue_epoch (
    broker        text        NOT NULL,
    topic         text        NOT NULL,
    queue_id      integer     NOT NULL,
    epoch         text        NOT NULL,
    present       boolean     NOT NULL DEFAULT true,
    accepted      boolean     NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_offset  bigint,
    next_offset   bigint,
    previous_next_offset bigint,
    previous_read_at     timestamptz,
    read_at       timestamptz,
    read_run_id   bigint REFERENCES run,
    PRIMARY KEY (broker, topic, queue_id, epoch)
);
CREATE UNIQUE INDEX queue_epoch_present ON queue_epoch (broker, topic, queue_id) WHERE present;

-- How far a group has got in one queue; progress_history keeps what settled progress needs.
CREATE TABLE progress (
    consumer_group text        NOT NULL,
    broker         text        NOT NULL,
    topic          text        NOT NULL,
    queue_id       integer     NOT NULL,
    epoch          text        NOT NULL,
    next_offset    bigint      NOT NULL,
    passed_until   timestamptz NOT NULL,
    retry_pending  bigint      NOT NULL DEFAULT 0,
    recorded_at    timestamptz NOT NULL,
    run_id         bigint      NOT NULL REFERENCES run,
    PRIMARY KEY (consumer_group, broker, topic, queue_id, epoch)
);
CREATE TABLE progress_history (LIKE progress INCLUDING DEFAULTS);
CREATE INDEX progress_history_lookup ON progress_history (consumer_group, broker, topic, queue_id, epoch, recorded_at);

CREATE TABLE quarantine (
    store         text        NOT NULL,
    row_key       text        NOT NULL,
    reason        text        NOT NULL,
    topic         text,
    message_id    text,
    consumer_group text,
    detail        text,
    first_run_id  bigint      NOT NULL REFERENCES run,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (store, row_key, reason)
);

CREATE TABLE anomaly (
    kind          text        NOT NULL CHECK (kind IN ('ORPHAN', 'DUPLICATE', 'CONFLICT', 'REGRESSION', 'VOIDED_BUT_CONSUMED')),
    subject       text        NOT NULL,
    topic         text,
    message_id    text,
    consumer_group text,
    detail        text,
    times         bigint      NOT NULL DEFAULT 1,
    first_run_id  bigint      NOT NULL REFERENCES run,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, subject)
);

-- Written by the judge, audited, then promoted. `stage` numbers the judge's attempts of one run: only the run's present one counts.
CREATE TABLE staged_verdict (
    run_id         bigint   NOT NULL REFERENCES run ON DELETE CASCADE,
    stage          integer  NOT NULL,
    shard          text     NOT NULL,
    topic          text     NOT NULL,
    message_id     text     NOT NULL,
    consumer_group text     NOT NULL,
    verdict        text     NOT NULL,
    reason         text     NOT NULL,
    eligible       boolean  NOT NULL,
    send_count     integer  NOT NULL,
    case_kind      text,
    next_look_at   timestamptz,
    evidence       jsonb    NOT NULL,
    PRIMARY KEY (run_id, stage, topic, message_id, consumer_group)
);
CREATE TABLE staged_stub (
    run_id        bigint   NOT NULL REFERENCES run ON DELETE CASCADE,
    stage         integer  NOT NULL,
    shard         text     NOT NULL,
    topic         text     NOT NULL,
    message_id    text     NOT NULL,
    old_status    text     NOT NULL,
    new_status    text     NOT NULL,
    send_count    integer  NOT NULL,
    deliveries    integer  NOT NULL,
    next_look_at  timestamptz,
    PRIMARY KEY (run_id, stage, shard, topic, message_id)
);
CREATE TABLE staged_count (
    run_id         bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    stage          integer NOT NULL,
    topic          text    NOT NULL,
    consumer_group text    NOT NULL,
    verdict        text    NOT NULL,
    deliveries     bigint  NOT NULL,
    eligible       bigint  NOT NULL,
    newly          bigint  NOT NULL,
    PRIMARY KEY (run_id, stage, topic, consumer_group, verdict)
);
CREATE TABLE staged_read (
    run_id      bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    stage       integer NOT NULL,
    subject     text    NOT NULL,
    rows_read   bigint  NOT NULL,
    complete    boolean NOT NULL,
    detail      text,
    PRIMARY KEY (run_id, stage, subject)
);

CREATE TABLE verdict (
    run_id         bigint      NOT NULL REFERENCES run,
    shard          text        NOT NULL,
    topic          text        NOT NULL,
    message_id     text        NOT NULL,
    consumer_group text        NOT NULL,
    verdict        text        NOT NULL CHECK (verdict IN
        ('VOIDED', 'DEAD_LETTERED', 'PARKED', 'IN_PROGRESS', 'BACKLOGGED', 'UNKNOWN', 'STALLED', 'UNSENT', 'LOST', 'EXHAUSTED')),
    reason         text        NOT NULL,
    eligible       boolean     NOT NULL,
    send_count     integer     NOT NULL,
    case_kind      text,
    next_look_at   timestamptz,
    evidence       jsonb       NOT NULL,
    PRIMARY KEY (run_id, topic, message_id, consumer_group)
);
CREATE INDEX verdict_by_message ON verdict (topic, message_id, consumer_group, run_id DESC);
CREATE TABLE verdict_count (
    run_id         bigint NOT NULL REFERENCES run,
    topic          text   NOT NULL,
    consumer_group text   NOT NULL,
    verdict        text   NOT NULL,
    deliveries     bigint NOT NULL CHECK (deliveries >= 0),
    eligible       bigint NOT NULL CHECK (eligible >= 0),
    newly          bigint NOT NULL CHECK (newly >= 0),
    PRIMARY KEY (run_id, topic, consumer_group, verdict)
);

CREATE TABLE resend_batch (
    batch_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE resend_request (
    request_id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard          text        NOT NULL,
    topic          text        NOT NULL,
    message_id     text        NOT NULL,
    send_number    integer     NOT NULL CHECK (send_number >= 1),
    groups         text[]      CHECK (groups IS NULL OR cardinality(groups) >= 1),
    reason         text        NOT NULL,
    requested_by   text        NOT NULL,
    route          text        NOT NULL DEFAULT 'topic' CHECK (route IN ('topic', 'group')),
    state          text        NOT NULL DEFAULT 'open' CHECK (state IN
        ('open', 'claimed', 'sent', 'refused', 'unknown', 'not_needed', 'superseded')),
    claim_token    uuid,
    claim_deadline timestamptz,
    not_before     timestamptz NOT NULL DEFAULT clock_timestamp(),
    batch_id       bigint      REFERENCES resend_batch,
    run_id         bigint      REFERENCES run,
    closed_by_run  bigint      REFERENCES run,
    error          text,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (topic, message_id, send_number),
    CHECK ((state = 'claimed') = (claim_token IS NOT NULL AND claim_deadline IS NOT NULL))
);
CREATE INDEX resend_request_due ON resend_request (not_before, request_id) WHERE state = 'open';
CREATE INDEX resend_request_claimed ON resend_request (claim_deadline) WHERE state = 'claimed';
CREATE INDEX resend_request_run ON resend_request (run_id);

CREATE TABLE case_file (
    case_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind           text        NOT NULL CHECK (kind IN
        ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused')),
    topic          text        NOT NULL,
    consumer_group text        NOT NULL DEFAULT '*',
    subject        text        NOT NULL DEFAULT '',
    severity       text        NOT NULL DEFAULT 'warning' CHECK (severity IN ('info', 'warning', 'critical')),
    state          text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'decided', 'closed')),
    summary        text        NOT NULL,
    evidence       jsonb       NOT NULL DEFAULT '{}',
    opened_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_by_run  bigint      REFERENCES run,
    last_seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    decision       text,
    decided_by     text,
    decided_at     timestamptz,
    why            text,
    closed_at      timestamptz,
    CHECK ((state = 'open') = (decided_at IS NULL AND closed_at IS NULL)),
    CHECK (state <> 'decided' OR (decision IS NOT NULL AND decided_by IS NOT NULL AND why IS NOT NULL))
);
-- One open case for one cause: the next finding joins it.
CREATE UNIQUE INDEX case_file_one_open ON case_file (kind, topic, consumer_group, subject) WHERE state = 'open';
CREATE TABLE case_member (
    case_id        bigint NOT NULL REFERENCES case_file ON DELETE CASCADE,
    shard          text   NOT NULL,
    topic          text   NOT NULL,
    message_id     text   NOT NULL,
    consumer_group text   NOT NULL DEFAULT '*',
    added_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at     timestamptz,
    PRIMARY KEY (case_id, topic, message_id, consumer_group)
);
CREATE INDEX case_member_by_message ON case_member (topic, message_id);
COMMENT ON COLUMN case_member.settled_at IS 'when the delivery was seen to be done, withdrawn or discarded';

CREATE TABLE delivery_decision (
    topic          text        NOT NULL,
    message_id     text        NOT NULL,
    consumer_group text        NOT NULL,
    decision       text        NOT NULL CHECK (decision IN ('discard')),
    case_id        bigint      REFERENCES case_file,
    decided_by     text        NOT NULL,
    decided_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    why            text        NOT NULL,
    PRIMARY KEY (topic, message_id, consumer_group)
);

-- Outbox: written in the transaction that makes the case.
CREATE TABLE alert (
    alert_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    case_id    bigint      REFERENCES case_file,
    dedup_key  text        NOT NULL UNIQUE,
    severity   text        NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    title      text        NOT NULL,
    body       text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at timestamptz
);

CREATE TABLE pause (
    topic     text        PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by text        NOT NULL,
    why       text        NOT NULL
);
COMMENT ON COLUMN pause.topic IS '''*'' pauses every topic';

CREATE TABLE data_check (
    run_id      bigint      NOT NULL REFERENCES run,
    suite       text        NOT NULL,
    passed      boolean     NOT NULL,
    expectations integer    NOT NULL,
    failed      jsonb       NOT NULL DEFAULT '[]',
    report      text,
    checked_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, suite)
);

-- How far a duty that reads in time order has got.
CREATE TABLE watermark (
    subject text        PRIMARY KEY,
    reached timestamptz NOT NULL
);
