-- Questions to people: one run of the DAG decide_case each.
CREATE TABLE case_question (
    case_id     bigint      NOT NULL REFERENCES case_file ON DELETE CASCADE,
    number      integer     NOT NULL CHECK (number >= 1),
    dag_run_id  text        NOT NULL UNIQUE,
    asked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    shown_at    timestamptz,
    shown       jsonb       NOT NULL DEFAULT '{}',
    answered_by text,
    answer      text,
    ended_at    timestamptz,
    how         text        CHECK (how IN ('applied', 'partly', 'not_applied', 'over', 'lost')),
    said        text,
    PRIMARY KEY (case_id, number),
    CHECK ((ended_at IS NULL) = (how IS NULL))
);
-- A case is never asked about twice at once.
CREATE UNIQUE INDEX case_question_live ON case_question (case_id) WHERE ended_at IS NULL;
COMMENT ON COLUMN case_question.dag_run_id IS 'written before the run is started, so that a crash in between can neither lose nor double it';
COMMENT ON COLUMN case_question.shown_at IS 'when the person''s form was last written; null: not yet';
COMMENT ON COLUMN case_question.shown IS
    'what the person saw: how often the case had been reopened, how many of it were open, when, and the newest letter of it';
COMMENT ON COLUMN case_question.how IS 'over: the case needed no answer any more; lost: its run ended without one';
COMMENT ON COLUMN case_question.said IS 'what became of the answer; the next question of the case begins with it';

ALTER TABLE case_file ADD COLUMN intention jsonb;
COMMENT ON COLUMN case_file.intention IS
    'a decision that is being applied: whose answer (once), whether it may have changed a producer (reached), what it replaced (before)';
