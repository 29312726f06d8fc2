-- The consumer's side in MariaDB: what each group received and how far it got. The row is also the idempotency record.
-- Keys are bytes (UTF-8): each collation that MariaDB and MySQL share takes 'a' and 'a ' for the same, and most take more for it.
-- Instants are UTC. Each statement is safe to run again: DDL commits by itself.

CREATE TABLE IF NOT EXISTS consumer_log (
    consumer_group     varbinary(255)  NOT NULL CHECK (consumer_group <> ''),
    topic              varbinary(255)  NOT NULL CHECK (topic <> ''),
    message_id         varbinary(1024) NOT NULL CHECK (message_id <> ''),
    queue_id           integer,
    queue_offset       bigint,
    queue_epoch        varbinary(1024),
    state              varchar(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                       CHECK (state IN ('CONSUMING', 'CONSUMED', 'FAILED', 'EXPIRED', 'PARKED')),
    owner_token        varchar(36)     CHARACTER SET ascii COLLATE ascii_bin,
    fence              bigint          NOT NULL DEFAULT 1,
    lease_expires_at   datetime(6),
    attempts           integer         NOT NULL DEFAULT 1 CHECK (attempts >= 0),
    duplicates_stopped integer         NOT NULL DEFAULT 0 CHECK (duplicates_stopped >= 0),
    first_received_at  datetime(6)     NOT NULL,
    updated_at         datetime(6)     NOT NULL,
    consumed_at        datetime(6),
    payload_hash       varbinary(255),
    content_version    integer         NOT NULL DEFAULT 1,
    conflicts          integer         NOT NULL DEFAULT 0,
    last_error         text            CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    owner_host         varchar(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    schema_version     smallint        NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, topic, message_id),
    -- Leases to look at, for the sweep.
    KEY consumer_log_leases (state, lease_expires_at),
    -- What arrived lately, for orphans, conflicts and scans.
    KEY consumer_log_received (consumer_group, first_received_at),
    -- The highest offset of each queue, for groups whose progress is derived from their logs.
    KEY consumer_log_position (consumer_group, topic, queue_id, queue_epoch, queue_offset),
    -- Messages that were begun again and again.
    KEY consumer_log_failing (attempts),
    CONSTRAINT consumer_log_consumed_has_time CHECK (state <> 'CONSUMED' OR consumed_at IS NOT NULL)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Backstop: one row for each message that a consumer group received';

CREATE TABLE IF NOT EXISTS consumer_log_floor (
    consumer_group varbinary(255) NOT NULL PRIMARY KEY,
    log_floor      datetime(6),
    schema_version smallint       NOT NULL DEFAULT 1
) ENGINE = InnoDB COMMENT = 'Backstop: the largest updated_at ever purged of a group (no row, or NULL: nothing was)';

CREATE TABLE IF NOT EXISTS consumer_books (
    consumer_group varbinary(255) NOT NULL CHECK (consumer_group <> ''),
    member         varbinary(255) NOT NULL CHECK (member <> ''),
    life           varbinary(64)  NOT NULL,
    counts         longtext       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL CHECK (json_valid(counts)),
    in_process     integer        NOT NULL,
    has_ended      boolean        NOT NULL DEFAULT 0,
    started_at     datetime(6)    NOT NULL,
    written_at     datetime(6)    NOT NULL,
    schema_version smallint       NOT NULL DEFAULT 1,
    PRIMARY KEY (consumer_group, member)
) ENGINE = InnoDB COMMENT = 'Backstop: what each consumer took in and what became of it, which the watch adds up';
