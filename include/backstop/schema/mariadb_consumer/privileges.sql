-- Least privileges in a consumer database in MariaDB, safe to run twice: roles, which a platform grants to its logins. They count
-- only for a login whose default role they are: SET DEFAULT ROLE backstop_consumer FOR billing;
-- Run it as an administrator, in the database of the tables. It revokes nothing: `backstop migrate --grants` does.
CREATE ROLE IF NOT EXISTS backstop_consumer;
CREATE ROLE IF NOT EXISTS backstop_duty;
CREATE ROLE IF NOT EXISTS backstop_person;

-- backstop_consumer: the consumer groups, which own their logs.
GRANT SELECT, INSERT, UPDATE ON consumer_log TO backstop_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON consumer_books TO backstop_consumer;

-- backstop_duty: Backstop's duties: they read, the sweep takes back leases that ended, and an erasure empties what handlers said of
-- one message and the fingerprint of its content.
GRANT SELECT, UPDATE (state, updated_at, lease_expires_at, last_error, payload_hash) ON consumer_log TO backstop_duty;
GRANT SELECT ON consumer_books TO backstop_duty;
GRANT SELECT ON backstop_consumer_version TO backstop_duty;
-- Retention takes away what is over, and says first up to when.
GRANT DELETE ON consumer_log TO backstop_duty;
GRANT SELECT, INSERT, UPDATE ON consumer_log_floor TO backstop_duty;

-- backstop_person: people who look from the command line.
GRANT SELECT ON consumer_log TO backstop_person;
GRANT SELECT ON consumer_log_floor TO backstop_person;
GRANT SELECT ON consumer_books TO backstop_person;
GRANT SELECT ON backstop_consumer_version TO backstop_person;
