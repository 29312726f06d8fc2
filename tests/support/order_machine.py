"""Ordered consumers as a state machine: every step is the shipped code's own, a model says which effects there may be.

Handlers run when the machine says so, one at a time. Leases and queues end because their end is moved. A worker that is
not told that its queue was taken goes on as one that stood still and woke up.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import OrderedConsumer, Retries, Work
from backstop.client.blame import Blame
from backstop.client.keep_connection import KeptConnection
from backstop.leases import parking
from backstop.leases.lease import Acquired
from backstop.leases.queue_owner import OwnedQueue
from backstop.model.errors import DecisionRefused
from backstop.model.records import Counts, Message
from client_world import Database

AT_ONCE, HOURS = timedelta(microseconds=1), timedelta(hours=1)
WORKERS, KEYS, QUEUES = 3, ("a", "b", "c"), 2
EFFECT = (
    "CREATE TABLE IF NOT EXISTS machine_effect (number bigint GENERATED ALWAYS AS IDENTITY, topic text, ordering_key text,"
    " message_id text); CREATE INDEX IF NOT EXISTS machine_effect_of ON machine_effect (topic)"
)


class Reused(Connection):
    """Outlives the worker that used it: to close it is to roll back, as the server does for one that died."""

    after_lock: Callable[[], None] | None = None

    def close(self) -> None:
        self.rollback()


class Watched(Cursor):
    """Stops after the question which keys are parked, so that others can go on meanwhile."""

    def execute(self, query: Any, values: Any = None) -> None:
        super().execute(query, values)
        hook = self.connection.after_lock  # type: ignore[attr-defined]
        if hook is not None and query == parking._SQL["lock_keys"]:
            self.connection.after_lock = None  # type: ignore[attr-defined]
            hook()


class ByHand:
    """A pool whose tasks run when the machine says so."""

    def __init__(self, connect: Any) -> None:
        self.tasks: list[Any] = []
        self.store = KeptConnection(connect, "consumer database")

    def submit(self, task: Any) -> None:
        self.tasks.append(task)

    def close(self) -> None:
        self.store.close()


class NoKeeper:
    """Leases are long: nobody renews them."""

    def hold(self, leases: Any) -> dict[Acquired, threading.Event]:
        return {lease: threading.Event() for lease in leases}

    def release(self, lease: Acquired) -> None:
        """Nothing to renew."""

    def close(self) -> None:
        """Nothing was opened."""


@dataclass
class Stage:
    """The servers, and connections that outlive an example."""

    database: Database
    broker: RedisStreams
    examples: Any = field(default_factory=count)
    connections: dict[str, Any] = field(default_factory=dict)

    def connect(self, name: str) -> Any:
        if name not in self.connections:
            self.connections[name] = self.database.connect(
                connection_factory=Reused, cursor_factory=Watched
            )
        return self.connections[name]

    def close(self) -> None:
        for connection in self.connections.values():
            Connection.close(connection)


class Worker:
    """One process of the group."""

    def __init__(self, machine: OrderMachine, slot: int, member: str) -> None:
        stage = machine.stage
        self.main = lambda: stage.connect(f"main-{slot}")
        self.consumer = OrderedConsumer(
            stage.broker.subscribe_owned(machine.group, [machine.topic], member),
            self.main,
            machine.group,
            machine.handle,
            member=member,
            workers=2,
            lease=HOURS,
            queue_lease=HOURS,
            beat=AT_ONCE,
            retry_after=AT_ONCE,
            retries=Retries(2, AT_ONCE, AT_ONCE),
            blame=Blame(many=100),
        )
        self.pool = self.consumer._pool = ByHand(lambda: stage.connect(f"pool-{slot}"))  # type: ignore[assignment]
        self.consumer._leases = NoKeeper()  # type: ignore[assignment]
        self.consumer._queues.since = float("-inf")

    def step(self, knows: bool = True) -> None:
        """One round; without `knows` it has not heard since whether its queues are its own."""
        self.consumer._keeper._beat_at = float("-inf") if knows else float("inf")
        self.consumer._looked_at = float("-inf")
        self.consumer.step(Counts())
        assert self.consumer.books.difference(self.consumer.in_process()) == 0, (
            self.consumer.books.counts
        )

    def heads(self) -> list[tuple[OwnedQueue, str, bool]]:
        """Of each task: the queue, the key, whether it releases."""
        lanes = [task.__closure__ for task in self.pool.tasks]
        found = [
            next(c.cell_contents for c in cells if hasattr(c.cell_contents, "releases"))
            for cells in lanes
        ]
        return [(lane.queue, lane.key, lane.releases) for lane in found]

    def run(self, which: int) -> None:
        self.pool.tasks.pop(which)(self.pool.store)


class OrderMachine(RuleBasedStateMachine):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        number = next(stage.examples)
        self.stage, self.topic, self.group = stage, f"topic-{number}", f"group-{number}"
        stage.broker.create_topic(self.topic, QUEUES)
        stage.broker.create_group(self.group, self.topic, "start")
        self.published: dict[str, list[str]] = {key: [] for key in KEYS}
        self.discarded: set[str] = set()
        self.failing: set[str] = set()
        self.lives = count()
        self.workers: list[Worker | None] = [None] * WORKERS
        self.queues = QUEUES

    def handle(self, connection: Any, message: Message, work: Work) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO machine_effect (topic, ordering_key, message_id) VALUES (%s, %s, %s)",
                (message.topic, message.partition_key, message.message_id),
            )
        if message.message_id in self.failing:
            raise ValueError("poison")

    # What producers and people do

    @rule(
        key=st.sampled_from(KEYS),
        size=st.integers(1, 3),
        poison=st.sampled_from([None, None, 0, 1]),
    )
    def publish(self, key: str, size: int, poison: int | None) -> None:
        mine = self.published[key]
        new = [f"{key}-{len(mine) + n}" for n in range(size)]
        self.failing |= {new[poison]} if poison is not None and poison < size else set()
        mine += new
        self.stage.broker.publish([Message(self.topic, i, b"{}", partition_key=key) for i in new])

    @rule(
        key=st.sampled_from(KEYS),
        what=st.sampled_from(["heal", "heal", "retry", "discard head", "discard key"]),
    )
    def answer(self, key: str, what: str) -> None:
        """A person answers, if the key is parked; `heal`: after the cause was repaired. What is being released may be discarded."""
        is_releasing = (self.group, self.topic, key) in self._keys("RELEASING")
        if (self.group, self.topic, key) not in self._keys("PARKED") and not (
            is_releasing and what.startswith("discard")
        ):
            return
        if what == "heal":
            self.failing -= set(self.published[key])
        connection = self.stage.connect("person")
        if what in ("heal", "retry"):
            parking.answer_retry(connection, self.group, self.topic, key, "ann")
        else:
            whole = what == "discard key"
            try:
                given_up = parking.answer_discard(
                    connection, self.group, self.topic, key, "ann", whole_key=whole
                )
            except DecisionRefused:
                assert is_releasing
                connection.rollback()
                return
            self.discarded |= set(given_up)
        connection.commit()

    # What workers do

    @rule(slot=st.integers(0, WORKERS - 1), knows=st.booleans())
    def step(self, slot: int, knows: bool) -> None:
        """A round of a worker, which is started if the slot is empty."""
        worker = self.workers[slot]
        if worker is None:
            worker = self.workers[slot] = Worker(self, slot, f"w{slot}-{next(self.lives) % 2}")
        before = len(worker.pool.tasks)
        worker.step(knows)
        fences = self._fences()
        for queue, _, _ in worker.heads()[before:]:
            assert fences[queue.queue_id] == queue.fence, (
                "a worker that lost its queue began a message"
            )

    @rule(slot=st.integers(0, WORKERS - 1), which=st.integers(0, 3))
    def work(self, slot: int, which: int) -> None:
        """A handler that was entered goes on: in time, or after its queue was taken or its lease was over."""
        worker = self.workers[slot]
        if worker is None or not worker.pool.tasks:
            return
        which %= len(worker.pool.tasks)
        queue, key, _ = worker.heads()[which]
        lost, before = self._fences()[queue.queue_id] != queue.fence, len(self._effects()[key])
        worker.run(which)
        assert not lost or len(self._effects()[key]) == before, (
            "a worker that lost its queue had an effect"
        )

    @rule(slot=st.integers(0, WORKERS - 1), rounds=st.integers(1, 4))
    def go_on(self, slot: int, rounds: int) -> None:
        """Rounds without trouble."""
        for _ in range(rounds):
            self.step(slot, True)
            while self.workers[slot].pool.tasks:  # type: ignore[union-attr]
                self.work(slot, 0)

    @precondition(lambda self: any(worker and worker.pool.tasks for worker in self.workers))
    @rule(other=st.integers(1, WORKERS - 1), leases_too=st.booleans(), begins=st.booleans())
    def stand_still(self, other: int, leases_too: bool, begins: bool) -> None:
        """A worker stands still in its handler for longer than its queues are its own, another takes them, and it wakes up."""
        slot = next(
            slot for slot, worker in enumerate(self.workers) if worker and worker.pool.tasks
        )
        self.expire(slot, leases_too)
        self.step((slot + other) % WORKERS, True)
        if begins:
            self.step(slot, False)
        self.work(slot, 0)

    @rule(key=st.sampled_from(KEYS))
    def meet(self, key: str) -> None:
        """A follower arrives, and before it is known whether its key is parked, the last of the key is released."""
        place = self._last_released(key)
        if place is None:
            return
        slot, which = place
        worker = self.workers[slot]
        assert worker is not None
        self.publish(key, 1, None)
        thread = threading.Thread(target=self.work, args=(slot, which))
        pool = self.stage.connect(f"pool-{slot}")

        def release() -> None:
            thread.start()
            while thread.is_alive() and not self._waits(pool.info.backend_pid):
                time.sleep(0.001)

        worker.main().after_lock = release
        try:
            worker.step(knows=False)
        finally:
            worker.main().after_lock = None
            if thread.ident:
                thread.join(120)
                assert not thread.is_alive()

    def _last_released(self, key: str) -> tuple[int, int] | None:
        """Parks the key, answers, and goes on until its last message is in a handler: the worker and the task."""
        if not any(self.workers):
            self.step(0, True)
        slots = [slot for slot, worker in enumerate(self.workers) if worker]
        self.publish(key, 1, 0)
        for _ in range(4):
            for slot in slots:
                self.go_on(slot, 1)
        self.answer(key, "heal")
        for _ in range(20):
            for slot in slots:
                self.step(slot, True)
                for which, (_, of_key, releases) in enumerate(self.workers[slot].heads()):  # type: ignore[union-attr]
                    if releases and of_key == key:
                        if self._kept(key) == 1:
                            return slot, which
                        self.work(slot, which)
                        break
        return None

    # What happens to them

    @rule(slot=st.integers(0, WORKERS - 1))
    def die(self, slot: int) -> None:
        """kill -9: what was in its handlers is rolled back."""
        if self.workers[slot] is not None:
            for name in (f"main-{slot}", f"pool-{slot}"):
                self.stage.connect(name).rollback()
        self.workers[slot] = None

    @rule(slot=st.integers(0, WORKERS - 1))
    def stop(self, slot: int) -> None:
        """A graceful stop."""
        worker = self.workers[slot]
        if worker is None:
            return
        while worker.pool.tasks:
            self.work(slot, 0)
        worker.consumer._hand_over(Counts())
        worker.consumer.close()
        self.workers[slot] = None

    @rule(slot=st.integers(0, WORKERS - 1), leases_too=st.booleans())
    def expire(self, slot: int, leases_too: bool) -> None:
        """A worker stood still for longer than its queues are its own; or also longer than its messages' leases."""
        member = f"w{slot}-%"
        past = "SET expires_at = clock_timestamp() - interval '1 second' WHERE consumer_group = %s"
        run = self.stage.database.run
        run(f"UPDATE queue_owner {past} AND owner LIKE %s", (self.group, member))
        run(f"UPDATE group_member {past} AND member LIKE %s", (self.group, member))
        if leases_too:
            self._expire_leases()

    @precondition(lambda self: self.queues == QUEUES)
    @rule()
    def lose_a_queue(self) -> None:
        """The topic has one queue less: nothing waits in it but what is parked."""
        last = QUEUES - 1
        if self.stage.broker.lag(self.topic, self.group)[last]:
            return
        self.queues = last
        broker = self.stage.broker
        broker._asking.ask(
            [("HSET", broker._keys.topic(self.topic), "queues", last)], "losing a queue"
        )
        broker._publisher.forget(self.topic)
        for worker in self.workers:
            if worker is not None:
                worker.consumer._keeper._subscription._read_queues_at = float("-inf")  # type: ignore[attr-defined]

    @rule()
    def pass_time(self) -> None:
        """Longer than a lease: queues that nobody owns are wanted by nobody."""
        self.stage.database.run(
            "UPDATE queue_owner SET updated_at = updated_at - interval '1 day', expires_at = expires_at - interval '1 day'"
            " WHERE consumer_group = %s AND (state = 'FREE' OR expires_at <= clock_timestamp())",
            (self.group,),
        )

    # What must hold at every moment

    @invariant()
    def effects_are_in_order_and_once(self) -> None:
        effects = self._effects()
        for key, mine in self.published.items():
            expected = [i for i in mine if i not in self.discarded]
            assert effects[key] == expected[: len(effects[key])], (
                f"{key}: {effects[key]} of {expected}"
            )

    def teardown(self) -> None:
        """All die, the causes are repaired, and people answer: a fresh worker does everything, in order."""
        try:
            if sys.exc_info()[0] is None:
                self._end_well()
        finally:
            for connection in self.stage.connections.values():
                connection.rollback()
            self.stage.broker.delete_topic(self.topic)

    def _end_well(self) -> None:
        self.failing = set()
        for slot in range(WORKERS):
            self.die(slot)
            self.expire(slot, True)
        for _ in range(200):
            self.go_on(0, 1)
            self._expire_leases()
            self.pass_time()
            for key in KEYS:
                self.answer(key, "retry")
            self.effects_are_in_order_and_once()
            lag = sum(self.stage.broker.lag(self.topic, self.group).values())
            if not lag and not self._keys("PARKED") and not self._keys("RELEASING"):
                break
        expected = {
            key: [i for i in mine if i not in self.discarded]
            for key, mine in self.published.items()
        }
        assert self._effects() == expected, "something is lost"
        assert not lag, "something is stuck"

    # How

    def _effects(self) -> dict[str, list[str]]:
        rows = self.stage.database.run(
            "SELECT * FROM machine_effect WHERE topic = %s ORDER BY number", (self.topic,)
        )
        return {key: [r["message_id"] for r in rows if r["ordering_key"] == key] for key in KEYS}

    def _fences(self) -> dict[int, int]:
        rows = self.stage.database.run(
            "SELECT queue_id, fence FROM queue_owner WHERE consumer_group = %s", (self.group,)
        )
        return {row["queue_id"]: row["fence"] for row in rows}

    def _keys(self, state: str) -> list[tuple[str, str, str]]:
        rows = self.stage.database.run(
            "SELECT consumer_group, topic, ordering_key FROM parked_key WHERE consumer_group = %s AND state = %s",
            (self.group, state),
        )
        return [tuple(row.values()) for row in rows]

    def _kept(self, key: str) -> int:
        found = self.stage.database.run(
            "SELECT messages FROM parked_key WHERE consumer_group = %s AND ordering_key = %s",
            (self.group, key),
        )
        return int(found[0]["messages"]) if found else 0

    def _waits(self, pid: int) -> bool:
        found = self.stage.connect("watch")
        with found.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (pid,)
            )
            waits = bool(cursor.fetchall())
        found.rollback()
        return waits

    def _expire_leases(self) -> None:
        self.stage.database.run(
            "UPDATE consumer_log SET lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE consumer_group = %s AND state = 'CONSUMING'",
            (self.group,),
        )
