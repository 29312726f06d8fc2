"""A producer or a consumer that kills itself at one commit boundary: a process of the kill tests, not a test.

Arguments: the role, the boundary, then JSON with the addresses. The wrappers here stand at the boundaries;
nothing in the client knows of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg2
import pymysql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from backstop.client import Consumer, Work, record, send
from backstop.model.records import Message
from backstop.sql import prepared
from client_world import GROUP, TOPIC, open_broker
from mariadb import connect_to

BOUNDARY = sys.argv[2]


def die(boundary: str) -> None:
    if boundary == BOUNDARY:
        os.kill(os.getpid(), signal.SIGKILL)


def is_counted() -> bool:
    """Whether a transaction here is one of the named ones. A renewal of the lease, in its own thread, is due whenever a third of
    the lease has passed: on a machine that stood still, before the one that would be named next."""
    return threading.current_thread() is threading.main_thread()


class DyingCursor(Cursor):
    """The same for a statement that the server commits by itself. Preparing one writes nothing."""

    def execute(self, *given: Any) -> None:
        is_ours = not given[0].startswith(("PREPARE ", "SELECT pg_backend_pid()"))
        if not self.connection.autocommit or not is_ours or not is_counted():
            super().execute(*given)
            return
        name = Dying.name()
        die(f"before the commit of {name}")
        super().execute(*given)
        die(f"after the commit of {name}")


class Dying(Connection):
    """Kills its process before or after its commit; `name` tells which transaction that is."""

    name: Callable[[], str] = staticmethod(lambda: "")

    def cursor(self, *given: Any, **named: Any) -> Any:
        return super().cursor(*given, cursor_factory=DyingCursor, **named)

    def commit(self) -> None:
        if self.autocommit or not is_counted():
            super().commit()
            return
        name = Dying.name()
        die(f"before the commit of {name}")
        super().commit()
        die(f"after the commit of {name}")


class DyingMaria(pymysql.connections.Connection):  # type: ignore[misc]
    """The same in MariaDB."""

    def commit(self) -> None:
        if not is_counted():
            super().commit()
            return
        name = Dying.name()
        die(f"before the commit of {name}")
        super().commit()
        die(f"after the commit of {name}")


class Around:
    """Kills the process before or after the named calls of what it wraps."""

    def __init__(self, inner: Any, *names: str) -> None:
        self._inner, self._names = inner, names

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._inner, name)
        if name not in self._names:
            return called

        def around(*given: Any, **named: Any) -> Any:
            die(f"before {name}")
            answer = called(*given, **named)
            die(f"after {name}")
            return answer

        return around


def in_turn(*names: str) -> Callable[[], str]:
    """The transactions of this process in their order; the last one's name stays."""
    left = list(names)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def produce(places: dict[str, str]) -> None:
    Dying.name = staticmethod(in_turn("record", "look", "settle"))

    def connect() -> Any:
        return dying(places["producer"])

    with open_broker(places["broker"]) as broker:
        connection = connect()
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO business_order VALUES (%s)", (places["id"],))
        recorded = record(connection, TOPIC, b"{}", message_id=places["id"])
        connection.commit()
        send(recorded, Around(broker, "publish"), connect)


def dying(url: str) -> Any:
    if url.startswith("mysql"):
        return connect_to(url, DyingMaria)
    return psycopg2.connect(url, connection_factory=Dying)


def consume(places: dict[str, str]) -> None:
    # Where consumers can work in order, the database is first asked whether they do.
    first = [] if places["consumer"].startswith("mysql") else ["members"]
    Dying.name = staticmethod(in_turn(*first, "peers", "begin", "complete"))

    def handler(connection: Any, message: Message, work: Work) -> None:
        die("in the handler")
        with connection.cursor() as cursor:
            values = (message.topic, message.message_id, GROUP, work.fence)
            cursor.execute("INSERT INTO effect VALUES (%s, %s, %s, %s)", values)

    with open_broker(places["broker"]) as broker:
        consumer = Consumer(
            Around(broker.subscribe(GROUP, [TOPIC], "doomed"), "fetch", "acknowledge"),
            lambda: dying(places["consumer"]),
            GROUP,
            handler,
            wait=timedelta(seconds=60),
        )
        consumer.run_once()


if __name__ == "__main__":
    given: dict[str, str] = json.loads(sys.argv[3])
    if "prepares" in given:
        prepared.USES = 0
    {"produce": produce, "consume": consume}[sys.argv[1]](given)
