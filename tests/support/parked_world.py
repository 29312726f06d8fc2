"""An ordered consumer beside the whole small system of control_world: what it parks becomes cases, and answers release it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg2

from backstop.brokers.open import open_broker
from backstop.client import Limits, OrderedConsumer, Retries, Work
from backstop.client.blame import Blame
from backstop.decisions.decide import Decided, decide
from backstop.model.records import Counts, Message
from backstop.watch.run_once import run_once
from control_world import World
from ordered_world import ORDERED_EFFECT, write_effect

SOON = timedelta(milliseconds=20)
TOPIC, GROUP, DATABASE = "orders", "billing", "consumer_billing"


class ParkedWorld:
    def __init__(self, world: World) -> None:
        self.world = world
        self.failing: set[str] = set()
        self.error: Exception | None = None
        """What the failing ones raise; null: a ValueError."""
        world.run(DATABASE, ORDERED_EFFECT)
        world.run(DATABASE, "TRUNCATE ordered_effect")

    def publish(self, *ids: str) -> None:
        """`key-number`: the key is what stands before the last hyphen."""
        with open_broker(self.world.settings, self.world.connections, "embedded") as broker:
            broker.publish(
                [Message(TOPIC, i, b"{}", partition_key=i.rpartition("-")[0]) for i in ids]
            )

    def handle(self, connection: Any, message: Message, work: Work) -> None:
        write_effect(connection, message, "w1")
        if message.message_id in self.failing or "*" in self.failing:
            raise self.error or ValueError(f"cannot read {message.content!r}")

    @contextmanager
    def worker(
        self, limits: Limits | None = None, blame: Blame | None = None
    ) -> Iterator[OrderedConsumer]:
        dsn = self.world.postgres.admin_dsn(DATABASE)
        with open_broker(self.world.settings, self.world.connections, "embedded") as broker:
            subscription = broker.subscribe_owned(GROUP, [TOPIC], "w1")  # type: ignore[attr-defined]
            consumer = OrderedConsumer(
                subscription,
                lambda: psycopg2.connect(dsn),
                GROUP,
                self.handle,
                member="w1",
                workers=2,
                beat=SOON,
                retry_after=SOON,
                retries=Retries(2, SOON, SOON),
                limits=limits,
                blame=blame or Blame(many=100),
            )
            try:
                yield consumer
            finally:
                consumer.close()
                subscription.close()

    def work(self, until: Callable[[], Any], consumer: OrderedConsumer | None = None) -> None:
        """Rounds of a worker until the condition holds."""
        if consumer is None:
            with self.worker() as own:
                return self.work(until, own)
        deadline = time.monotonic() + 240
        while not until():
            assert time.monotonic() < deadline, f"not reached: {self.parked()}, {self.effects()}"
            consumer._looked_at = float("-inf")
            consumer.step(Counts())
            consumer._wait_for_result(0.002)
        return None

    def park(self, *ids: str, failing: str) -> int:
        """Publishes, works until the key of `failing` is parked with all that follows it, watches; the case."""
        self.failing = {failing}
        self.publish(*ids)
        key = failing.rpartition("-")[0]
        waiting = [i for i in ids if i.startswith(f"{key}-") and i >= failing]
        self.work(lambda: self.parked().get(key) == waiting)
        self.watch()
        ((case_id,),) = self.world.control(
            "SELECT case_id FROM case_file WHERE subject = %s AND state = 'open'", (key,)
        )
        return int(case_id)

    def watch(self) -> Counts:
        return run_once(self.world.settings, self.world.connections).counts

    def answer(
        self, case_id: int, action: str, why: str = "because", who: str = "ann", **options: Any
    ) -> Decided:
        return decide(
            self.world.conn,
            self.world.settings,
            self.world.connections,
            case_id,
            action,
            who,
            why,
            options,
        )

    def parked(self) -> dict[str, list[str]]:
        rows = self.world.run(
            DATABASE,
            "SELECT k.ordering_key, array_agg(m.message_id ORDER BY m.number) FROM parked_key k"
            " JOIN parked_message m USING (consumer_group, topic, ordering_key) GROUP BY 1",
        )
        return dict(rows)

    def lag(self) -> int:
        with open_broker(self.world.settings, self.world.connections, "embedded") as broker:
            return sum(broker.lag(TOPIC, GROUP).values())  # type: ignore[attr-defined]

    def effects(self) -> list[str]:
        return [
            i
            for (i,) in self.world.run(
                DATABASE, "SELECT message_id FROM ordered_effect ORDER BY number"
            )
        ]

    def cases(self) -> list[tuple[str, str, str]]:
        rows = self.world.control("SELECT kind, subject, state FROM case_file ORDER BY case_id")
        return [(str(kind), str(subject), str(state)) for kind, subject, state in rows]
