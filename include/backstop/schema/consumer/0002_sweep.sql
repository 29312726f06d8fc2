-- Messages that were begun again and again and are not done: a person hears of them before the broker gives up.
CREATE INDEX IF NOT EXISTS consumer_log_failing ON consumer_log (attempts)
    WHERE attempts >= 3 AND state IN ('FAILED', 'CONSUMING', 'EXPIRED');
