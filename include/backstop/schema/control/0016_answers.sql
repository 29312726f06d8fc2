-- What people answered, written by the task that asked them: what Airflow's tasks hand to one another proves nothing.
ALTER TABLE case_question ADD COLUMN given jsonb;
COMMENT ON COLUMN case_question.given IS
    'the answer to the form that was written last: option, inputs, user_id, user_name; null: nobody has answered it';

ALTER TABLE incident
    ADD COLUMN planned_in text,
    ADD COLUMN shown      jsonb,
    ADD COLUMN given      jsonb;
CREATE INDEX incident_planned_in ON incident (planned_in) WHERE planned_in IS NOT NULL;
COMMENT ON COLUMN incident.planned_in IS 'the run of the DAG replay_incident; null: planned by command line';
COMMENT ON COLUMN incident.shown IS 'what a person is asked to say yes to: the mode, and a digest of the deliveries';
COMMENT ON COLUMN incident.given IS 'their answer, as in case_question; null: nobody has answered';

ALTER TABLE run ADD COLUMN listed_in text;
CREATE UNIQUE INDEX run_listed_in ON run (listed_in) WHERE listed_in IS NOT NULL;
COMMENT ON COLUMN run.listed_in IS 'the run in Airflow whose list of ids it asked for; a list is asked for once, also when that run is cleared';
