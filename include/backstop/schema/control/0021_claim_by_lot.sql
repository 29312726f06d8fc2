-- A claim takes the oldest due requests of one topic in one shard: what is due of others is not read on the way.
DROP INDEX resend_request_due;
CREATE INDEX resend_request_due ON resend_request (topic, shard, not_before, request_id) WHERE state = 'open' AND NOT held;
