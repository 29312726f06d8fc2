-- The books of each consumer: what it took in since it started, and what became of it.

CREATE TABLE consumer_books (
    consumer_group text        NOT NULL CHECK (consumer_group <> ''),
    member         text        NOT NULL CHECK (member <> ''),
    life           text        NOT NULL,
    counts         jsonb       NOT NULL CHECK (jsonb_typeof(counts) = 'object'),
    in_process     integer     NOT NULL,
    has_ended      boolean     NOT NULL DEFAULT false,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    written_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, member)
);
COMMENT ON TABLE consumer_books IS 'Backstop: what each consumer took in and what became of it; the watch compares the sums';
COMMENT ON COLUMN consumer_books.life IS 'tells one process of this name from the next: its counts begin at zero';
