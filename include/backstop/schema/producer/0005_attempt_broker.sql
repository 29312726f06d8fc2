-- Which broker each send went to: a copy is judged by its own broker's progress. Null: that of its topic.
ALTER TABLE send_attempt ADD COLUMN IF NOT EXISTS broker text;
