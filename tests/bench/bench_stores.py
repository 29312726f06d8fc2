"""stores.*: what a row costs in each store, by key and by scan, beside PostgreSQL with Backstop's own tables.

Each figure is of one process that asks as a run does: keys in a batch, scans part by part. Where the store is a mapped outbox, the scan is
a look, which every run makes. A mapped inbox in PostgreSQL is never scanned, an outbox in a lake never asked by key.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pymysql

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.records import Key
from backstop.schema.migrate import migrate
from backstop.stores.lake.stores import LakeLogs, LakeStubs
from backstop.stores.mapped.logs import MappedLogs
from backstop.stores.mapped.stubs import MappedStubs
from backstop.stores.mariadb.logs import MariaLogs
from backstop.stores.mariadb.stubs import MariaStubs
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Scan, Scope
from backstop_lab.servers import fetch_iceberg
from backstop_lab.servers.mongodb import MongoServer
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.servers.postgres import Postgres
from bench.measure import RUNS, Row, median, said, seconds
from bench.processes import cpu, each
from mapped_world import connect_mongodb
from mariadb import PASSWORD, MariaDB

ROWS = int(os.environ.get("BACKSTOP_BENCH_STORES") or 50_000)
ASKED, ASKED_OF_A_LAKE = 20_000, 2_000
"""Keys; a lake answers a thousand by a job of Spark's."""
PAGE = 10_000
"""Documents that are given to MongoDB's stand-in at once."""
MONGODB_HEAP = 4096
"""Megabytes: it holds a million documents at the large size."""
OUTBOX = "id {text} PRIMARY KEY, topic {text}, state {text}, created {time}"
INBOX = "id {text}, topic {text}, grp {text}, state {text}, at {time}, PRIMARY KEY (grp, topic, id)"
PRODUCER: Mapping[str, Any] = {
    "message_id": "id",
    "topic": "topic",
    "topics": ["orders"],
    "created_at": "created",
    "state": "state",
    "sent": ["sent"],
    "unsent": ["new"],
}
CONSUMER: Mapping[str, Any] = {
    "message_id": "id",
    "topic": "topic",
    "group": "grp",
    "state": "state",
    "done": ["done"],
    "received_at": "at",
}
SINCE = {"billing": datetime(2020, 1, 1, tzinfo=UTC)}


def keys(number: int) -> list[Key]:
    return [Key("orders", f"m-{n:010}") for n in range(1, number + 1)]


@dataclass
class Asked:
    """One store of a kind: how it is asked, each giving the number of rows; null: it is not asked so."""

    by_key: Callable[[Sequence[Key]], int] | None
    scan: Callable[[], int] | None


Stores = Mapping[str, tuple[Asked, Asked]]
"""Kind -> its stubs and its logs."""
Work = tuple[int, Callable[[], int]]
"""How many rows it gives."""


def bench(full: bool) -> list[Row]:
    """FULL: ten times the rows."""
    rows = ROWS * (10 if full else 1)
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder), rows) as found:
        return [
            row
            for place, what in enumerate(("stubs", "logs"))
            for row in (
                _by_key(what, {kind: both[place] for kind, both in found.items()}, rows),
                _scanned(what, {kind: both[place] for kind, both in found.items()}, rows),
            )
        ]


def _by_key(what: str, found: Mapping[str, Asked], rows: int) -> Row:
    works: dict[str, Work] = {}
    for kind, one in found.items():
        if one.by_key is not None:
            wanted = keys(min(rows, ASKED_OF_A_LAKE if kind == "iceberg" else ASKED))
            works[kind] = (len(wanted), partial(one.by_key, wanted))
    return _row(f"stores.{what}.by_key", works)


def _scanned(what: str, found: Mapping[str, Asked], rows: int) -> Row:
    return _row(
        f"stores.{what}.scan",
        {kind: (rows, one.scan) for kind, one in found.items() if one.scan is not None},
    )


def _row(name: str, works: Mapping[str, Work]) -> Row:
    """Microseconds a row of each kind, each in turn with PostgreSQL, so that a drift of the machine meets both."""
    walls: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    for kind, work in works.items():
        with said(f"{name}, {kind}"):
            for run in range(RUNS + 1):
                for of, (number, ask), into in (
                    ("postgresql", works["postgresql"], beside),
                    (kind, work, walls),
                ):
                    before = cpu()
                    took = seconds(partial(_all, of, ask, number))
                    if run:
                        into.setdefault(kind, []).append(took / number * 1e6)
                        if into is walls:
                            spent.setdefault(kind, []).append(each(before, cpu(), number)["all"])
    ratios = {kind: median(runs) / median(beside[kind]) for kind, runs in walls.items()}
    return Row(
        name,
        median(walls["postgresql"]),
        "us a row",
        "-",
        None,
        rows=works["postgresql"][0],
        runs=walls["postgresql"],
        phases={kind: median(runs) for kind, runs in walls.items()},
        cpu={kind: median(runs) for kind, runs in spent.items()},
        note="of PostgreSQL's: " + ", ".join(f"{kind} {one:.1f} x" for kind, one in ratios.items()),
    )


