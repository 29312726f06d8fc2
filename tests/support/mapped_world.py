"""Databases that hold only other programs' tables, in the form that their libraries publish, read by a login that may only read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import psycopg2
import pymysql
from pymongo import MongoClient

from backstop.evidence.judge_by_key import Judge, Judged
from backstop.evidence.sources import Sources
from backstop.model.records import Key
from backstop.reconcile.look_at_mapped import look_at_mapped, prove_mapped_logs
from backstop.runs.run import close_run, open_run
from backstop.stores.open import open_mapped_stubs
from backstop.stores.protocol import StubOutcome
from backstop_lab.servers.mongodb import MongoServer
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.servers.postgres import Postgres
from mapped_library import EXTERNALIZER, LISTENER, Library, Statement
from mapped_on_mongodb import ON_MONGODB
from mariadb import PASSWORD, MariaDB
from system import System

CAP = """
CREATE SCHEMA cap;
CREATE TABLE cap.published ("Id" BIGINT PRIMARY KEY NOT NULL, "Version" VARCHAR(20) NOT NULL, "Name" VARCHAR(200) NOT NULL,
    "Content" TEXT NULL, "Retries" INT NOT NULL, "Added" TIMESTAMP NOT NULL, "ExpiresAt" TIMESTAMP NULL,
    "StatusName" VARCHAR(50) NOT NULL);
CREATE TABLE cap.received ("Id" BIGINT PRIMARY KEY NOT NULL, "Version" VARCHAR(20) NOT NULL, "Name" VARCHAR(200) NOT NULL,
    "Group" VARCHAR(200) NULL, "Content" TEXT NULL, "Retries" INT NOT NULL, "Added" TIMESTAMP NOT NULL,
    "ExpiresAt" TIMESTAMP NULL, "StatusName" VARCHAR(50) NOT NULL);
"""
_MODULITH = """
CREATE TABLE {name} (id UUID NOT NULL PRIMARY KEY, listener_id TEXT NOT NULL, event_type TEXT NOT NULL,
    serialized_event TEXT NOT NULL, publication_date TIMESTAMP WITH TIME ZONE NOT NULL, completion_date TIMESTAMP WITH TIME ZONE,
    status TEXT, completion_attempts INT, last_resubmission_date TIMESTAMP WITH TIME ZONE);
"""
MODULITH = "".join(
    _MODULITH.format(name=name) for name in ("event_publication", "event_publication_archive")
)
EVENTUATE = """
CREATE SCHEMA eventuate;
CREATE TABLE eventuate.message (id VARCHAR(255) PRIMARY KEY, destination TEXT NOT NULL, headers TEXT NOT NULL,
    payload TEXT NOT NULL, published SMALLINT DEFAULT 0, message_partition SMALLINT, creation_time BIGINT);
CREATE TABLE eventuate.received_messages (consumer_id VARCHAR(1000), message_id VARCHAR(1000), creation_time BIGINT,
    published SMALLINT DEFAULT 0, PRIMARY KEY (consumer_id, message_id));
"""
PRACTICE = """
CREATE TABLE message_stub ("messageId" varchar(64) PRIMARY KEY, content text, count int, status int, "offset" bigint,
    "resendTime" timestamp, created timestamp);
