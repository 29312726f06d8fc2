"""A small system whose broker is ActiveMQ Classic: a producer's and a consumer's database, control, and one group."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
from psycopg2.extras import Json

from activemq import PASSWORD, compile_java, java
from activemq import ActiveMQ as Server
from backstop.brokers.activemq import ActiveMQ, Names
from backstop.brokers.open import open_broker
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.records import Counts, Key, Message, Outcome
from backstop_lab.servers.postgres import Postgres
from system import fresh_databases, settings_dict

TOPIC, GROUP = "orders", "billing"
WAIT_SECONDS = 240.0


def until(what: str, holds: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Waits for a condition; returns what it said."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:.0f} s"
        time.sleep(0.02)
    return found


@dataclass
class World:
    """Addresses of everything, and the few hands a test needs."""

    server: Server
    urls: dict[str, str]
    settings: Settings
    connections: Connections
    broker: ActiveMQ

    @property
    def queue(self) -> str:
        return Names().queue(TOPIC, GROUP)

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        """One committed statement."""
        connection = psycopg2.connect(self.urls[database])
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query, values)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def promise(self, message_id: str) -> Key:
        """A stub that was never sent, written long enough ago to be judged."""
        self.rows(
            "shop_a",
            "INSERT INTO message_stub (topic, message_id, content, headers, send_count, created_at, first_seen_at, next_check_at)"
            " VALUES (%s, %s, %s, %s, 0, now() - interval '1 minute', now() - interval '30 seconds', now() - interval '1 s')",
            TOPIC,
            message_id,
            b"{}",
            Json({}),
        )
        return Key(TOPIC, message_id)

    def send(self, message_id: str, **headers: str) -> Key:
        """A stub whose message really went to the broker now, as its application sends it."""
        key = self.promise(message_id)
        self.rows(
            "shop_a",
            "UPDATE message_stub SET send_count = 1, attempted_at = clock_timestamp(), attempt_deadline = clock_timestamp()"
            " WHERE message_id = %s",
            message_id,
        )
        [receipt] = self.broker.publish([Message(TOPIC, message_id, b"{}", headers)])
        assert receipt.outcome is Outcome.SENT, receipt
        self.rows(
            "shop_a",
            "UPDATE message_stub SET sent_at = clock_timestamp() WHERE message_id = %s",
            message_id,
        )
        self.rows(
            "shop_a",
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
            " SELECT topic, message_id, 1, 'producer', attempted_at, 'sent' FROM message_stub WHERE message_id = %s",
            message_id,
        )
        return key

    def due(self) -> None:
        """Every pending stub is due, and its newest send is over: waited for, because both clocks are real."""
        until(
            "the end of max_send_duration",
            lambda: self.rows(
                "shop_a",
                "SELECT coalesce(max(attempted_at) + interval '3.2 seconds' < clock_timestamp(), true) FROM message_stub",
            )[0][0],
        )
        self.rows(
            "shop_a",
            "UPDATE message_stub SET next_check_at = now() - interval '1 s' WHERE status = 'pending'",
        )

    def verdicts(self) -> dict[str, str]:
        rows = self.rows("control", "SELECT message_id, verdict FROM verdict ORDER BY run_id")
        return dict(rows)

    def log(self, message_id: str) -> tuple[str, int] | None:
        """(state, attempts) of the group's log row."""
        found = self.rows(
            "billing_db",
            "SELECT state, attempts FROM consumer_log WHERE message_id = %s",
            message_id,
        )
        return found[0] if found else None

    def dead(self) -> list[str]:
        """Ids in the group's dead-letter queue."""
        return sorted(str(letter.message_id) for letter in self.broker.dead_letters(GROUP))

    def depth(self, queue: str | None = None) -> int:
        found = self.server.jolokia().queues().get(queue or self.queue)
        return int(found["QueueSize"]) if found else 0

    def consume(self) -> list[str]:
        """The group receives, logs as done and acknowledges all there is."""
        ids: list[str] = []
        with self.broker.subscribe(GROUP, [TOPIC], "test") as subscription:
            while self.depth() and (received := subscription.fetch(100, timedelta(seconds=30))):
                for one in received:
                    self.rows(
                        "billing_db",
                        "INSERT INTO consumer_log (consumer_group, topic, message_id, state, lease_expires_at, consumed_at)"
                        " VALUES (%s, %s, %s, 'CONSUMED', now(), now())"
                        " ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET state = 'CONSUMED', consumed_at = now(),"
                        " lease_expires_at = now(), updated_at = now()",
                        GROUP,
                        one.message.topic,
                        one.message.message_id,
                    )
                    ids.append(one.message.message_id)
                subscription.acknowledge(received)
        return ids