def _all(kind: str, ask: Callable[[], int], number: int) -> None:
    found = ask()
    if found != number:
        raise AssertionError(f"{kind}: {found} of {number} rows")


def _parts(store: Any, scan: Scan | None) -> int:
    assert scan is not None and scan.parts
    return sum(
        sum(store.read_part(part, lambda name, rows: rows.num_rows if name != "attempts" else 0))
        for part in scan.parts
    )


def _of_logs(logs: Any, number: int) -> Asked:
    worth = {"billing": 100.0 * number}
    return Asked(
        lambda asked: logs.log_table("billing", asked).num_rows,
        lambda: _parts(logs, logs.scan_done(SINCE, worth, 1)),
    )


def _of_stubs(stubs: Any) -> Asked:
    def scan() -> int:
        with stubs.scan_due(stubs.clock() + timedelta(days=1), Scope(), 1) as due:
            return _parts(stubs, due)

    return Asked(lambda asked: stubs.stub_table(asked).num_rows, scan)


def _of_looks(stubs: MappedStubs) -> Asked:
    def look() -> int:
        with tempfile.TemporaryFile() as rows:
            stubs.look(rows)
            rows.seek(0)
            return sum(1 for _ in rows)

    return Asked(lambda asked: stubs.stub_table(asked).num_rows, look)


@contextmanager
def stores(folder: Path, rows: int) -> Iterator[Stores]:
    """The same messages everywhere: sent, and done by the group billing."""
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(folder / "postgres"))
        for role in ("control", "producer", "consumer"):
            postgres.create_database(role)
            migrate(postgres.admin_dsn(role), role)
        postgres.create_database("theirs")
        mariadb = stack.enter_context(MariaDB(folder / "mariadb"))
        mongodb = stack.enter_context(MongoServer(folder / "mongodb", heap_megabytes=MONGODB_HEAP))
        with said(f"{rows:,} rows in each store"):
            _fill_postgresql(postgres, rows)
            _fill_mariadb(mariadb, rows)
            _fill_mongodb(mongodb, rows)
            lake = _fill_lake(stack, folder / "lake", rows)
        control = postgres.admin_dsn("control")

        def open_mapped(dialect: str, url: str, **more: Any) -> tuple[Asked, Asked]:
            on_lake = dialect == "iceberg"
            prefix = "theirs." if on_lake else ""
            dialects = {"dialect": dialect, **({"delay": "0s"} if on_lake else {})}
            outbox = StubMapping.model_validate(
                {**PRODUCER, **dialects, "tables": [f"{prefix}outbox"], **more}
            )
            inbox = LogMapping.model_validate(
                {**CONSUMER, **dialects, "tables": [f"{prefix}inbox"]}
            )
            stubs: MappedStubs
            logs: MappedLogs
            if on_lake:
                stubs = LakeStubs("shop", url, control, outbox, timedelta(0))
                logs = LakeLogs("billing_db", url, control, inbox)
            else:
                stubs = MappedStubs("shop", url, control, outbox)
                logs = MappedLogs("billing_db", url, control, inbox)
            stack.enter_context(closing(stubs))
            stack.enter_context(closing(logs))
            of_logs = _of_logs(logs, rows)
            if on_lake:
                of_logs.scan = lambda: logs.read_whole({"billing": ["orders"]}).toArrow().num_rows
            elif dialect == "postgresql":
                of_logs.scan = None
            of_stubs = _of_looks(stubs)
            if on_lake:
                of_stubs.by_key = None  # it answers from what the control database remembers
            elif dialect == "mongodb":
                # The server that stands for MongoDB uses no index for such a question: its time says nothing of MongoDB's.
                of_stubs.by_key = of_logs.by_key = None
            return of_stubs, of_logs

        own = (
            PostgresStubs("shop", postgres.admin_dsn("producer")),
            PostgresLogs("billing_db", postgres.admin_dsn("consumer")),
            MariaStubs("shop", mariadb.url("admin", "producer")),
            MariaLogs("billing_db", mariadb.url("admin", "consumer")),
        )
        for one in own:
            stack.enter_context(closing(one))
        yield {
            "postgresql": (_of_stubs(own[0]), _of_logs(own[1], rows)),
            "mariadb": (_of_stubs(own[2]), _of_logs(own[3], rows)),
            "mapped postgresql": open_mapped("postgresql", postgres.admin_dsn("theirs")),
            "mapped mariadb": open_mapped("mysql", mariadb.url("admin", "theirs")),
            "mongodb": open_mapped("mongodb", mongodb.url("theirs"), changes=["state"]),
            "iceberg": open_mapped("iceberg", lake),
        }


