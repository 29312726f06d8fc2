#!/bin/bash
# Makes the databases, the roles and the logins; the image runs it once, when the data directory is new.
# `backstop_owner` owns the tables and is used by the migration alone; every other login has one role of least privileges,
# which the migration gives to it table by table (schema/*/privileges.sql). Passwords never stand on a command line.
set -euo pipefail
psql -v ON_ERROR_STOP=1 --no-psqlrc --quiet -U "$POSTGRES_USER" -d postgres <<'SQL'
SET log_statement = 'none';
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv owner_password BACKSTOP_OWNER_PASSWORD
\getenv duty_password BACKSTOP_DUTY_PASSWORD
\getenv app_password BACKSTOP_APP_PASSWORD
\getenv consumer_password BACKSTOP_CONSUMER_PASSWORD
\getenv reader_password BACKSTOP_READER_PASSWORD
CREATE ROLE backstop_app NOLOGIN;
CREATE ROLE backstop_consumer NOLOGIN;
CREATE ROLE backstop_duty NOLOGIN;
CREATE ROLE backstop_person NOLOGIN;
CREATE ROLE backstop_reader NOLOGIN;
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE backstop_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE duty LOGIN PASSWORD :'duty_password' IN ROLE backstop_duty;
CREATE ROLE shop LOGIN PASSWORD :'app_password' IN ROLE backstop_app;
CREATE ROLE worker LOGIN PASSWORD :'consumer_password' IN ROLE backstop_consumer;
CREATE ROLE reader LOGIN PASSWORD :'reader_password' IN ROLE backstop_reader;
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE control OWNER backstop_owner;
CREATE DATABASE producer_a OWNER backstop_owner;
CREATE DATABASE producer_b OWNER backstop_owner;
CREATE DATABASE consumer_billing OWNER backstop_owner;
CREATE DATABASE consumer_shipping OWNER backstop_owner;
REVOKE ALL ON DATABASE airflow, control, producer_a, producer_b, consumer_billing, consumer_shipping FROM PUBLIC;
-- A statement that fails would be logged with the contents of messages in it.
ALTER SYSTEM SET log_min_error_statement = 'panic';
SELECT pg_reload_conf();
SQL
