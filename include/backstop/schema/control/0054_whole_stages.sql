-- What a run checks and promotes is one whole attempt of its judge: one that begins or ends late changes nothing of it.
ALTER TABLE run ADD COLUMN IF NOT EXISTS stages_begun integer NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN IF NOT EXISTS stage_checked boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN run.stage IS 'the attempt that is checked and promoted: the latest that was staged whole; 0: none';
COMMENT ON COLUMN run.stages_begun IS 'the number of the attempt that was begun last; where stage is greater, an earlier version began that one';
COMMENT ON COLUMN run.stage_checked IS 'whether a data check of its stage has begun: then no other stage is checked or promoted any more';

-- A program of before this revision publishes a proof as it writes it; this one does once its data check has passed. Of proofs that
-- are there, those whose check is not known to have passed are not published any more.
ALTER TABLE proof ADD COLUMN IF NOT EXISTS published boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN proof.published IS 'whether its data check has passed and its export, if there is one, is signed: else it is shown to nobody';
UPDATE proof p SET published = false FROM run r
WHERE r.run_id = p.run_id AND r.state <> 'done' AND NOT (r.state = 'incomplete' AND p.answer = 'incomplete')
    AND NOT EXISTS (SELECT FROM data_check c WHERE c.run_id = p.run_id AND c.suite = 'proof' AND c.passed);