CREATE TABLE inbox (message_id text, state text, at timestamptz DEFAULT now());
"""


LIBRARIES: dict[str, Library] = {
    "cap": Library(
        CAP,
        {"preset": "cap", "topics": ["orders"], "time_zone": "Asia/Shanghai"},
        {"preset": "cap", "time_zone": "Asia/Shanghai", "groups": {"billing": "billing.v1"}},
        "INSERT INTO cap.published VALUES (%(id)s, 'v1', 'orders', '{}', 0, now() AT TIME ZONE 'Asia/Shanghai', NULL, 'Scheduled')",
        'UPDATE cap.published SET "StatusName" = \'Succeeded\', "ExpiresAt" = "Added" + interval \'1 day\' WHERE "Id" = %(id)s',
        "INSERT INTO cap.received VALUES (%(id)s + 7000, 'v1', 'orders', 'billing.v1',"
        " jsonb_build_object('Headers', jsonb_build_object('cap-msg-id', %(id)s::text))::text, 0,"
        " now() AT TIME ZONE 'Asia/Shanghai', NULL, 'Scheduled')",
        'UPDATE cap.received SET "StatusName" = \'Succeeded\' WHERE "Id" = %(id)s + 7000',
        words={
            "published": "cap.published",
            "received": "cap.received",
            "two_hours": "interval '2 hours'",
        },
    ),
    "modulith": Library(
        MODULITH,
        {
            "preset": "modulith",
            "only": {"listener_id": EXTERNALIZER},
            "message_id": "serialized_event.orderId",
            "topics": {"org.example.OrderPlaced": "orders"},
        },
        {
            "preset": "modulith",
            "message_id": "serialized_event.orderId",
            "topics": {"org.example.OrderPlaced": "orders"},
            "groups": {"billing": "org.example.Billing.on"},
        },
        "INSERT INTO event_publication SELECT gen_random_uuid(), '"
        + EXTERNALIZER
        + "', 'org.example.OrderPlaced',"
        " jsonb_build_object('orderId', %(id)s)::text, now(), NULL",
        "UPDATE event_publication SET completion_date = now() WHERE listener_id = '"
        + EXTERNALIZER
        + "'"
        " AND serialized_event::jsonb ->> 'orderId' = %(id)s",
        "INSERT INTO event_publication SELECT gen_random_uuid(), 'org.example.Billing.on', 'org.example.OrderPlaced',"
        " jsonb_build_object('orderId', %(id)s)::text, now(), NULL",
        "UPDATE event_publication SET completion_date = now() WHERE listener_id = 'org.example.Billing.on'"
        " AND serialized_event::jsonb ->> 'orderId' = %(id)s",
        lambda number: f"order-{number}",
    ),
    "modulith_archive": Library(
        MODULITH,
        {
            "preset": "modulith_archive",
            "only": {"listener_id": EXTERNALIZER},
            "message_id": "serialized_event.orderId",
            "topics": {"org.example.OrderPlaced": "orders"},
        },
        {
            "preset": "modulith_archive",
            "message_id": "serialized_event.orderId",
            "topics": {"org.example.OrderPlaced": "orders"},
            "groups": {"billing": "org.example.Billing.on"},
        },
        "INSERT INTO event_publication SELECT gen_random_uuid(), '"
        + EXTERNALIZER
        + "', 'org.example.OrderPlaced',"
        " jsonb_build_object('orderId', %(id)s)::text, now(), NULL",
        "WITH gone AS (DELETE FROM event_publication WHERE listener_id = '" + EXTERNALIZER + "'"
        " AND serialized_event::jsonb ->> 'orderId' = %(id)s RETURNING *)"
        " INSERT INTO event_publication_archive SELECT id, listener_id, event_type, serialized_event, publication_date, now() FROM gone",
        "INSERT INTO event_publication SELECT gen_random_uuid(), 'org.example.Billing.on', 'org.example.OrderPlaced',"
        " jsonb_build_object('orderId', %(id)s)::text, now(), NULL",
        "WITH gone AS (DELETE FROM event_publication WHERE listener_id = 'org.example.Billing.on'"
        " AND serialized_event::jsonb ->> 'orderId' = %(id)s RETURNING *)"
        " INSERT INTO event_publication_archive SELECT id, listener_id, event_type, serialized_event, publication_date, now() FROM gone",
        lambda number: f"order-{number}",
    ),
    "eventuate": Library(
        EVENTUATE,
        {"preset": "eventuate", "topics": ["orders"]},
        {"preset": "eventuate", "groups": {"billing": "billing-consumer"}},
        "INSERT INTO eventuate.message VALUES (%(id)s, 'orders', '{}', '{}', 0, NULL, (extract(epoch FROM now()) * 1000)::bigint)",
        "UPDATE eventuate.message SET published = 1 WHERE id = %(id)s",
        "",
        "INSERT INTO eventuate.received_messages VALUES ('billing-consumer', %(id)s, (extract(epoch FROM now()) * 1000)::bigint)",
        lambda number: f"0000018{number}-0242ac120002",
    ),
    "practice": Library(
        PRACTICE,
        {"preset": "practice", "topics": ["orders"], "time_zone": "UTC"},
        {
            "tables": ["inbox"],
            "message_id": "message_id",
            "state": "state",
            "done": ["done"],
            "working": ["begun"],
            "failed": ["failed"],
            "received_at": "at",
        },
        "INSERT INTO message_stub VALUES (%(id)s, '{}', 0, 0, NULL, NULL, now() AT TIME ZONE 'UTC')",
        'UPDATE message_stub SET "offset" = 1, count = 1 WHERE "messageId" = %(id)s',
        "INSERT INTO inbox VALUES (%(id)s, 'begun')",
        "UPDATE inbox SET state = 'done' WHERE message_id = %(id)s",
        lambda number: f"m:{number}%🚚",
    ),
}


CAP_MYSQL = """
CREATE TABLE "cap.received" ("Id" bigint NOT NULL, "Version" varchar(20) DEFAULT NULL, "Name" varchar(400) NOT NULL,
    "Group" varchar(200) DEFAULT NULL, "Content" longtext, "Retries" int(11) DEFAULT NULL, "Added" datetime NOT NULL,
    "ExpiresAt" datetime DEFAULT NULL, "StatusName" varchar(50) NOT NULL, PRIMARY KEY ("Id"), INDEX "IX_ExpiresAt" ("ExpiresAt"))
    ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
