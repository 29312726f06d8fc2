-- Runs by hand: one that judges and promotes without asking for a resend says so.

ALTER TABLE run ADD COLUMN no_send boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN run.no_send IS 'verdicts, cases and statuses were promoted, and no resend was asked for';
