"""dead_letters.drain: emptying a dead-letter queue of the embedded broker into the control database, each letter once."""

from __future__ import annotations

import copy
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import redis
import yaml

from backstop.brokers.redis_streams import Keys
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.runs.run import close_run, open_run
from backstop.schema.revisions import whole
from backstop.triage.drain.drain import drain_all
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from bench.measure import ROOT, RUNS, Row, median, said
from bench.world import SERVER

LETTERS, FULL_LETTERS = 100_000, 1_000_000
GROUP, TOPIC = "billing", "orders"
MORE_MIB = 100
LOAD = 5_000


def bench(full: bool) -> list[Row]:
    """One queue, one process, both servers durable; FULL: a million too, which must not take more memory."""
    rates: dict[int, list[float]] = {}
    memory: dict[int, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        _postgres(Path(folder) / "pg") as postgres,
        Valkey(Path(folder) / "vk") as valkey,
        redis.Redis.from_url(valkey.url()) as client,
    ):
        postgres.create_database("control")
        dsn = postgres.admin_dsn("control")
        _run(dsn, whole("control"))
        urls = {"control": dsn, "broker": valkey.url()}
        for letters in (LETTERS, FULL_LETTERS) if full else (LETTERS,):
            for number in range(RUNS):
                _run(dsn, "TRUNCATE dead_letter, drain_batch CASCADE")
                _run(dsn, "CHECKPOINT")
                _fill(client, letters)
                with said(f"run {number} of {letters:,}"):
                    took, peak = _child(urls)
                assert client.xlen(Keys().dead(TOPIC, GROUP)) == 0
                assert _rows(
                    dsn, "SELECT count(*), count(DISTINCT message_id) FROM dead_letter"
                ) == [(letters, letters)]
                again, _ = _child(urls)
                assert _rows(dsn, "SELECT count(*) FROM dead_letter") == [(letters,)], again
                rates.setdefault(letters, []).append(round(letters / took))
                memory.setdefault(letters, []).append(peak)
    most = max(rates)
    rate = median(rates[most])
    rows = [
        Row(
            "dead_letters.drain",
            rate,
            "letters/s",
            ">= 40,000",
            rate >= 40_000,
            rows=most,
            runs=rates[most],
            note="one queue, one process, contents of 300 bytes; the broker's appendfsync is always; a second drain adds none",
        )
    ]
    small = median(memory[LETTERS])
    if full:
        large = median(memory[FULL_LETTERS])
        rows.append(
            Row(
                "dead_letters.drain_memory",
                large,
                "MiB",
                f"<= {small:.0f} + {MORE_MIB}",
                large <= small + MORE_MIB,
                rows=FULL_LETTERS,
                runs=memory[FULL_LETTERS],
                note=f"the highest of the process; of {LETTERS:,} letters {small:.0f} MiB",
            )
        )
    return rows


@contextmanager
def _postgres(folder: Path) -> Iterator[Postgres]:
    """As the other benchmarks have it."""
    server = Postgres(folder)
    with server:
        pass  # its folder is made
    with (server.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(SERVER)
    with server:
        yield server


def _child(urls: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of one drain, and the highest memory of its process in MiB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_drain, (dict(urls),))


def _drain(urls: dict[str, str]) -> tuple[float, float]:
    written: dict[str, Any] = yaml.safe_load((ROOT / "backstop.yaml").read_text(encoding="utf-8"))
    written["control"] = "control"
    written["brokers"]["embedded"]["connection"] = "broker"
    settings = from_mapping(copy.deepcopy(written))
    control = psycopg2.connect(urls["control"])
    run = open_run(control, "triage", "*", settings)
    begun = time.perf_counter()
    counts = drain_all(settings, Connections(resolver=urls.get), control, run)
    took = time.perf_counter() - begun
    close_run(control, run, "done", counts)
    control.close()
    return took, round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _fill(client: Any, count: int) -> None:
    """Letters as the broker itself buries them."""
    client.sadd(Keys().group(GROUP), TOPIC)
    key = Keys().dead(TOPIC, GROUP).encode()
    for batch in _entries(count):
        connection = client.connection_pool.get_connection()
        connection.send_packed_command(
            [
                b"".join(
                    b"*%d\r\n" % len(words)
                    + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
                    for words in ((b"XADD", key, b"*", *fields) for fields in batch)
                )
            ]
        )
        for _ in batch:
            connection.read_response()
        client.connection_pool.release(connection)


def _entries(count: int) -> Iterator[list[tuple[bytes, ...]]]:
    epoch, now = b"0123456789abcdef0123456789abcdef", b"%d" % (time.time() * 1_000_000)
    for at in range(0, count, LOAD):
        yield [
            (
                b"time",
                now,
                b"epoch",
                epoch,
                b"headers",
                b'{"backstop-message-id": "%010d-0123456789abcdef012", "backstop-send-number": "1"}'
                % number,
                b"content",
                b"\xab" * 300,
                b"origin-group",
                GROUP.encode(),
                b"origin-topic",
                TOPIC.encode(),
                b"origin-queue",
                b"%d" % (number % 8),
                b"origin-offset",
                b"%d" % (number // 8),
                b"origin-epoch",
                epoch,
                b"deliveries",
                b"16",
                b"cause",
                b"handler failed",
                b"error",
                b"ValueError: order %d has no customer" % number,
                b"died",
                now,
            )
            for number in range(at, min(at + LOAD, count))
        ]


def _run(dsn: str, statement: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


def _rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        found = cursor.fetchall()
    connection.close()
    return list(found)


BENCHMARKS = {("dead_letters.drain", "dead_letters.drain_memory"): bench}
