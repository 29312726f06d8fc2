"""mapped.*: what a row of another program's tables costs to read, on MariaDB beside PostgreSQL: looked at, by key, by a scan."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.records import Key
from backstop.stores.mapped.table import Table, open_table
from backstop.stores.protocol import LOG_COLUMNS
from backstop_lab.servers.postgres import Postgres
from bench.measure import Row, alternating, median, seconds
from mapped_world import CAP, CAP_MYSQL, connect_mariadb
from mariadb import MariaDB

ROWS, KEYS = 200_000, 10_000
NAMES = ("mapped.look", "mapped.by_key", "mapped.log_by_key", "mapped.scan")
STUBS = {"preset": "cap", "topics": ["orders"], "time_zone": "Asia/Shanghai"}
LOGS = {"preset": "cap", "time_zone": "Asia/Shanghai", "kept": None}
_PUBLISHED = """INSERT INTO {published} SELECT {n}, 'v1', 'orders', CONCAT('{"Headers": {"cap-msg-id": "', {n}, '"}, "Value": "',
    REPEAT('x', 500), '"}'), 1, {now}, {now}, 'Succeeded' FROM {series}"""
_RECEIVED = """INSERT INTO {received} SELECT {n} + 1000000, 'v1', 'orders', 'billing', CONCAT('{"Headers": {"cap-msg-id": "', {n},
    '"}, "Value": "', REPEAT('x', 500), '"}'), 0, {now}, {now}, 'Succeeded' FROM {series}"""
_POSTGRES = {
    "{published}": "cap.published",
    "{received}": "cap.received",
    "{n}": "s.n",
    "{now}": "now() AT TIME ZONE 'Asia/Shanghai'",
    "{series}": f"generate_series(1, {ROWS}) AS s (n)",
}
_MARIADB = {
    "{published}": '"cap.published"',
    "{received}": '"cap.received"',
    "{n}": "s.seq",
    "{now}": "UTC_TIMESTAMP() + INTERVAL 8 HOUR",
    "{series}": f"seq_1_to_{ROWS} s",
}


def bench_mapped(full: bool) -> list[Row]:
    """CAP's tables with 200,000 rows of half a kilobyte, as a reader with few rows of content in its cache meets them."""
    with tempfile.TemporaryDirectory() as folder, _tables(Path(folder)) as (ours, theirs):
        asks: dict[str, Callable[[Table, str], int]] = {
            "mapped.look": _look,
            "mapped.by_key": _by_key,
            "mapped.log_by_key": _log_by_key,
        }
        rows = []
        for name, ask in asks.items():
            number = ROWS if ask is _look else KEYS
            spent, peer = alternating(
                lambda ask=ask: seconds(lambda: ask(ours, "mysql")),  # type: ignore[misc]
                lambda ask=ask: seconds(lambda: ask(theirs, "postgresql")),  # type: ignore[misc]
            )
            rows.append(
                Row(
                    name,
                    round(median(spent) / number * 1e6, 2),
                    "us a row",
                    "-",
                    None,
                    peer=round(median(peer) / number * 1e6, 2),
                    rows=number,
                    runs=spent,
                    peer_runs=peer,
                    note=f"{number:,} rows on MariaDB; the peer is PostgreSQL",
                )
            )
        scans = [seconds(lambda: _scan(ours)) for _ in range(3)]
        rows.append(
            Row(
                "mapped.scan",
                round(median(scans) / ROWS * 1e6, 2),
                "us a row",
                "-",
                None,
                rows=ROWS,
                runs=scans,
                note="one process, all parts one after the other; mapped tables in PostgreSQL are asked by key",
            )
        )
    return rows


@contextmanager
def _tables(folder: Path) -> Iterator[tuple[Table, Table]]:
    with MariaDB(folder / "mariadb") as mariadb, Postgres(folder / "postgres") as postgres:
        with closing(connect_mariadb(mariadb, "dedup")) as connection:
            cursor = connection.cursor()
            cursor.execute(CAP_MYSQL)
            while cursor.nextset():
                pass
            for statement in (_PUBLISHED, _RECEIVED):
                cursor.execute(_filled(statement, _MARIADB))
            cursor.execute('ANALYZE TABLE "cap.received"')
        postgres.create_database("cap")
        with closing(psycopg2.connect(postgres.admin_dsn("cap"))) as connection, connection:
            cursor = connection.cursor()
            cursor.execute(CAP)
            for statement in (_PUBLISHED, _RECEIVED):
                cursor.execute(_filled(statement, _POSTGRES))
            cursor.execute("ANALYZE")
        ours = open_table("shard mariadb", mariadb.url("admin"), _stubs("mysql"))
        theirs = open_table("shard postgres", postgres.admin_dsn("cap"), _stubs("postgresql"))
        with closing(ours), closing(theirs):
            yield ours, theirs


def _filled(statement: str, words: dict[str, str]) -> str:
    for word, here in words.items():
        statement = statement.replace(word, here)
    return statement


def _stubs(dialect: str) -> StubMapping:
    return StubMapping.model_validate({**STUBS, "dialect": dialect})


def _logs(dialect: str) -> LogMapping:
    return LogMapping.model_validate({**LOGS, "dialect": dialect})


def _keys() -> list[Key]:
    return [Key("orders", str(number)) for number in range(1, ROWS + 1, ROWS // KEYS)]


def _look(table: Table, dialect: str) -> int:
    with tempfile.TemporaryFile() as rows:
        table.look(_stubs(dialect), rows)
        return rows.tell()


def _by_key(table: Table, dialect: str) -> int:
    found, _ = table.rows_of_keys(_stubs(dialect), _keys())
    assert len(found) == KEYS
    return KEYS


def _log_by_key(table: Table, dialect: str) -> int:
    found = table.log_table(_logs(dialect), "billing", _keys(), LOG_COLUMNS)
    assert found.num_rows == KEYS
    return KEYS


def _scan(table: Table) -> int:
    mapping = _logs("mysql")
    since = {"billing": datetime.now(UTC) - timedelta(days=1)}
    found = table.scan_done(mapping, since, {"billing": 1e9}, 2)
    assert found is not None
    tables: list[Any] = []
    for part in found.parts:
        tables += table.read_part(mapping, part, lambda _, rows: rows)
    assert sum(rows.num_rows for rows in tables) == ROWS
    return ROWS


BENCHMARKS = {NAMES: bench_mapped}
