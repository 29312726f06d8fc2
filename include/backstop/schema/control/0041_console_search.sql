-- What the console filters dead letters by, and how much of a case is open, where either is few of many rows.
CREATE INDEX IF NOT EXISTS dead_letter_open_topic ON dead_letter
    (topic, dead_letter_id) INCLUDE (case_id, consumer_group, category, cause_id) WHERE state = 'open';
CREATE INDEX IF NOT EXISTS dead_letter_category ON dead_letter (category, dead_letter_id) WHERE category IS NOT NULL;
CREATE INDEX IF NOT EXISTS dead_letter_group ON dead_letter (consumer_group, dead_letter_id) WHERE consumer_group IS NOT NULL;
CREATE INDEX IF NOT EXISTS case_member_open ON case_member (case_id) WHERE settled_at IS NULL;
