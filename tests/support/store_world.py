"""What the store contract needs of a kind of database beside its adapter: a way to put rows there, and to
look at them.

A further adapter joins by another class with these methods, named in `WORLDS`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from psycopg2 import sql

from backstop.schema.migrate import migrate
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import LogStore, Scan, StubStore
from backstop_lab.servers.postgres import Postgres
from committed import empty, named_rows

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PASSWORD = "s3cret-pass-never-shown"  # unique, so that a leak can be searched for
Row = dict[str, Any]


class PostgresWorld:
    """PostgreSQL, one server for a module of tests."""

    odd_instants: Mapping[str, str | None] = {
        "infinity": "latest",
        "-infinity": "earliest",
        "0044-03-15 BC": "earliest",
        "20000-01-01": "latest",
        "9999-12-31 23:59:59.999999": "latest",
    }
    """As the database takes them, and as what they are read; null: as none."""
    cuts_scans = True
    """Whether several sessions read parts of one snapshot."""
    ends = ("-infinity", "infinity")
    """The first and the last instant that a column holds."""

    def __init__(self, folder: Path) -> None:
        self.server = Postgres(folder)

    def start(self) -> None:
        self.server.start()
        for role in ("producer", "consumer"):
            self.server.create_database(role)
            migrate(self.server.admin_dsn(role), role)

    def stop(self) -> None:
        self.server.stop()

    def empty(self) -> None:
        for role in ("producer", "consumer"):
            empty(self.server.admin_dsn(role))

    def stubs(self) -> StubStore:
        """A store of its own each time: another program's, as far as the database can tell."""
        return PostgresStubs("shop_a", self.server.admin_dsn("producer"))

    def logs(self) -> LogStore:
        return PostgresLogs("billing_db", self.server.admin_dsn("consumer"))

    def unreachable(self) -> tuple[StubStore, LogStore]:
        url = f"postgresql://backstop:{PASSWORD}@127.0.0.1:1/gone"
        return PostgresStubs("shop_a", url), PostgresLogs("billing_db", url)

    def put_stub(self, **columns: Any) -> None:
        """A pending stub, due for an hour, unless `columns` says otherwise."""
        values = {
            "topic": "orders",
            "message_id": "m-1",
            "content": b"content",
            "created_at": NOW - timedelta(days=1),
            "next_check_at": datetime.now(UTC) - timedelta(hours=1),
            **columns,
        }
        self._insert("producer", "message_stub", values)

    def put_many(self, number: int) -> None:
        """Due stubs m-1, m-2, ..."""
        self.run(
            "producer",
            "INSERT INTO message_stub (topic, message_id, content, next_check_at)"
            " SELECT 'orders', 'm-' || n, '', now() FROM generate_series(1, %s) n",
            (number,),
        )

    def locks_of_stubs(self) -> list[Row]:
        """What a migration would wait for; it raises where it is only found out by waiting."""
        return self.run(
            "producer",
            "SELECT mode FROM pg_locks WHERE relation = 'message_stub'::regclass AND pid <> pg_backend_pid()",
        )

    def password(self) -> str:
        found = urlsplit(self.server.admin_dsn("producer")).password
        assert found
        return found

    def put_attempt(self, **columns: Any) -> None:
        values = {
            "topic": "orders",
            "message_id": "m-1",
            "send_number": 1,
            "requested_by": "producer",
            "started_at": NOW,
            "outcome": "unknown",
            **columns,
        }
        self._insert("producer", "send_attempt", values)

    def put_log(self, **columns: Any) -> None:
        values = {
            "consumer_group": "billing",
            "topic": "orders",
            "message_id": "m-1",
            "state": "CONSUMING",
            **columns,
        }
        self._insert("consumer", "consumer_log", values)

    def put_floor(self, group: str, floor: datetime | None) -> None:
        self._insert(
            "consumer",
            "consumer_log_floor",
            {"consumer_group": group, "log_floor": floor or "-infinity"},
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

    @contextmanager
    def without_rules(self) -> Iterator[None]:
        """The table of logs as another program may have made it: the same columns, nothing that holds
        them."""
        self.run("consumer", "CREATE TABLE kept_aside (LIKE consumer_log INCLUDING DEFAULTS)")
        self.run("consumer", "ALTER TABLE consumer_log RENAME TO consumer_log_ruled")
        self.run("consumer", "ALTER TABLE kept_aside RENAME TO consumer_log")
        for column in (
            "state",
            "updated_at",
            "first_received_at",
            "attempts",
            "duplicates_stopped",
        ):
            self.run("consumer", f"ALTER TABLE consumer_log ALTER {column} DROP NOT NULL")
        try:
            yield
        finally:
            self.run("consumer", "DROP TABLE consumer_log")
            self.run("consumer", "ALTER TABLE consumer_log_ruled RENAME TO consumer_log")

    def read(self, scan: AbstractContextManager[Scan], what: str = "stubs") -> list[list[Row]]:
        """The rows of each part, as executors read them: by stores of their own, while the scan is open."""
        with scan as opened, self.stubs() as another:
            read = [
                another.read_part(part, lambda name, table: (name, table.to_pylist()))
                for part in opened.parts
            ]
        return [[row for name, rows in part if name == what for row in rows] for part in read]

    def run(self, database: str, statement: Any, values: Any = None) -> list[Row]:
        """One committed statement."""
        return named_rows(self.server.admin_dsn(database), statement, values)

    def _insert(self, database: str, table: str, values: Mapping[str, Any]) -> None:
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(sql.Placeholder() * len(values)),
        )
        self.run(database, statement, list(values.values()))


WORLDS: Sequence[type[PostgresWorld]] = (PostgresWorld,)


def reopen(store: StubStore, topics: Sequence[str], since: datetime) -> int:
    """What a restore of a consumer's database does with a shard; how many stubs are due again."""
    return sum(map(store.reopen, store.closed_since(topics, since)))


def token() -> str:
    return str(uuid.uuid4())
