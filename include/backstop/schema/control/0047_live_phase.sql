-- What a run does at the moment. Its heartbeat writes it; the instant is the database's, so that a person's run cannot
-- claim another.
ALTER TABLE run
    ADD COLUMN phase      text CHECK (length(phase) BETWEEN 1 AND 100),
    ADD COLUMN phase_at   timestamptz,
    ADD COLUMN phase_done bigint CHECK (phase_done >= 0),
    ADD COLUMN phase_of   bigint CHECK (phase_of >= 0);
COMMENT ON COLUMN run.phase IS 'what it does, or did when it was last heard of; phases of less than a second are not written';
COMMENT ON COLUMN run.phase_at IS 'since when';
COMMENT ON COLUMN run.phase_done IS 'how much of the phase is done, of phase_of; null: nobody counts';

CREATE FUNCTION date_phase() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.phase_at := clock_timestamp();
    RETURN NEW;
END
$$;
CREATE TRIGGER date_phase BEFORE UPDATE OF phase ON run
    FOR EACH ROW WHEN (NEW.phase IS DISTINCT FROM OLD.phase) EXECUTE FUNCTION date_phase();
