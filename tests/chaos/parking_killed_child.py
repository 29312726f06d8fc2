"""An ordered consumer that parks, is answered, releases and hands over, and kills itself at one boundary on the way.

Arguments: the boundary, then JSON with the addresses. A transaction is named by what ran in it. The wrappers here stand at the
boundaries; nothing in the client knows of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from backstop.client import OrderedConsumer, Retries, Work
from backstop.client.blame import Blame
from backstop.leases import parking, postgresql, queue_owner
from backstop.model.records import Counts, Message
from backstop.sql.run import of_one
from client_world import GROUP, TOPIC, open_broker
from ordered_world import write_effect

BOUNDARY = sys.argv[1]
SOON, LONG = timedelta(milliseconds=5), timedelta(minutes=5)
NAMES = {
    executed: name
    for module in (parking, queue_owner, postgresql)
    for name, text in module._SQL.items()
    for executed in (text, of_one(text)[0])
}


def die(boundary: str) -> None:
    if boundary == BOUNDARY:
        os.kill(os.getpid(), signal.SIGKILL)


class Named(Cursor):
    """Remembers what ran since the last commit."""

    def execute(self, query: Any, values: Any = None) -> None:
        super().execute(query, values)
        self.connection.ran.add(NAMES.get(query, ""))  # type: ignore[attr-defined]


class Dying(Connection):
    """Kills its process before or after the commit of the transaction of that name."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.ran: set[str] = set()

    def commit(self) -> None:
        ran, self.ran = self.ran, set()
        for name in ran:
            die(f"before the commit of {name}")
        super().commit()
        for name in ran:
            die(f"after the commit of {name}")


class Around:
    """Kills the process before or after an acknowledgement."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def acknowledge(self, received: Any) -> None:
        die("before the acknowledgement")
        self._inner.acknowledge(received)
        die("after the acknowledgement")


def main(places: dict[str, str]) -> None:
    answered = threading.Event()

    def handle(connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "child")
        if message.message_id == "a-000" and not answered.is_set():
            raise ValueError("poison")
        if message.message_id == "c-000":
            time.sleep(0.2)  # in its handler while the queues are handed over

    def connect() -> Connection:
        return psycopg2.connect(places["consumer"], connection_factory=Dying, cursor_factory=Named)

    with open_broker(places["broker"]) as broker:
        consumer = OrderedConsumer(
            Around(broker.subscribe_owned(GROUP, [TOPIC], "child")),
            connect,
            GROUP,
            handle,
            member="child",
            workers=2,
            lease=LONG,
            queue_lease=LONG,
            beat=SOON,
            retry_after=SOON,
            retries=Retries(2, SOON, SOON),
            blame=Blame(many=100),
        )

        def work(until: Callable[[], Any]) -> None:
            while not until():
                consumer._looked_at = float("-inf")
                consumer.step(Counts())
                consumer._wait_for_result(0.002)

        def parked() -> list[Any]:
            with psycopg2.connect(places["consumer"]) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT messages FROM parked_key")
                return cursor.fetchall()

        work(lambda: sum(broker.lag(TOPIC, GROUP).values()) == 0 and parked())
        answered.set()
        with psycopg2.connect(places["consumer"]) as connection:
            parking.answer_retry(connection, GROUP, TOPIC, "a", "ann")
        work(lambda: not parked())
        broker.publish([Message(TOPIC, i, b"{}", partition_key="c") for i in ("c-000", "c-001")])
        work(lambda: consumer._in_pool)
        stopped = threading.Event()
        stopped.set()
        consumer.run(stopped)
        consumer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[2]))