def _fill_postgresql(postgres: Postgres, rows: int) -> None:
    key = "'m-' || lpad(n::text, 10, '0')"
    series = f"FROM generate_series(1, {rows}) n"
    made = {
        "producer": [
            "INSERT INTO message_stub (topic, message_id, content, next_check_at, send_count, attempted_at, sent_at)"
            f" SELECT 'orders', {key}, '', now(), 1, now(), now() {series}",
            "VACUUM ANALYZE message_stub",
        ],
        "consumer": [
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at)"
            f" SELECT 'billing', 'orders', {key}, 'CONSUMED', now() {series}",
            "VACUUM ANALYZE consumer_log",
        ],
        "theirs": [
            f"CREATE TABLE outbox ({OUTBOX.format(text='text', time='timestamptz')})",
            f"CREATE TABLE inbox ({INBOX.format(text='text', time='timestamptz')})",
            f"INSERT INTO outbox SELECT {key}, 'orders', 'sent', now() {series}",
            f"INSERT INTO inbox SELECT {key}, 'orders', 'billing', 'done', now() {series}",
            "VACUUM ANALYZE outbox",
            "VACUUM ANALYZE inbox",
        ],
    }
    for database, statements in made.items():
        with closing(psycopg2.connect(postgres.admin_dsn(database))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)


def _fill_mariadb(mariadb: MariaDB, rows: int) -> None:
    key, now = "CONCAT('m-', LPAD(seq, 10, '0'))", "UTC_TIMESTAMP(6)"
    series = f"FROM seq_1_to_{rows}"
    with mariadb.admin() as cursor:
        for name in ("producer", "consumer", "theirs"):
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    for role in ("producer", "consumer"):
        migrate(mariadb.url("admin", role), role)
    text = "varchar(190) COLLATE utf8mb4_bin NOT NULL"
    made = {
        "producer": [
            "INSERT INTO message_stub (topic, message_id, content, next_check_at, created_at, updated_at, send_count, attempted_at,"
            f" sent_at) SELECT 'orders', {key}, '', {now}, {now}, {now}, 1, {now}, {now} {series}",
            "ANALYZE TABLE message_stub",
        ],
        "consumer": [
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, first_received_at, updated_at, consumed_at)"
            f" SELECT 'billing', 'orders', {key}, 'CONSUMED', {now}, {now}, {now} {series}",
            "ANALYZE TABLE consumer_log",
        ],
        "theirs": [
            f"CREATE TABLE outbox ({OUTBOX.format(text=text, time='timestamp(6) NOT NULL')})",
            f"CREATE TABLE inbox ({INBOX.format(text=text, time='timestamp(6) NOT NULL')})",
            f"INSERT INTO outbox SELECT {key}, 'orders', 'sent', NOW(6) {series}",
            f"INSERT INTO inbox SELECT {key}, 'orders', 'billing', 'done', NOW(6) {series}",
            "ANALYZE TABLE outbox, inbox",
        ],
    }
    for database, statements in made.items():
        with closing(
            pymysql.connect(
                host=LOOPBACK,
                port=mariadb.port,
                user="admin",
                password=PASSWORD,
                database=database,
                autocommit=True,
            )
        ) as connection:
            for statement in statements:
                connection.cursor().execute(statement)


def _fill_mongodb(mongodb: MongoServer, rows: int) -> None:
    now = datetime.now(UTC)
    with closing(connect_mongodb(mongodb, "theirs")) as client:
        theirs = client["theirs"]
        theirs.outbox.create_index("id")
        theirs.outbox.create_index("created")
        theirs.inbox.create_index("id")
        every = keys(rows)
        for start in range(0, rows, PAGE):
            page = [
                {"id": key.message_id, "topic": "orders"} for key in every[start : start + PAGE]
            ]
            theirs.outbox.insert_many([{**one, "state": "sent", "created": now} for one in page])
            theirs.inbox.insert_many(
                [{**one, "grp": "billing", "state": "done", "at": now} for one in page]
            )


def _fill_lake(stack: ExitStack, folder: Path, rows: int) -> str:
    """Its address, with the session of Spark that reads it."""
    from pyspark.sql import functions as f

    from backstop.spark.session import start_session
    from backstop.stores.lake.snapshot import iceberg_name

    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {fetch_iceberg.jar()} pyspark-shell"
    spark = start_session("bench stores", "local[2]")
    stack.callback(spark.stop)
    folder.mkdir()
    made = spark.range(1, rows + 1).select(
        f.format_string("m-%010d", "id").alias("id"), f.lit("orders").alias("topic")
    )
    now = f.lit(datetime.now(UTC))
    tables = {
        "outbox": made.select("id", "topic", f.lit("sent").alias("state"), now.alias("created")),
        "inbox": made.select(
            "id",
            "topic",
            f.lit("billing").alias("grp"),
            f.lit("done").alias("state"),
            now.alias("at"),
        ),
    }
    for name, frame in tables.items():
        table = iceberg_name(folder.as_uri(), f"theirs.{name}", spark)
        frame.writeTo(table).using("iceberg").create()
    return folder.as_uri()


BENCHMARKS = {
    ("stores.stubs.by_key", "stores.stubs.scan", "stores.logs.by_key", "stores.logs.scan"): bench
}
