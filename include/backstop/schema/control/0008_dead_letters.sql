-- Dead letters: drained from the brokers' queues, understood, decided. Stored before the broker forgets them.

-- One page of a dead-letter queue, stored in one transaction and then acknowledged to the broker.
CREATE TABLE drain_batch (
    batch_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id          bigint      NOT NULL REFERENCES run,
    broker          text        NOT NULL,
    queue           text        NOT NULL,
    letters         integer     NOT NULL CHECK (letters >= 0),
    stored_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    acknowledged_at timestamptz
);
CREATE INDEX drain_batch_open ON drain_batch (broker, queue) WHERE acknowledged_at IS NULL;
COMMENT ON COLUMN drain_batch.acknowledged_at IS 'null: stored, and perhaps still in the broker; it is read again and stored once';

CREATE TABLE drain_mark (
    broker        text        NOT NULL,
    queue         text        NOT NULL,
    drained_until timestamptz NOT NULL,
    run_id        bigint      NOT NULL REFERENCES run,
    PRIMARY KEY (broker, queue)
);
COMMENT ON COLUMN drain_mark.drained_until IS 'everything that was in the queue at this instant is stored';

-- What letters died of, with all that differs from one letter to the next taken out.
CREATE TABLE cause (
    cause_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint   text        NOT NULL UNIQUE,
    template      text        NOT NULL,
    category      text        NOT NULL CHECK (category IN ('duplicate_suppressed', 'already_confirmed', 'busy_exhausted',
                              'expired', 'transient', 'poison', 'conflict', 'unknown')),
    first_seen_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL,
    dead_letters  bigint      NOT NULL DEFAULT 0 CHECK (dead_letters >= 0),
    examples      bigint[]    NOT NULL DEFAULT '{}'
);
COMMENT ON COLUMN cause.category IS 'what the rules say of the text; a letter''s own category may differ, because the log decides';
COMMENT ON COLUMN cause.examples IS 'ids of a few of its letters, the first ones';
-- By how many blanks the template has: only templates of one length and category make a pattern together.
CREATE INDEX cause_shape ON cause (category, (length(template) - length(replace(template, ' ', ''))), last_seen_at, cause_id);
CREATE INDEX cause_pattern ON cause ((length(template) - length(replace(template, ' ', ''))))
    WHERE strpos(template, '<name>') > 0 OR strpos(template, '<any>') > 0;

