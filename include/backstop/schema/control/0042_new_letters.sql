-- An open dead letter without a cause stands in one small index of its own, and in those of what is looked for by cause, by rules or
-- by its next look only once it has a cause: a drain writes two indexes fewer for each.
CREATE INDEX IF NOT EXISTS dead_letter_unclassified ON dead_letter (dead_letter_id) WHERE state = 'open' AND cause_id IS NULL;
CREATE INDEX IF NOT EXISTS dead_letter_open_cause ON dead_letter (cause_id, topic, consumer_group)
    WHERE state = 'open' AND cause_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS dead_letter_next_look ON dead_letter (look_at) WHERE state = 'open' AND cause_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS dead_letter_by_rules ON dead_letter (classified_by) WHERE state = 'open' AND cause_id IS NOT NULL;
DROP INDEX IF EXISTS dead_letter_open, dead_letter_look, dead_letter_rules;