CREATE TABLE "cap.published" ("Id" bigint NOT NULL, "Version" varchar(20) DEFAULT NULL, "Name" varchar(200) NOT NULL,
    "Content" longtext, "Retries" int(11) DEFAULT NULL, "Added" datetime NOT NULL, "ExpiresAt" datetime DEFAULT NULL,
    "StatusName" varchar(40) NOT NULL, PRIMARY KEY ("Id"), INDEX "IX_ExpiresAt" ("ExpiresAt"))
    ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
"""
_MODULITH_MYSQL = """
CREATE TABLE {name} (ID VARCHAR(36) NOT NULL, LISTENER_ID VARCHAR(512) NOT NULL, EVENT_TYPE VARCHAR(512) NOT NULL,
    SERIALIZED_EVENT VARCHAR(4000) NOT NULL, PUBLICATION_DATE TIMESTAMP(6) NOT NULL, COMPLETION_DATE TIMESTAMP(6) NULL DEFAULT NULL,
    STATUS VARCHAR(20), COMPLETION_ATTEMPTS INT, LAST_RESUBMISSION_DATE TIMESTAMP(6) NULL DEFAULT NULL, PRIMARY KEY (ID),
    INDEX {name}_BY_COMPLETION_DATE_IDX (COMPLETION_DATE));
"""
MODULITH_MYSQL = "".join(
    _MODULITH_MYSQL.format(name=name) for name in ("EVENT_PUBLICATION", "EVENT_PUBLICATION_ARCHIVE")
)
EVENTUATE_MYSQL = """
DROP DATABASE IF EXISTS eventuate;
CREATE DATABASE eventuate CHARACTER SET utf8mb4;
CREATE TABLE eventuate.message (id VARCHAR(255) PRIMARY KEY, destination LONGTEXT NOT NULL,
    headers LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL, published SMALLINT DEFAULT 0,
    message_partition SMALLINT, creation_time BIGINT, INDEX message_published_idx (published, id));
CREATE TABLE eventuate.received_messages (consumer_id VARCHAR(255), message_id VARCHAR(255), creation_time BIGINT,
    published SMALLINT DEFAULT 0, PRIMARY KEY (consumer_id, message_id));
