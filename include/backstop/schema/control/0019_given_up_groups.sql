-- What a person gave up is given up for groups, not for a send number: the number stays free for the message's other groups.
ALTER TABLE resend_request ADD COLUMN given_up_groups text[];
UPDATE resend_request SET given_up_groups = coalesce(groups, '{*}') WHERE given_up_by IS NOT NULL;
ALTER TABLE resend_request ADD CHECK ((given_up_by IS NULL) = (given_up_groups IS NULL) AND given_up_groups <> '{}');
COMMENT ON COLUMN resend_request.given_up_groups IS
    'the groups for which a person gave up the message''s resend (*: all), whatever becomes of this number; only a person asks for them again';
CREATE INDEX resend_request_given_up ON resend_request (topic, message_id) WHERE given_up_by IS NOT NULL;
