-- What a restore of another database has to know of requests and edits; and nothing is sent before one that was begun is done.

ALTER TABLE resend_request ADD COLUMN IF NOT EXISTS reopened_at timestamptz;
COMMENT ON COLUMN resend_request.reopened_at IS
    'when a recovery last found that a worker which was gone had not taken its number: so the stub said then';

ALTER TABLE message_version ADD COLUMN IF NOT EXISTS carried_out boolean;
COMMENT ON COLUMN message_version.carried_out IS
    'whether this edit became the content of the message; null: it is planned, was cut short, or is older than this column';

CREATE OR REPLACE VIEW stopped_topic AS
    SELECT p.topic FROM pause p
    UNION ALL
    SELECT '*' FROM watermark w WHERE starts_with(w.subject, 'restore ');
COMMENT ON VIEW stopped_topic IS 'topics of which nothing is sent: paused ones, and all (''*'') while a restore that was begun is not done';