"""
PRACTICE_MYSQL = """
CREATE TABLE message_stub ("messageId" varchar(64) PRIMARY KEY, content text, count int, status int, "offset" bigint,
    "resendTime" datetime, created datetime(3)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
CREATE TABLE inbox (message_id varchar(255), state varchar(20), at timestamp(6) DEFAULT CURRENT_TIMESTAMP(6), INDEX (message_id))
    ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
"""
DEDUPLISTENER = """
CREATE TABLE t_rocketmq_dedup (application_name varchar(255) NOT NULL, topic varchar(255) NOT NULL, tag varchar(16) NOT NULL,
    msg_uniq_key varchar(255) NOT NULL, status varchar(16) NOT NULL, expire_time bigint(20) NOT NULL,
    UNIQUE KEY uniq_key (application_name, topic, tag, msg_uniq_key) USING BTREE) ENGINE=InnoDB DEFAULT CHARSET=utf8
    ROW_FORMAT=COMPACT;
"""
_EVENT = "JSON_UNQUOTE(JSON_EXTRACT(SERIALIZED_EVENT, '$.orderId')) = %(id)s"
_PUBLICATION = (
    "INSERT INTO EVENT_PUBLICATION SELECT UUID(), '{listener}', 'org.example.OrderPlaced',"
    " JSON_OBJECT('orderId', %(id)s), NOW(6), NULL, 'PUBLISHED', 0, NULL"
)
_COMPLETION = "UPDATE EVENT_PUBLICATION SET COMPLETION_DATE = NOW(6) WHERE LISTENER_ID = '{listener}' AND {event}"
_ARCHIVING = (
    "INSERT INTO EVENT_PUBLICATION_ARCHIVE SELECT ID, LISTENER_ID, EVENT_TYPE, SERIALIZED_EVENT, PUBLICATION_DATE, NOW(6),"
    " 'COMPLETED', 1, NULL FROM EVENT_PUBLICATION WHERE LISTENER_ID = '{listener}' AND {event};"
    " DELETE FROM EVENT_PUBLICATION WHERE LISTENER_ID = '{listener}' AND {event}"
)


def _on_mysql(
    name: str,
    tables: str,
    promise: str,
    send: str,
    receive: str,
    finish: str,
    words: Mapping[str, str] | None = None,
) -> Library:
    """The library's mappings are those of PostgreSQL, in the other dialect."""
    its = LIBRARIES[name]
    producer, consumer = (
        {**mapping, "dialect": "mysql"} for mapping in (its.producer, its.consumer)
    )
    return Library(
        tables,
        producer,
        consumer,
        promise,
        send,
        receive,
        finish,
        its.id_of,
        words or {},
        "mariadb",
    )


_PRACTICE = _on_mysql(
    "practice",
    PRACTICE_MYSQL,
    "INSERT INTO message_stub VALUES (%(id)s, '{}', 0, 0, NULL, NULL, UTC_TIMESTAMP(3))",
    'UPDATE message_stub SET "offset" = 1, count = count + 1 WHERE BINARY "messageId" = BINARY %(id)s',
    "INSERT INTO inbox (message_id, state) VALUES (%(id)s, 'begun')",
    "UPDATE inbox SET state = 'done' WHERE CONVERT(message_id USING utf8mb4) COLLATE utf8mb4_bin = %(id)s",
)
ON_MARIADB: dict[str, Library] = {
    "cap": _on_mysql(
        "cap",
        CAP_MYSQL,
        "INSERT INTO {published} VALUES (%(id)s, 'v1', 'orders', '{}', 0, UTC_TIMESTAMP() + INTERVAL 8 HOUR, NULL, 'Scheduled')",
        # As its relay does: each send is known by when the row expires.
        'UPDATE {published} SET "StatusName" = \'Succeeded\', "Retries" = "Retries" + 1,'
        ' "ExpiresAt" = UTC_TIMESTAMP() + INTERVAL 32 HOUR WHERE "Id" = %(id)s',
        "INSERT INTO {received} VALUES (%(id)s + 7000, 'v1', 'orders', 'billing.v1',"
        " CONCAT('{\"Headers\": {\"cap-msg-id\": \"', %(id)s, '\"}}'), 0, UTC_TIMESTAMP() + INTERVAL 8 HOUR, NULL, 'Scheduled')",
        'UPDATE {received} SET "StatusName" = \'Succeeded\' WHERE "Id" = %(id)s + 7000',
        {
            "published": '"cap.published"',
            "received": '"cap.received"',
            "two_hours": "INTERVAL 2 HOUR",
        },
    ),
    "modulith": _on_mysql(
        "modulith",
        MODULITH_MYSQL,
        _PUBLICATION.format(listener=EXTERNALIZER),
        _COMPLETION.format(listener=EXTERNALIZER, event=_EVENT),
        _PUBLICATION.format(listener=LISTENER),
        _COMPLETION.format(listener=LISTENER, event=_EVENT),
    ),
    "modulith_archive": _on_mysql(
        "modulith_archive",
        MODULITH_MYSQL,
        _PUBLICATION.format(listener=EXTERNALIZER),
        _ARCHIVING.format(listener=EXTERNALIZER, event=_EVENT),
        _PUBLICATION.format(listener=LISTENER),
        _ARCHIVING.format(listener=LISTENER, event=_EVENT),
    ),
    "eventuate": _on_mysql(
        "eventuate",
        EVENTUATE_MYSQL,
        "INSERT INTO eventuate.message VALUES (%(id)s, 'orders', '{}', '{}', 0, NULL, ROUND(UNIX_TIMESTAMP(NOW(4)) * 1000))",
        "UPDATE eventuate.message SET published = 1 WHERE id = %(id)s",
        "",
        "INSERT INTO eventuate.received_messages VALUES ('billing-consumer', %(id)s, ROUND(UNIX_TIMESTAMP(NOW(4)) * 1000), 0)",
    ),
    "practice": _PRACTICE,
    "dedup_listener": replace(
        _PRACTICE,
        tables=PRACTICE_MYSQL + DEDUPLISTENER,
        consumer={
            "dialect": "mysql",
            "preset": "dedup_listener",
            "groups": {"billing": "billing-app"},
        },
        receive="INSERT INTO t_rocketmq_dedup VALUES ('billing-app', 'orders', '', %(id)s, 'CONSUMING', 1)",
        finish="UPDATE t_rocketmq_dedup SET status = 'CONSUMED' WHERE msg_uniq_key = %(id)s",
        id_of=lambda number: f"m-{number}:%é",
    ),
}


SERVERS = {"postgresql": LIBRARIES, "mariadb": ON_MARIADB, "mongodb": ON_MONGODB}


OUTBOX = """
CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload jsonb);
CREATE TABLE inbox (message_id text, state text, at timestamptz DEFAULT now());
"""
DEBEZIUM = Library(
    OUTBOX,
    {"preset": "debezium", "topics": {"Order": "orders"}, "slot": "backstop_test"},
    LIBRARIES["practice"].consumer,
    # Inserted and deleted in one transaction, as its users do: nobody ever sees the row.
    "WITH made AS (INSERT INTO outboxevent VALUES (%(id)s, 'Order', 'o-1', 'OrderPlaced', '{}') RETURNING 1) SELECT 1",
    "",
    LIBRARIES["practice"].receive,
    LIBRARIES["practice"].finish,
    lambda number: f"0f8fad5b-d9cb-469f-a165-{number:012}",
)


@dataclass
class Mapped:
    """A system of which one producer, shop, and one consumer, billing_db, are mapped tables of a library in one database."""

    system: System
    library: Library
    database: str
    owner: Any
    """PostgreSQL's URL, the server of MariaDB, or a client of MongoDB's."""
    numbers: int = 100

    def act(self, name: str, **values: Any) -> None:
        """What the other program, or its people, do besides: of its `acts`."""
        self.run(self.library.acts[name], **values)

    def run(self, statement: Statement, **values: Any) -> list[tuple[Any, ...]]:
        """One committed statement of the other program; {words} as its server has them."""
        if not isinstance(statement, str):
            statement(self.owner[self.database], **values)
            return []
        for word, here in self.library.words.items():
            statement = statement.replace("{" + word + "}", here)
        if isinstance(self.owner, MariaDB):
            with (
                closing(connect_mariadb(self.owner, self.database)) as theirs,
                theirs.cursor() as their_cursor,
            ):
                their_cursor.execute(statement, values or None)
                found = list(their_cursor.fetchall())
                while their_cursor.nextset():
                    pass
                return found
        with (
            closing(psycopg2.connect(self.owner)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def can_write(self, statement: str) -> bool:
        """Whether Backstop's own login could change these tables."""
        for word, here in self.library.words.items():
            statement = statement.replace("{" + word + "}", here)
        try:
            if isinstance(self.owner, MariaDB):
                with closing(
                    connect_mariadb(self.owner, self.database, user=self.database)
                ) as theirs:
                    theirs.cursor().execute(statement)
            else:
                self.system.rows("shop", statement)
        except (psycopg2.errors.InsufficientPrivilege, pymysql.err.OperationalError) as error:
            assert "denied" in str(error)
            return False
        return True

    def promise(self) -> str:
        """A message that its relay has not sent."""
        self.numbers += 1
        message_id = self.library.id_of(self.numbers)
        self.run(self.library.promise, id=_value(message_id))
        return message_id

    def roll_back(self) -> str:
        """A message of a transaction that is rolled back; in MongoDB one that was never written."""
        message_id, statement = self.library.id_of(99), self.library.promise
        if not isinstance(statement, str):
            return message_id
        for word, here in self.library.words.items():
            statement = statement.replace("{" + word + "}", here)
        on_mariadb = isinstance(self.owner, MariaDB)
        theirs = (
            connect_mariadb(self.owner, self.database)
            if on_mariadb
            else psycopg2.connect(self.owner)
        )
        with closing(theirs), theirs.cursor() as cursor:
            if on_mariadb:
                theirs.begin()
            cursor.execute(statement, {"id": _value(message_id)})
            assert cursor.rowcount == 1
            theirs.rollback()
        return message_id

    def send(self, message_id: str) -> str:
        self.run(self.library.send, id=_value(message_id))
        return message_id

    def receive(self, message_id: str, *, done: bool = True) -> str:
        if self.library.receive:
            self.run(self.library.receive, id=_value(message_id))
        if done:
            self.run(self.library.finish, id=_value(message_id))
        return message_id

    def look(self) -> None:
        """A run's look, which answers."""
        with closing(self.system.control()) as control:
            run = open_run(control, "reconcile", "*", self.system.settings)
            with Sources(self.system.settings, self.system.connections) as sources:
                look_at_mapped(self.system.settings, self.system.connections, control, run, sources)
                assert sources.unreachable == {}, sources.unreachable
            close_run(control, run, "done", {})

    def a_minute_later(self) -> None:
        """As if every look so far had been a minute earlier."""
        self.system.rows(
            "control",
            "UPDATE mapped_stub SET committed_after = committed_after - interval '1 minute',"
            " first_seen_at = first_seen_at - interval '1 minute', state_seen_at = state_seen_at - interval '1 minute',"
            " last_seen_at = last_seen_at - interval '1 minute', next_check_at = next_check_at - interval '1 minute'",
        )
        self.system.rows(
            "control",
            "UPDATE mapped_look SET mapped_at = mapped_at - interval '1 minute', began_at = began_at - interval '1 minute',"
            " ended_at = ended_at - interval '1 minute'",
        )

    def judge(self, *message_ids: str) -> dict[str, tuple[str, str]]:
        """id -> (verdict, reason) for the group billing, by key."""
        return {
            one.message_id: (str(one.verdict), one.reason)
            for one in self.judged(*message_ids)
            if one.consumer_group == "billing"
        }

    def judged(self, *message_ids: str) -> list[Judged]:
        with (
            closing(self.system.control()) as control,
            Judge(self.system.settings, self.system.connections, control) as judge,
        ):
            return judge.judge([Key("orders", message_id) for message_id in message_ids])

    def prove(self, *message_ids: str) -> None:
        """What a run keeps of these verdicts."""
        judged = self.judged(*message_ids)
        rows = [
            {
                "topic": one.topic,
                "consumer_group": one.consumer_group,
                "verdict": str(one.verdict),
                "deliveries": 1,
            }
            for one in judged
        ]
        confirmed = [
            StubOutcome(one.key, "pending", "confirmed", 1, None)
            for one in judged
            if one.verdict == "CONFIRMED"
        ]
        with open_mapped_stubs(self.system.settings, self.system.connections, "shop") as stubs:
            assert stubs.promote(confirmed, datetime.now(UTC)) == len(confirmed)
        with closing(self.system.control()) as control:
            run = open_run(control, "reconcile", "*", self.system.settings)
            prove_mapped_logs(self.system.settings, self.system.connections, control, run, rows)
            close_run(control, run, "done", {})

    def shown(self) -> list[tuple[Any, ...]]:
        """Every row of the other program's tables, with the transaction that wrote it where the server keeps that."""
        if isinstance(self.owner, MongoClient):
            theirs_now = self.owner[self.database]
            return [
                (name, repr(document))
                for name in sorted(theirs_now.list_collection_names())
                for document in sorted(theirs_now[name].find(), key=repr)
            ]
        if isinstance(self.owner, MariaDB):
            theirs = self.run(
                "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN (%(mine)s, 'eventuate')"
                " ORDER BY 1, 2",
                mine=self.database,
            )
            return [
                (table, row)
                for schema, table in theirs
                for row in sorted(self.run(f'SELECT * FROM "{schema}"."{table}"'), key=repr)
            ]
        tables = self.run(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
        )
        return [
            (table, row)
            for (table,) in tables
            for row in self.run(f"SELECT xmin::text, t::text FROM {table} t ORDER BY 2")
        ]


def make_mapped(
    server: Postgres | MariaDB | MongoServer, running: System, library: Library
) -> Mapped:
    """Makes the database with the library's tables and a login that may only read (on MongoDB there are no logins); the system's
    connection `shop` is that. Tables that are no SQL are made by who is called with the database's name."""
    name = f"theirs_{uuid.uuid4().hex[:10]}"
    if isinstance(server, MongoServer):
        running.urls["shop"] = server.url(name)
        shop = Mapped(running, library, name, connect_mongodb(server, name))
        shop.run(library.tables)
        return shop
    if isinstance(server, MariaDB):
        return _make_on_mariadb(server, running, library, name)
    server.create_database(name)
    owner = server.admin_dsn(name)
    if not isinstance(library.tables, str):
        library.tables(name)
    with closing(psycopg2.connect(owner)) as connection, connection, connection.cursor() as cursor:
        if isinstance(library.tables, str):
            cursor.execute(library.tables)
        cursor.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
        cursor.execute(f"GRANT CONNECT ON DATABASE {name} TO {name}")
        cursor.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        for (schema,) in cursor.fetchall():
            cursor.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
            cursor.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    running.urls["shop"] = _as(owner, name)
    return Mapped(running, library, name, owner)


def _make_on_mariadb(server: MariaDB, running: System, library: Library, name: str) -> Mapped:
    with closing(connect_mariadb(server, "dedup")) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS eventuate")
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {name}")
        if isinstance(library.tables, str):
            cursor.execute(library.tables)
            while cursor.nextset():
                pass
        else:
            library.tables(name)
        cursor.execute(f"CREATE USER {name}@'{LOOPBACK}' IDENTIFIED BY '{PASSWORD}'")
        for schema in (name, "eventuate"):
            cursor.execute(f"GRANT SELECT ON {schema}.* TO {name}@'{LOOPBACK}'")
    running.urls["shop"] = server.url(name, name)
    return Mapped(running, library, name, server)


def connect_mongodb(server: MongoServer, database: str) -> MongoClient[Any]:
    """As the other program; the server does not hold back an answer until something changes, so it is not asked to."""
    return MongoClient(server.url(database), directConnection=True, serverMonitoringMode="poll")


def connect_mariadb(server: MariaDB, database: str, user: str = "admin") -> Any:
    """As the other program, whose statements quote names as PostgreSQL's do."""
    return pymysql.connect(
        host=LOOPBACK,
        port=server.port,
        user=user,
        password=PASSWORD,
        database=database,
        autocommit=True,
        charset="utf8mb4",
        client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS,
        ssl_disabled=True,
        init_command="SET SESSION sql_mode = 'ANSI_QUOTES'",
    )


def settings_of(library: Library, **changes: Any) -> dict[str, Any]:
    """The parts of a system's settings: producer shop and consumer billing_db are the library's tables."""
    producer = {**library.producer, **changes.pop("producer", {})}
    consumer = {**library.consumer, **changes.pop("consumer", {})}
    return {
        "producers": {"shop": {"kind": "mapped", "connection": "shop", "mapping": producer}},
        "consumers": {"billing_db": {"kind": "mapped", "connection": "shop", "mapping": consumer}},
        "groups": {"billing": {"store": "billing_db", "progress": "acknowledged"}},
        "topics": {"orders": {"broker": "embedded", "groups": ["billing"], "mode": "observe"}},
        **changes,
    }


def _as(dsn: str, role: str) -> str:
    """The same address for another login, whose password is its name."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(dsn)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{role}:{role}@{address}", parts.path, parts.query, ""))


def _value(message_id: str) -> Any:
    return int(message_id) if message_id.isdigit() else message_id
