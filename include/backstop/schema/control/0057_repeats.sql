-- Whoever joins an open request may not lend their authority to the groups that others asked for: for which of its groups a person
-- was shown what the copy would do stands beside them.
ALTER TABLE resend_request ADD COLUMN repeats text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN resend_request.repeats IS
    'groups whose begun work the copy may repeat, because a person who was shown that asked for them; {*}: all of them';
-- What a person has asked for and nobody has sent yet. Who joined it before this revision is not known: as it was until now.
UPDATE resend_request SET repeats = coalesce(groups, '{*}')
WHERE state IN ('open', 'claimed') AND requested_by NOT IN ('reconcile', 'triage')
    AND NOT starts_with(requested_by, 'person ') AND requested_by !~ ' \(incident \d+\)$';
