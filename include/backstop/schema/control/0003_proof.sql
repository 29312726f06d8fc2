-- Proofs of a window: what was asked, what was answered, and by what it can be checked.

CREATE TABLE proof (
    run_id      bigint      PRIMARY KEY REFERENCES run,
    topic       text        NOT NULL,
    window_from timestamptz NOT NULL,
    window_to   timestamptz NOT NULL CHECK (window_to > window_from),
    answer      text        NOT NULL CHECK (answer IN ('nothing_lost', 'lost', 'unfinished', 'incomplete')),
    sentence    text        NOT NULL,
    stubs       jsonb       NOT NULL,
    owed_stubs  bigint      NOT NULL CHECK (owed_stubs >= 0),
    broken      bigint      NOT NULL CHECK (broken >= 0),
    deliveries  bigint      NOT NULL CHECK (deliveries >= 0),
    missed      jsonb       NOT NULL DEFAULT '{}',
    digest      text        NOT NULL,
    proved_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN proof.stubs IS 'status -> how many stubs of the window have it';
CREATE TABLE proof_count (
    run_id         bigint NOT NULL REFERENCES proof ON DELETE CASCADE,
    consumer_group text   NOT NULL,
    standing       text   NOT NULL CHECK (standing IN
        ('done', 'withdrawn', 'confirmed_earlier', 'not_proven', 'lost', 'unfinished', 'unknown')),
    verdict        text   NOT NULL,
    reason         text   NOT NULL,
    deliveries     bigint NOT NULL CHECK (deliveries > 0),
    PRIMARY KEY (run_id, consumer_group, standing, verdict, reason)
);
