-- Decisions that take two people: what one proposed is what the other approves.
CREATE TABLE proposal (
    proposal_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    case_id     bigint      NOT NULL REFERENCES case_file ON DELETE CASCADE,
    action      text        NOT NULL,
    who         text        NOT NULL CHECK (btrim(who) <> ''),
    why         text        NOT NULL,
    options     jsonb       NOT NULL DEFAULT '{}',
    content     bytea,
    proposed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at    timestamptz,
    ended_by    text,
    how         text        CHECK (how IN ('approved', 'rejected', 'stale')),
    CHECK ((ended_at IS NULL) = (how IS NULL)),
    CHECK (ended_at IS NULL OR content IS NULL)
);
-- One at a time; the content is with the message when it has ended, or nowhere.
CREATE UNIQUE INDEX proposal_open ON proposal (case_id) WHERE ended_at IS NULL;
COMMENT ON COLUMN proposal.options IS 'what was said beside the action, but for the content';
COMMENT ON COLUMN proposal.ended_by IS 'while it has not ended: who is applying it, and it cannot be rejected';
COMMENT ON COLUMN proposal.how IS 'stale: the case was over, or came back, before anybody answered';

-- What somebody has looked at is what they approve: a content can only be taken away.
CREATE FUNCTION keep_what_was_proposed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.content IS NOT NULL AND NEW.content IS DISTINCT FROM OLD.content
        OR (NEW.case_id, NEW.action, NEW.why, NEW.options) IS DISTINCT FROM (OLD.case_id, OLD.action, OLD.why, OLD.options) THEN
        RAISE integrity_constraint_violation USING MESSAGE = 'what was proposed is not changed: reject it, and propose anew';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER stays_as_proposed BEFORE UPDATE ON proposal FOR EACH ROW EXECUTE FUNCTION keep_what_was_proposed();

-- What a person's own login may decide, wherever its settings come from: as the duties' settings say.
CREATE TABLE people_policy (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    policy     jsonb       NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A person's own login writes its own name; where TG_ARGV[1] is 'approves', also beside that of whose proposal it approves. What a
-- producer had written stays the producer's.
CREATE FUNCTION speak_for_yourself() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said text := pg_catalog.to_jsonb(NEW) ->> TG_ARGV[0];
BEGIN
    IF said IS NULL OR said = session_user::text OR TG_OP = 'UPDATE' AND said IS NOT DISTINCT FROM pg_catalog.to_jsonb(OLD) ->> TG_ARGV[0]
        OR NOT speaks_as_person() THEN
        RETURN NEW;
    END IF;
    IF TG_ARGV[1] = 'approves' AND (said = 'the producer' OR EXISTS (
        SELECT FROM proposal p WHERE p.ended_at IS NULL AND p.who || ', approved by ' || session_user::text = said)) THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = 'the login ' || session_user::text || ' writes in its own name alone';
END
$$;
DO $$
BEGIN
    EXECUTE 'ALTER FUNCTION speak_for_yourself() SET search_path = pg_catalog, ' || quote_ident(current_schema()) || ', pg_temp';
END
$$;
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON proposal
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('who', '');
CREATE TRIGGER ends_for_itself BEFORE INSERT OR UPDATE ON proposal
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('ended_by', '');
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON incident
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('planned_by', '');
CREATE TRIGGER approves_for_itself BEFORE INSERT OR UPDATE ON incident
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('approved_by', '');
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON case_note
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('written_by', '');
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON pause
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('paused_by', '');
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON delivery_decision
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('decided_by', 'approves');
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON withdrawal
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('decided_by', 'approves');
CREATE TRIGGER speaks_for_itself BEFORE INSERT OR UPDATE ON message_version
    FOR EACH ROW EXECUTE FUNCTION speak_for_yourself('written_by', 'approves');