CREATE TABLE dead_letter (
    dead_letter_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id       bigint      NOT NULL REFERENCES drain_batch,
    broker         text        NOT NULL,
    queue          text        NOT NULL,
    broker_id      text        NOT NULL,
    consumer_group text,
    topic          text,
    message_id     text,
    queue_id       integer,
    queue_offset   bigint,
    queue_epoch    text,
    tag            text,
    partition_key  text,
    headers        bytea       NOT NULL,
    content        bytea,
    content_bytes  bigint      NOT NULL CHECK (content_bytes >= 0),
    aside          boolean     NOT NULL DEFAULT false,
    properties     jsonb       NOT NULL DEFAULT '{}',
    cause_text     text        NOT NULL DEFAULT '',
    error          text        NOT NULL DEFAULT '',
    deliveries     integer,
    died_at        timestamptz,
    drained_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    invalid        text,
    cause_id       bigint      REFERENCES cause,
    category       text        CHECK (category IN ('duplicate_suppressed', 'already_confirmed', 'busy_exhausted',
                               'expired', 'transient', 'poison', 'conflict', 'unknown')),
    classified_at  timestamptz,
    classified_by  text,
    state          text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'replaying', 'replayed', 'discarded')),
    decision       text        CHECK (decision IN ('discard', 'replay', 'escalate', 'wait')),
    reason         text,
    decided_at     timestamptz,
    decided_by     text,
    look_at        timestamptz,
    left_in_case   bigint      REFERENCES case_file,
    barred         text        CHECK (barred IN ('given_up', 'refused_for_good', 'no_route')),
    shard          text,
    send_number    integer     CHECK (send_number >= 1),
    proof          jsonb,
    case_id        bigint      REFERENCES case_file,
    closed_at      timestamptz,
    UNIQUE (broker, queue, broker_id),
    CHECK ((closed_at IS NULL) = (state IN ('open', 'replaying'))),
    CHECK (state NOT IN ('replaying', 'replayed') OR (shard IS NOT NULL AND send_number IS NOT NULL)),
    CHECK (state <> 'discarded' OR (proof IS NOT NULL AND decided_by IS NOT NULL)),
    CHECK ((cause_id IS NULL) = (classified_at IS NULL) AND (cause_id IS NULL) = (category IS NULL))
);
COMMENT ON TABLE dead_letter IS 'One entry of a dead-letter queue, whole, and what was decided of it';
COMMENT ON COLUMN dead_letter.headers IS 'a JSON object, text to text, byte for byte as the broker had it where it had one';
COMMENT ON COLUMN dead_letter.content IS 'null: kept in dead_letter_aside (aside), or purged by the policy';
COMMENT ON COLUMN dead_letter.properties IS 'what the broker itself wrote to it';
COMMENT ON COLUMN dead_letter.cause_text IS 'why, in the broker''s words; error: in the consumer''s';
COMMENT ON COLUMN dead_letter.invalid IS 'why it breaks the contract of a message; with a readable id it still counts as something that is there';
COMMENT ON COLUMN dead_letter.look_at IS 'a letter that waits is not looked at before';
COMMENT ON COLUMN dead_letter.left_in_case IS 'a person left it on purpose, in this case; only a person who takes it up ends that';
COMMENT ON COLUMN dead_letter.barred IS 'how its request ended so that no machine asks again; only a person who takes it up ends that';
COMMENT ON COLUMN dead_letter.proof IS 'what showed that nothing was left to do: the log row, or the person''s decision';
CREATE INDEX dead_letter_batch ON dead_letter (batch_id);
CREATE INDEX dead_letter_message ON dead_letter (topic, message_id);
CREATE INDEX dead_letter_open ON dead_letter (cause_id, topic, consumer_group) WHERE state = 'open';
CREATE INDEX dead_letter_replaying ON dead_letter (topic, message_id, send_number) WHERE state = 'replaying';
CREATE INDEX dead_letter_case ON dead_letter (case_id) WHERE case_id IS NOT NULL;
CREATE INDEX dead_letter_cause ON dead_letter (cause_id) WHERE cause_id IS NOT NULL;
CREATE INDEX dead_letter_left ON dead_letter (left_in_case) WHERE left_in_case IS NOT NULL;
CREATE INDEX dead_letter_unclosed ON dead_letter (dead_letter_id) WHERE state = 'open';
CREATE INDEX dead_letter_look ON dead_letter (look_at) WHERE state = 'open';
CREATE INDEX dead_letter_rules ON dead_letter (classified_by) WHERE state = 'open';
CREATE INDEX dead_letter_reclassified ON dead_letter (look_at) WHERE state = 'open' AND classified_at > decided_at;

CREATE TABLE dead_letter_aside (
    dead_letter_id bigint PRIMARY KEY REFERENCES dead_letter ON DELETE CASCADE,
    content        bytea  NOT NULL
);
COMMENT ON TABLE dead_letter_aside IS 'Large contents, whole: reading letters does not drag them along';

-- Written by classify, audited, then promoted.
CREATE TABLE staged_letter (
    run_id         bigint  NOT NULL REFERENCES run ON DELETE CASCADE,
    stage          integer NOT NULL,
    dead_letter_id bigint  NOT NULL,
    fingerprint    text    NOT NULL,
    template       text    NOT NULL,
    rule_category  text    NOT NULL,
    category       text    NOT NULL,
    classified_by  text    NOT NULL,
    PRIMARY KEY (run_id, stage, dead_letter_id)
);
COMMENT ON COLUMN staged_letter.rule_category IS 'what the rules say of the text; category: after the log was asked';

-- A person's edits: the version that was, and the one that is sent instead.
CREATE TABLE message_version (
    shard           text        NOT NULL,
    topic           text        NOT NULL,
    message_id      text        NOT NULL,
    content_version integer     NOT NULL CHECK (content_version >= 1),
    content         bytea       NOT NULL,
    case_id         bigint      REFERENCES case_file,
    written_by      text        NOT NULL,
    why             text        NOT NULL,
    written_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, message_id, content_version)
);

CREATE TABLE case_note (
    note_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    case_id    bigint      NOT NULL REFERENCES case_file ON DELETE CASCADE,
    written_by text        NOT NULL,
    note       text        NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX case_note_case ON case_note (case_id);

ALTER TABLE case_file ADD COLUMN reopened integer NOT NULL DEFAULT 0 CHECK (reopened >= 0);
COMMENT ON COLUMN case_file.reopened IS 'how often its cause came back after it was closed';
ALTER TABLE case_file DROP CONSTRAINT case_file_kind_check;
ALTER TABLE case_file ADD CONSTRAINT case_file_kind_check CHECK (kind IN
    ('exhausted', 'mass_loss', 'new_epoch', 'backlog', 'unknown', 'overdue', 'stalled', 'no_route', 'refused',
     'ramp_stopped', 'order_gap', 'order_parked', 'lease_leak', 'repeated_failure', 'dead_letters'));
