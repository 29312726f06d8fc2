-- The console says whether a cause grows, and metrics how long stores and brokers take to answer.

-- How many dead letters waited for a decision, as the watch first saw them in each hour of the last day.
CREATE TABLE IF NOT EXISTS cause_hour (
    hour           timestamptz NOT NULL,
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    cause_id       bigint      NOT NULL,
    category       text        NOT NULL,
    dead_letters   bigint      NOT NULL CHECK (dead_letters > 0),
    PRIMARY KEY (hour, cause_id, category, topic, consumer_group)
);
COMMENT ON COLUMN cause_hour.cause_id IS '0: not classified then';
COMMENT ON COLUMN cause_hour.category IS 'empty: not classified then';

ALTER TABLE total DROP CONSTRAINT total_metric_check;
ALTER TABLE total ADD CONSTRAINT total_metric_check CHECK (metric IN ('sends', 'dead_letters', 'runs', 'stores'));
COMMENT ON COLUMN total.subject IS 'of sends and dead letters the topic, of runs the duty, of stores the store or broker';
COMMENT ON COLUMN total.bucket IS 'of runs and stores: the smallest bound of the histogram that the seconds fit into; infinity: none';
