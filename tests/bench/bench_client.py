"""client.overhead: what record + send and begin + effect + complete cost beside the same work without Backstop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extras import execute_values

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import SendPolicy, record, record_many, send, send_many
from backstop.client.keep_connection import KeptConnection
from backstop.client.lease_store import InDatabase
from backstop.client.stub_writer import NewMessage
from backstop.leases.lease import LEASE, RETRY_AFTER, Acquired, Arrival
from backstop.model.records import Message
from backstop.schema.revisions import whole
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import Row, alternating, median

ONE, BATCHES, BATCH = 300, 10, 500
POLICY = SendPolicy(timedelta(minutes=2), timedelta(minutes=2), timedelta(seconds=30))
CONTENT = b"\xab" * 300


def bench(full: bool) -> list[Row]:
    """The ratio of times, singly and in batches of 500; the producer's part and the consumer's."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres(Path(folder) / "pg") as postgres,
        Valkey(Path(folder) / "vk") as valkey,
    ):
        for name, role in (("producer", "producer"), ("consumer", "consumer")):
            postgres.create_database(name)
            _run(
                postgres.admin_dsn(name),
                whole(role) + "; CREATE TABLE business (id text PRIMARY KEY, what bytea)",
            )
        with RedisStreams(valkey.url()) as broker:
            broker.create_topic("orders", 8)
            pairs = {
                "client.overhead.produce": (
                    _produce(postgres, broker),
                    _produce_plain(postgres, broker),
                    ONE,
                    2.5,
                ),
                "client.overhead.produce_batch": (
                    _produce_batch(postgres, broker),
                    _produce_batch_plain(postgres, broker),
                    BATCHES * BATCH,
                    2.0,
                ),
                "client.overhead.consume": (
                    _consume(postgres),
                    _consume_plain(postgres),
                    ONE,
                    3.0,
                ),
            }
            rows = []
            for name, (ours, plain, number, target) in pairs.items():
                mine, theirs = alternating(
                    lambda ours=ours: _time(ours), lambda plain=plain: _time(plain)
                )
                ratio = round(median(mine) / median(theirs), 2)
                rows.append(
                    Row(
                        name,
                        ratio,
                        "x",
                        f"<= {target}",
                        ratio <= target,
                        peer=round(median(theirs), 3),
                        rows=number,
                        runs=mine,
                        peer_runs=theirs,
                        note=NOTES[name],
                    )
                )
    return rows


NOTES = {
    "client.overhead.produce": "round trips: 4 (begin, insert, commit, publish); ours 7 (and stub, look, settle)",
    "client.overhead.produce_batch": "batches of 500; round trips as above, for the whole batch",
    "client.overhead.consume": "round trips: 3 (begin, effect, commit); ours 5 (and the lease, and complete)",
}
_number = iter(range(10**9))


def _ids(count: int) -> list[str]:
    return [f"id {next(_number)}" for _ in range(count)]


def _time(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _run(url: str, statement: str) -> None:
    connection = psycopg2.connect(url)
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


def _business(cursor: Any, ids: list[str]) -> None:
    execute_values(
        cursor, "INSERT INTO business VALUES %s", [(one, CONTENT) for one in ids], page_size=BATCH
    )


def _produce(postgres: Postgres, broker: RedisStreams) -> Callable[[], None]:
    connection = psycopg2.connect(postgres.admin_dsn("producer"))
    kept = KeptConnection(
        lambda: psycopg2.connect(postgres.admin_dsn("producer")), "producer database"
    )

    def work() -> None:
        for one in _ids(ONE):
            with connection, connection.cursor() as cursor:
                _business(cursor, [one])
                recorded = record(connection, "orders", CONTENT, message_id=one, policy=POLICY)
            send(recorded, broker, kept)

    return work


def _produce_plain(postgres: Postgres, broker: RedisStreams) -> Callable[[], None]:
    connection = psycopg2.connect(postgres.admin_dsn("producer"))

    def work() -> None:
        for one in _ids(ONE):
            with connection, connection.cursor() as cursor:
                _business(cursor, [one])
            broker.publish([Message("orders", one, CONTENT)])

    return work


def _produce_batch(postgres: Postgres, broker: RedisStreams) -> Callable[[], None]:
    connection = psycopg2.connect(postgres.admin_dsn("producer"))
    kept = KeptConnection(
        lambda: psycopg2.connect(postgres.admin_dsn("producer")), "producer database"
    )

    def work() -> None:
        for _ in range(BATCHES):
            ids = _ids(BATCH)
            with connection, connection.cursor() as cursor:
                _business(cursor, ids)
                recorded = record_many(
                    connection, [NewMessage("orders", one, CONTENT) for one in ids], policy=POLICY
                )
            send_many(recorded, broker, kept)

    return work


def _produce_batch_plain(postgres: Postgres, broker: RedisStreams) -> Callable[[], None]:
    connection = psycopg2.connect(postgres.admin_dsn("producer"))

    def work() -> None:
        for _ in range(BATCHES):
            ids = _ids(BATCH)
            with connection, connection.cursor() as cursor:
                _business(cursor, ids)
            broker.publish([Message("orders", one, CONTENT) for one in ids])

    return work


def _consume(postgres: Postgres) -> Callable[[], None]:
    """As a consumer of one message at a time does it."""
    store = InDatabase(
        lambda: psycopg2.connect(postgres.admin_dsn("consumer")),
        "billing",
        lease=LEASE,
        retry_after=RETRY_AFTER,
        owner_host="bench",
    )

    def work() -> None:
        for one in _ids(ONE):
            (lease,) = store.begin([Arrival("orders", one)])
            assert isinstance(lease, Acquired)
            with store.completing(lease) as connection, connection.cursor() as cursor:
                _business(cursor, [one])

    return work


def _consume_plain(postgres: Postgres) -> Callable[[], None]:
    connection = psycopg2.connect(postgres.admin_dsn("consumer"))

    def work() -> None:
        for one in _ids(ONE):
            with connection, connection.cursor() as cursor:
                _business(cursor, [one])

    return work


BENCHMARKS = {
    ("client.overhead.produce", "client.overhead.produce_batch", "client.overhead.consume"): bench
}
