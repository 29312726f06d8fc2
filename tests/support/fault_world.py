"""Servers of the guard that can be lost, frozen and put out of time; workers in threads and in processes; what is counted."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import Consumer, Front, RedisExchange, RedisGuard
from backstop.model.records import Counts, Message
from backstop.schema.revisions import whole
from backstop_lab.chaos.servers import Server, find_faketime
from backstop_lab.servers.valkey import Valkey
from client_world import EFFECT, GROUP, TOPIC, Database, open_broker
from committed import empty
from guard_handlers import TABLES
from guard_world import PATIENT

SOON = timedelta(milliseconds=100)
AN_HOUR = 3600.0
LEASE = timedelta(seconds=30)
"""Of workers that nobody freezes or kills: none ends while a machine stands still."""
ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).parents[1] / "chaos" / "guard_worker_child.py"


class Servers:
    """What the module shares: the database and the broker; each test has a Redis of its own for the guard."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faketime = folder, find_faketime()
        self.database_server = Server("billing", folder, self.faketime, small_disk=False)
        self.broker_server = Valkey(folder / "streams", appendfsync="everysec")
        self._redises = 0

    def start(self) -> None:
        self.database_server.start()
        self.broker_server.start()
        self.database_server.program.create_database("consumer")  # type: ignore[union-attr]
        for statement in (whole("consumer"), EFFECT, TABLES):
            self.database.run(statement)

    def stop(self) -> None:
        self.database_server.stop()
        self.broker_server.stop()

    @property
    def database(self) -> Database:
        return Database(self.database_server.url("consumer"))

    def a_redis(self) -> Server:
        self._redises += 1
        folder = self.folder / f"redis-{self._redises}"
        folder.mkdir(mode=0o711)
        return Server("broker", folder, self.faketime, small_disk=False)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    folder.chmod(0o711)
    servers = Servers(folder)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def database(servers: Servers) -> Iterator[Database]:
    empty(servers.database.dsn)
    yield servers.database
    servers.database_server.skew(0.0)


@pytest.fixture
def guarding(servers: Servers) -> Iterator[Server]:
    """The Redis of the guard."""
    server = servers.a_redis()
    server.start()
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def broker(servers: Servers) -> Iterator[RedisStreams]:
    redis.Redis.from_url(servers.broker_server.url()).flushall()
    with open_broker(servers.broker_server.url()) as streams:
        streams.create_topic(TOPIC, 2)
        streams.create_group(GROUP, TOPIC, "start")
        yield streams


def until(what: str, holds: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def publish(
    broker: RedisStreams, first: int, last: int, copies: int = 1, headers: Any = None
) -> None:
    for _ in range(copies):
        broker.publish(
            [Message(TOPIC, f"m-{n}", b"{}", headers=headers or {}) for n in range(first, last)]
        )


def nothing_left(broker: RedisStreams) -> bool:
    return sum(broker.lag(TOPIC, GROUP).values()) == 0


def effects(database: Database) -> int:
    return int(database.one("SELECT count(*) FROM effect")["count"])


def assert_once(database: Database, broker: RedisStreams, size: int) -> None:
    """Every message has one effect and a log that says so, whatever happened."""
    times = {
        row["message_id"]: row["count"]
        for row in database.run("SELECT message_id, count(*) FROM effect GROUP BY 1")
    }
    assert times == {f"m-{n}": 1 for n in range(size)}
    states = database.run("SELECT DISTINCT state FROM consumer_log")
    assert [row["state"] for row in states] == ["CONSUMED"]
    assert nothing_left(broker) and list(broker.dead_letters(GROUP)) == []


class Fleet:
    """Workers of the group in threads, each with connections of its own."""

    def __init__(
        self,
        servers: Servers,
        way: Any,
        store: Callable[[], Front | RedisGuard | None],
        workers: int = 3,
    ) -> None:
        self._stop = threading.Event()
        self._counts = [Counts() for _ in range(workers)]
        self._ended: list[int] = []
        self._threads = [
            threading.Thread(target=self._work, args=(servers, way, store(), n, counts))
            for n, counts in enumerate(self._counts)
        ]

    @property
    def counts(self) -> Counts:
        total = Counts()
        for counts in self._counts:
            total += counts
        return total

    def _work(self, servers: Servers, way: Any, store: Any, number: int, counts: Counts) -> None:
        connect = None if isinstance(store, RedisGuard) else servers.database.connect
        with open_broker(servers.broker_server.url()) as broker:
            consumer = Consumer(
                broker.subscribe(GROUP, [TOPIC], f"worker-{number}"),
                connect,
                GROUP,
                way,
                redis=store,
                lease=LEASE,
                retry_after=SOON,
                batch=5,
                wait=SOON,
            )
            consumer.run(self._stop, counts=counts)
            consumer.close()
        self._ended.append(number)

    @contextmanager
    def at_work(self) -> Iterator[Fleet]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(120)
        assert len(self._ended) == len(self._threads), "a worker ended with an error, or not at all"


def fronted(url: str, timeout: float = PATIENT) -> Callable[[], Front]:
    """With so many seconds for each answer of Redis."""
    return lambda: Front(RedisExchange(url, timeout=timeout), GROUP, lease=LEASE, retry_after=SOON)


class Child:
    """A worker in a process of its own."""

    def __init__(
        self, servers: Servers, waits: str | None, clock: float | None = None, **given: Any
    ) -> None:
        places = {
            "consumer": servers.database.dsn,
            "broker": servers.broker_server.url(),
            "lease": 1.0,
            "waits": waits,
        }
        path = os.pathsep.join(str(ROOT / part) for part in ("include", "tests/support"))
        environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"]}
        if clock is not None:
            environment |= {
                "LD_PRELOAD": str(servers.faketime),
                "FAKETIME": f"{clock:+.0f}",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(CHILD),
                json.dumps(
                    {**places, "way": "transactional", "name": f"child-{id(self)}", **given}
                ),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.clock: float | None = None

    def wait_until_started(self) -> None:
        """Subscribed; `clock` is what it takes for the time."""
        told, self.clock = self.line()
        assert told == "started"

    def line(self) -> list[Any]:
        assert self.process.stdout is not None
        return list(json.loads(self.process.stdout.readline()))

    def has_begun(self) -> bool:
        """Whether a handler has begun since the last line that was read."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> dict[str, int]:
        """Stop it in order; its counts."""
        self.send(signal.SIGTERM)
        while (line := self.line())[0] != "ended":
            pass
        assert self.process.wait(120) == 0
        return dict(line[1])

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def grants(database: Database) -> list[tuple[str, int]]:
    """Each message with an effect under the fence of its last grant, and how many grants it took."""
    found = database.run(
        "SELECT message_id, l.attempts FROM effect e JOIN consumer_log l USING (consumer_group, topic, message_id, fence)"
        " ORDER BY message_id"
    )
    return [(row["message_id"], row["attempts"]) for row in found]
