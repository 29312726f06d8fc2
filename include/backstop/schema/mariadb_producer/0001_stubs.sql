-- The producer's side in MariaDB: promises to send, written in the transaction of the business change.
-- Texts that are compared are bytes (UTF-8): each collation that MariaDB and MySQL share takes 'a' and 'a ' for the same, and most
-- take more for it. Groups are a JSON array of text. Instants are UTC. Each statement is safe to run again: DDL commits by itself.

CREATE TABLE IF NOT EXISTS message_stub (
    topic                varbinary(255)  NOT NULL CHECK (topic <> ''),
    message_id           varbinary(1024) NOT NULL CHECK (message_id <> ''),
    message_key          mediumblob,
    tag                  mediumblob,
    ordering_key         varbinary(1024),
    sequence             bigint,
    headers              longtext        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('{}')
                         CHECK (json_valid(headers) AND json_type(headers) = 'OBJECT'),
    content              longblob        NOT NULL,
    content_type         mediumtext      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('application/octet-stream'),
    content_version      integer         NOT NULL DEFAULT 1 CHECK (content_version >= 1),
    erased_hash          varbinary(32),
    status               varchar(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'pending'
                         CHECK (status IN ('pending', 'confirmed', 'exhausted', 'voided', 'no_taker')),
    send_count           integer         NOT NULL DEFAULT 0 CHECK (send_count >= 0),
    refusals             integer         NOT NULL DEFAULT 0 CHECK (refusals >= 0),
    max_sends            integer         CHECK (max_sends >= 1),
    next_check_at        datetime(6)     NOT NULL,
    broker               mediumblob,
    queue_id             integer         CHECK (queue_id >= 0),
    queue_offset         bigint          CHECK (queue_offset >= 0),
    queue_epoch          mediumblob,
    broker_message_id    mediumblob,
    first_broker         mediumblob,
    first_queue_id       integer,
    first_queue_offset   bigint,
    first_queue_epoch    mediumblob,
    first_groups         longtext        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin CHECK (json_valid(first_groups)),
    deliver_at           datetime(6),
    created_at           datetime(6)     NOT NULL,
    first_seen_at        datetime(6),
    judged_at            datetime(6),
    attempted_at         datetime(6),
    sent_at              datetime(6),
    attempt_token        varchar(36)     CHARACTER SET ascii COLLATE ascii_bin,
    attempt_deadline     datetime(6),
    attempt_groups       longtext        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin CHECK (json_valid(attempt_groups)),
    attempt_requested_by mediumtext      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    updated_at           datetime(6)     NOT NULL,
    schema_version       smallint        NOT NULL DEFAULT 2,
    -- Which message of an ordering key comes first: one without a sequence comes after those that have one.
    place                bigint          GENERATED ALWAYS AS (coalesce(sequence, 9223372036854775807)) STORED,
    -- The deadline of the attempt under way. An attempt that was settled leaves its deadline in the row.
    under_way_until      datetime(6)     GENERATED ALWAYS AS (if(attempt_token IS NULL, NULL, attempt_deadline)) STORED,
    PRIMARY KEY (topic, message_id),
    -- What is due: the only way in for reconcile, so that its cost follows what is open, never history.
    KEY message_stub_due (status, next_check_at),
    -- Crashed attempts, for recovery.
    KEY message_stub_under_way (under_way_until),
    -- The messages of one ordering key, for what came before and after one of them.
    KEY message_stub_order (topic, ordering_key, status, place, created_at, message_id),
    -- What was created in a window, for proofs.
    KEY message_stub_created (created_at),
    -- What is over, by when it ended: a purge costs what it takes away, never history.
    KEY message_stub_over (topic, status, updated_at, message_id),
    -- The messages of one business key, for who asks where they are.
    KEY message_stub_key (topic, message_key(255), created_at),
    CONSTRAINT message_stub_refusals CHECK (refusals <= send_count),
    CONSTRAINT message_stub_sent CHECK (sent_at IS NULL OR send_count >= 1),
    CONSTRAINT message_stub_attempt CHECK (attempt_token IS NULL
        OR (send_count >= 1 AND attempt_deadline IS NOT NULL AND attempted_at IS NOT NULL)),
    CONSTRAINT message_stub_offset CHECK (queue_offset IS NULL OR queue_id IS NOT NULL)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Backstop: one row for each message that must be sent';

CREATE TABLE IF NOT EXISTS send_attempt (
    topic             varbinary(255)  NOT NULL,
    message_id        varbinary(1024) NOT NULL,
    send_number       integer         NOT NULL CHECK (send_number >= 1),
    `groups`          longtext        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin CHECK (json_valid(`groups`)),
    requested_by      mediumtext      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    started_at        datetime(6)     NOT NULL,
    finished_at       datetime(6)     NOT NULL,
    outcome           varchar(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                      CHECK (outcome IN ('sent', 'refused', 'unknown')),
    broker            mediumblob,
    queue_id          integer,
    queue_offset      bigint,
    queue_epoch       mediumblob,
    broker_message_id mediumblob,
    error             mediumtext      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    schema_version    smallint        NOT NULL DEFAULT 1,
    PRIMARY KEY (topic, message_id, send_number),
    CONSTRAINT send_attempt_stub FOREIGN KEY (topic, message_id) REFERENCES message_stub (topic, message_id) ON DELETE CASCADE,
    CONSTRAINT send_attempt_place CHECK (outcome = 'sent' OR queue_offset IS NULL)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'Backstop: one row for each send number that has ended, append-only';