@contextmanager
def world_of(postgres: Postgres, server: Server) -> Iterator[World]:
    """A fresh system on a server that other tests use too: queues and databases are empty."""
    with (
        fresh_databases(postgres, ("control", "shop_a", "billing_db")) as urls,
        _world_of({"broker": server.url(), **urls}, server) as made,
    ):
        yield made


@contextmanager
def _world_of(urls: dict[str, str], server: Server) -> Iterator[World]:
    settings = Settings.model_validate(
        settings_dict(
            brokers={
                "amq": {
                    "kind": "activemq",
                    "connection": "broker",
                    "retry_schedule": "10s",
                    "options": {"delivery_limit": 5},
                }
            },
            producers={"shop_a": {"connection": "shop_a"}},
            consumers={"billing_db": {"connection": "billing_db"}},
            groups={
                GROUP: {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"}
            },
            topics={TOPIC: {"broker": "amq", "groups": [GROUP], "mode": "repair"}},
            policy={
                "max_send_duration": "3s",
                "first_check": "4s",
            },
        )
    )
    connections = Connections(resolver=urls.get)
    broker = open_broker(settings, connections, "amq")
    assert isinstance(broker, ActiveMQ)
    beans = server.jolokia()
    for queue in beans.queues():
        beans.run(beans.bean(), "removeQueue(java.lang.String)", queue)
    broker.create_topic(TOPIC)
    broker.create_group(GROUP, TOPIC)
    try:
        yield World(server, urls, settings, connections, broker)
    finally:
        broker.close()


class Listener:
    """The Java consumer of tests/java/BusyListener.java as a process of ours."""

    def __init__(self, world: World, classes: Path, port: int, *, redeliveries: int = 6) -> None:
        log = urlsplit(world.urls["billing_db"])
        path = compile_java(Path(__file__).parents[1] / "java" / "BusyListener.java", classes)
        broker = f"failover:(tcp://127.0.0.1:{port}?soTimeout=0)?initialReconnectDelay=50&useExponentialBackOff=false"
        self.said: list[str] = []
        errors = os.open(classes / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = subprocess.Popen(
            [
                str(java()),
                "-Xmx128M",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                f"-Dredeliveries={redeliveries}",
                "-cp",
                path,
                "BusyListener",
                broker,
                world.queue,
                GROUP,
                TOPIC,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                **os.environ,
                "BROKER_USER": "backstop",
                "BROKER_PASSWORD": PASSWORD,
                "LOG_JDBC": f"jdbc:postgresql://{log.hostname}:{log.port}{log.path}",
                "LOG_USER": log.username or "",
                "LOG_PASSWORD": log.password or "",
            },
        )
        os.close(errors)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.hears("listening")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):  # the others are the client library's log
                self.said.append(line[2:].rstrip("\n"))

    def hears(self, line: str, times: int = 1) -> None:
        """It has said this so many times."""

        def said() -> bool:
            assert self._process.poll() is None, "the Java listener ended; see its stderr"
            return self.said.count(line) >= times

        until(f"{line!r} of the Java listener (it said {self.said})", said)

    def end(self, how: str, message_id: str) -> None:
        """Its work on this message ends: `done`, `fail`, or `abandon`, without a word in the log."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{how} {message_id}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(5)


def triage(world: World) -> Counts:
    from backstop.triage.run_once import run_duty

    return run_duty(world.settings, world.connections)


def resend(world: World) -> Counts:
    from backstop.resend.run_once import run_duty

    return run_duty(world.settings, world.connections)
