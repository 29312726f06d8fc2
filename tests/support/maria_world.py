"""Consumer databases in MariaDB, with the schema as it is shipped, beside the PostgreSQL ones of client_world and store_world."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.schema.migrate import migrate
from backstop.stores.mariadb.logs import MariaLogs
from backstop.stores.mariadb.stubs import MariaStubs
from backstop.stores.protocol import LogStore, StubStore
from committed import named_rows
from mariadb import PASSWORD, MariaDB, connect_to
from store_world import NOW

EFFECT = (
    "CREATE TABLE effect (topic varchar(255), message_id varchar(255), consumer_group varchar(255), fence bigint)"
    " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
)
BUSINESS = "CREATE TABLE business_order (order_id varchar(255) PRIMARY KEY)"
KEYS = ("consumer_group", "topic", "message_id")
_KEY = "consumer_group = %s AND topic = %s AND message_id = %s"
Row = dict[str, Any]


class MariaDatabase:
    """One database under test: its address, and what is in it."""

    def __init__(self, server: MariaDB, name: str, user: str = "admin") -> None:
        self.server, self.name = server, name
        self.dsn = server.url(user, name)

    def connect(self, **options: Any) -> Any:
        return connect_to(self.dsn, **options)

    def run(self, statement: str, values: Any = None) -> list[Row]:
        """One committed statement."""
        found = named_rows(self.dsn, statement, values)
        return [{name: _shown(name, value) for name, value in row.items()} for row in found]

    def one(self, statement: str, values: Any = None) -> Row:
        (row,) = self.run(statement, values)
        return row

    def log_of(self, group: str, topic: str, message_id: str) -> list[Row]:
        return self.run(
            f"SELECT * FROM consumer_log WHERE {_KEY}", _bytes(group, topic, message_id)
        )

    def end_lease(self, group: str, topic: str, message_id: str, ago: float) -> None:
        self.run(
            f"UPDATE consumer_log SET lease_expires_at = UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND WHERE {_KEY}"
            " AND state = 'CONSUMING'",
            (round(ago * 1_000_000), *_bytes(group, topic, message_id)),
        )

    def reclaim(self, group: str, topic: str, message_id: str) -> None:
        self.run(
            f"UPDATE consumer_log SET state = 'EXPIRED' WHERE {_KEY} AND state = 'CONSUMING'",
            _bytes(group, topic, message_id),
        )

    def empty(self) -> None:
        for table in ("consumer_log", "consumer_log_floor", "consumer_books", "effect"):
            self.run(f"DELETE FROM {table}")


def _bytes(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, bytes) and name in (*KEYS, "queue_epoch", "member", "life"):
        return value.decode(errors="backslashreplace")
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


@pytest.fixture(scope="module")
def maria_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@contextmanager
def maria_database(server: MariaDB, role: str = "consumer") -> Iterator[MariaDatabase]:
    """A database of its own, migrated, and dropped at the end."""
    name = f"{role}_{uuid.uuid4().hex[:10]}"
    _as_admin(server, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        database = MariaDatabase(server, name)
        migrate(database.dsn, role)
        database.run(EFFECT if role == "consumer" else BUSINESS)
        yield database
    finally:
        _as_admin(server, f"DROP DATABASE {name}")


def _as_admin(server: MariaDB, statement: str) -> None:
    """On a connection of its own: a test may have restarted the server."""
    with closing(server.connect()) as admin, admin.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(scope="module")
def maria_consumer(maria_server: MariaDB) -> Iterator[MariaDatabase]:
    with maria_database(maria_server) as database:
        yield database


@pytest.fixture
def maria(maria_consumer: MariaDatabase) -> MariaDatabase:
    maria_consumer.empty()
    return maria_consumer


@pytest.fixture
def maria_producer(maria_server: MariaDB) -> Iterator[MariaDatabase]:
    with maria_database(maria_server, "producer") as database:
        yield database


class MariaLogWorld:
    """What the contract of log stores needs of MariaDB; see store_world.PostgresWorld."""

    odd_instants: Mapping[str, str | None] = {
        "0000-00-00 00:00:00": None,
        "0044-03-15 00:00:00": "0044-03-15",
        "9999-12-31 23:59:59.999999": "latest",
    }

    def __init__(self, folder: Path) -> None:
        self.server = MariaDB(folder)
        self.database = MariaDatabase(self.server, "consumer")

    def start(self) -> None:
        self.server.start()
        with closing(self.server.connect()) as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE consumer")
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        migrate(self.database.dsn, "consumer")
        self.database.run(EFFECT)

    def stop(self) -> None:
        self.server.stop()

    def empty(self) -> None:
        self.database.empty()

    def logs(self) -> LogStore:
        return MariaLogs("billing_db", self.database.dsn)

    def unreachable(self) -> tuple[None, LogStore]:
        return None, MariaLogs("billing_db", f"mysql://backstop:{UNREACHED}@127.0.0.1:1/gone")

    def put_log(self, **columns: Any) -> None:
        now = datetime.now(UTC)
        values = {
            "consumer_group": "billing",
            "topic": "orders",
            "message_id": "m-1",
            "state": "CONSUMING",
            "first_received_at": now,
            "updated_at": now,
            **columns,
        }
        self._insert("consumer_log", values)

    def put_floor(self, group: str, floor: datetime | None) -> None:
        self._insert("consumer_log_floor", {"consumer_group": group, "log_floor": floor})

    @contextmanager
    def without_rules(self) -> Iterator[None]:
        """The table of logs as another program may have made it: the same columns, nothing that holds them."""
        self.database.run("RENAME TABLE consumer_log TO consumer_log_ruled")
        self.database.run(
            "CREATE TABLE consumer_log AS SELECT * FROM consumer_log_ruled WHERE FALSE"
        )
        for column in (
            "state varchar(16)",
            "updated_at datetime(6)",
            "first_received_at datetime(6)",
        ):
            self.database.run(f"ALTER TABLE consumer_log MODIFY {column} NULL")
        for column in ("attempts", "duplicates_stopped"):
            self.database.run(f"ALTER TABLE consumer_log MODIFY {column} integer NULL DEFAULT 0")
        try:
            yield
        finally:
            self.database.run("DROP TABLE consumer_log")
            self.database.run("RENAME TABLE consumer_log_ruled TO consumer_log")

    def _insert(self, table: str, values: Mapping[str, Any]) -> None:
        given = [_stored(name, value) for name, value in values.items()]
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
            cursor.execute(
                f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})",
                given,
            )
            connection.commit()


class MariaStubWorld:
    """What the contract of stub stores needs of MariaDB; see store_world.PostgresWorld."""

    cuts_scans = False
    ends = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")

    def __init__(self, folder: Path) -> None:
        self.server = MariaDB(folder)
        self.database = MariaDatabase(self.server, "producer")

    @classmethod
    def of(cls, database: MariaDatabase) -> MariaStubWorld:
        """Over a database that is there."""
        world = cls.__new__(cls)
        world.server, world.database = database.server, database
        return world

    def start(self) -> None:
        self.server.start()
        with closing(self.server.connect()) as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE producer")
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        migrate(self.database.dsn, "producer")

    def stop(self) -> None:
        self.server.stop()

    def empty(self) -> None:
        self.run("producer", "DELETE FROM message_stub")

    def stubs(self) -> StubStore:
        return MariaStubs("shop_a", self.database.dsn)

    def unreachable(self) -> tuple[StubStore, None]:
        return MariaStubs("shop_a", f"mysql://backstop:{UNREACHED}@127.0.0.1:1/gone"), None

    def locks_of_stubs(self) -> list[Row]:
        return self.run(
            "producer",
            "SET STATEMENT lock_wait_timeout = 1 FOR ALTER TABLE message_stub COMMENT ''",
        )

    def password(self) -> str:
        return PASSWORD

    def put_stub(self, **columns: Any) -> None:
        """A pending stub, due for an hour, unless `columns` says otherwise."""
        values = {
            "topic": "orders",
            "message_id": "m-1",
            "content": b"content",
            "created_at": NOW - timedelta(days=1),
            "next_check_at": datetime.now(UTC) - timedelta(hours=1),
            "updated_at": datetime.now(UTC),
            **columns,
        }
        self._insert("message_stub", values)

    def put_attempt(self, **columns: Any) -> None:
        values = {
            "topic": "orders",
            "message_id": "m-1",
            "send_number": 1,
            "requested_by": "producer",
            "started_at": NOW,
            "finished_at": datetime.now(UTC),
            "outcome": "unknown",
            **columns,
        }
        self._insert("send_attempt", values)

    def put_many(self, number: int) -> None:
        """Due stubs m-1, m-2, ..."""
        self.run(
            "producer",
            "INSERT INTO message_stub (topic, message_id, content, next_check_at, created_at, updated_at)"
            " SELECT 'orders', CONCAT('m-', seq), '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)"
            f" FROM seq_1_to_{number}",
        )

    def stub(self, message_id: str = "m-1", topic: str = "orders") -> Row:
        (row,) = self.run(
            "producer",
            "SELECT * FROM message_stub WHERE topic = %s AND message_id = %s",
            (topic, message_id),
        )
        return row

    def attempts(self) -> list[Row]:
        return self.run(
            "producer", "SELECT * FROM send_attempt ORDER BY topic, message_id, send_number"
        )

    def read(self, scan: Any, what: str = "stubs") -> list[list[Row]]:
        with scan as opened, self.stubs() as another:
            read = [
                another.read_part(part, lambda name, table: (name, table.to_pylist()))
                for part in opened.parts
            ]
        return [[row for name, rows in part if name == what for row in rows] for part in read]

    def run(self, _: str, statement: str, values: Any = None) -> list[Row]:
        """One committed statement."""
        given = None if values is None else [_stub_value("", value) for value in values]
        found = named_rows(self.database.dsn, statement, given)
        return [{name: _stub_shown(name, value) for name, value in row.items()} for row in found]

    def _insert(self, table: str, values: Mapping[str, Any]) -> None:
        names = ", ".join(f"`{name}`" for name in values)
        self.run(
            "producer",
            f"INSERT INTO {table} ({names}) VALUES ({', '.join(['%s'] * len(values))})",
            [_stub_value(name, value) for name, value in values.items()],
        )


def _stub_value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and name not in ("headers", "status", "attempt_token", "outcome"):
        return value.encode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _stub_shown(name: str, value: Any) -> Any:
    if value is not None and name in ("attempt_groups", "first_groups", "groups"):
        return json.loads(value)
    if isinstance(value, bytes) and name not in ("content", "erased_hash"):
        return value.decode(errors="backslashreplace")
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


UNREACHED = "s3cret-pass-never-shown"


def _stored(name: str, value: Any) -> Any:
    """As our columns have it."""
    if isinstance(value, str) and name in (*KEYS, "queue_epoch"):
        return value.encode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
