"""Ordered consumption over a real RocketMQ: the brokers allot the queues, their owners drain them, and the fence decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.protocol import Received
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.brokers.rocketmq.consumer import pull
from backstop.client import OrderedConsumer, Retries, Work
from backstop.leases import parking
from backstop.model.records import Counts, Message
from client_world import Database, consumer, postgres  # noqa: F401
from ordered_world import make_empty, write_effect
from rocketmq_java import JavaPeer
from rocketmq_server import RocketMQ as Server

pytestmark = pytest.mark.other_broker

SOON = timedelta(milliseconds=50)
KEYS = 12
PATIENCE = 90.0
TESTS = Path(__file__).resolve().parents[1]
CHILD = TESTS / "chaos" / "ordered_worker_child.py"
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("rocketmq")) as running:
        yield running


class World:
    def __init__(self, server: Server, database: Database) -> None:
        make_empty(database)
        number = next(_numbers)
        self.server, self.database = server, database
        self.broker = RocketMQ(server.url(), delay_levels=server.settings["messageDelayLevel"])
        self.topic, self.group = (
            f"ordered-{os.getpid()}-{number}",
            f"billing-{os.getpid()}-{number}",
        )
        self.broker.create_topic(self.topic, 4)
        self.broker.create_group(self.group, self.topic, at="start")
        self.published = 0
        self.failing: set[str] = set()

    def publish(self, size: int) -> dict[int, list[str]]:
        """The ids, by the queue that each is in."""
        numbers = range(self.published, self.published + size)
        messages = [
            Message(self.topic, f"k{n % KEYS}-{n:06}", b"{}", partition_key=f"k{n % KEYS}")
            for n in numbers
        ]
        stored: dict[int, list[str]] = {}
        for message, receipt in zip(messages, self.broker.publish(messages), strict=True):
            assert receipt.position, receipt.error
            stored.setdefault(receipt.position.queue_id, []).append(message.message_id)
        self.published += size
        return stored

    def set_back(self) -> None:
        """Sets the group's place to the beginning; its living consumers are told."""
        self.server.ask(
            222, {"topic": self.topic, "group": self.group, "timestamp": 0, "isForce": True}
        )

    @contextmanager
    def child(self, member: str, waits: str, lease: float) -> Iterator[subprocess.Popen[str]]:
        """A consumer in a process of its own, which stands in the handler of `waits` until a line comes."""
        given = {
            "broker": self.server.url(),
            "consumer": self.database.dsn,
            "member": member,
            "waits": waits,
            "topic": self.topic,
            "group": self.group,
            "lease": lease,
            "takes": 0.0,
        }
        process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PYTHONPATH": f"{TESTS / 'support'}:{TESTS.parent / 'include'}",
                "PATH": "/usr/bin:/bin",
            },
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def running(
        self, member: str, takes: float = 0.0
    ) -> Iterator[tuple[OrderedConsumer, Counts, Callable[[], None]]]:
        """A consumer in a thread; the function stops it gracefully."""

        def handle(connection: Any, message: Message, work: Work) -> None:
            time.sleep(takes)
            write_effect(connection, message, member)
            if message.message_id in self.failing:
                raise ValueError("poison")

        subscription = self.broker.subscribe_owned(self.group, [self.topic], member)
        made = OrderedConsumer(
            subscription,
            self.database.connect,
            self.group,
            handle,
            member=member,
            workers=4,
            beat=SOON,
            retry_after=SOON,
            retries=Retries(2, SOON, SOON),
            drain_within=timedelta(seconds=8),
        )
        counts, stop = Counts(), threading.Event()
        thread = threading.Thread(target=lambda: made.run(stop, counts=counts))
        thread.start()

        def end() -> None:
            stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            subscription.close()

        try:
            yield made, counts, end
        finally:
            if thread.is_alive():
                end()
            made.close()

    def owners(self) -> dict[int, str | None]:
        return {
            r["queue_id"]: r["owner"]
            for r in self.database.run("SELECT * FROM queue_owner ORDER BY queue_id")
        }

    def effects(self) -> dict[str, list[str]]:
        rows = self.database.run(
            "SELECT ordering_key, message_id FROM ordered_effect ORDER BY number"
        )
        return {
            key: [r["message_id"] for r in rows if r["ordering_key"] == key]
            for key in {r["ordering_key"] for r in rows}
        }

    def all_passed(self) -> bool:
        return (
            sum(one.next_offset for one in self.broker.progress(self.topic, self.group))
            == self.stored()
            == self.published
        )

    def stored(self) -> int:
        """How many messages the broker has in its queues."""
        return sum(queue.next_offset for queue in self.broker.queues(self.topic))

    def assert_in_order_and_once(self, without: str = "") -> None:
        done = self.effects()
        assert sum(map(len, done.values())) == self.published - len(self.kept(without))
        assert all(ids == sorted(set(ids)) for ids in done.values()), "out of order, or twice"

    def kept(self, key: str) -> list[str]:
        rows = self.database.run(
            "SELECT message_id FROM parked_message WHERE ordering_key = %s ORDER BY number", (key,)
        )
        return [row["message_id"] for row in rows]


@pytest.fixture
def world(server: Server, consumer: Database) -> Iterator[World]:
    made = World(server, consumer)
    yield made
    made.broker.close()


def until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


def test_queues_change_hands_under_traffic_with_nothing_done_twice_and_every_key_in_order(
    world: World,
) -> None:
    """One, then two, then the other alone: each stops gracefully while messages come."""
    stop = threading.Event()

    def traffic() -> None:
        while not stop.wait(0.05):
            world.publish(4)

    sender = threading.Thread(target=traffic)
    with ExitStack() as stack:
        _, first, end_first = stack.enter_context(world.running("one", takes=0.01))
        sender.start()
        try:
            until("all queues", lambda: list(world.owners().values()) == ["one"] * 4)
            _, second, end_second = stack.enter_context(world.running("two", takes=0.01))
            until(
                "its share",
                lambda: sorted(map(str, world.owners().values())) == ["one", "one", "two", "two"],
            )
            end_first()
            until("the rest", lambda: list(world.owners().values()) == ["two"] * 4)
        finally:
            stop.set()
            sender.join()
        until("the end", world.all_passed)
        end_second()
    world.assert_in_order_and_once()
    total = first + second
    assert total["processed"] == world.published
    assert "fenced" not in total and "done" not in total, "a duplicate reached the guard"
    assert set(world.owners().values()) == {None}


def test_a_poison_message_parks_its_key_and_is_released_in_order(world: World) -> None:
    world.publish(4 * KEYS)
    world.failing = {"k3-000003"}
    with world.running("one") as (_, counts, _end):
        until("the end", world.all_passed)
        waiting = [f"k3-{n:06}" for n in range(3, 4 * KEYS, KEYS)]
        assert world.kept("k3") == waiting
        world.failing = set()
        with world.database.connect() as connection:
            parking.answer_retry(connection, world.group, world.topic, "k3", "ann")
        until("the release", lambda: world.kept("k3") == [])
    world.assert_in_order_and_once()
    assert world.effects()["k3"] == waiting
    assert counts["parked_keys"] == 1


@pytest.mark.parametrize("bound", ["MOST_IN_HAND", "MOST_BYTES_IN_HAND"])
def test_what_is_in_hand_of_a_queue_that_stands_still_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A head that fails and fails, in strict order, or a limit of parking: what was pulled behind it stays in hand."""
    monkeypatch.setattr(pull, bound, 40 if bound == "MOST_IN_HAND" else 80)  # two bytes each
    stored = world.publish(600)
    first, *others = sorted(stored, key=lambda queue: -len(stored[queue]))
    with world.broker.subscribe_owned(world.group, [world.topic], "one") as subscription:
        until("its queues", lambda: subscription.queues()[world.topic] == [0, 1, 2, 3])

        def fetch(queue: int) -> list[Received]:
            return subscription.fetch((world.topic, queue), 1, 500) or []

        held: list[Received] = []
        until("a full hand", lambda: held.extend(fetch(first)) or len(held) >= 40)
        assert fetch(first) == [], "above its share, and all together above the bound"
        for queue, found in [*((queue, []) for queue in others), (first, held)]:

            def goes_on(queue: int = queue, found: list[Received] = found) -> bool:
                subscription.acknowledge(found)
                found += fetch(queue)
                return len(found) == len(stored[queue])

            until("the queue's messages", goes_on)
            assert [one.message.message_id for one in found] == stored[queue]


def test_a_message_that_cannot_be_read_is_a_dead_letter_and_its_queue_goes_on(world: World) -> None:
    bad = Message(world.topic, "bad", b"{}", partition_key="\x00")
    assert world.broker.publish([bad])[0].position
    world.publish(8)
    with world.running("one") as (_, counts, _end):
        until("the effects", lambda: sum(map(len, world.effects().values())) == 8)
        until(
            "the dead letter",
            lambda: [d.message_id for d in world.broker.dead_letters(world.group)] == ["bad"],
        )
    assert counts["broken"] == 1


def test_a_consumer_that_ends_at_once_leaves_what_it_had_to_the_next(world: World) -> None:
    """As kill -9: nothing is committed or released; the queue's lease ends, and the guard stops what was done."""
    world.publish(40)
    with world.running("one", takes=0.05) as (dying, _, _end):
        until("work", lambda: world.effects())
        dying._hand_over = lambda counts: None  # type: ignore[method-assign]
    world.database.run("UPDATE queue_owner SET expires_at = clock_timestamp()")
    world.database.run("UPDATE group_member SET expires_at = clock_timestamp()")
    world.database.run(
        "UPDATE consumer_log SET lease_expires_at = clock_timestamp() WHERE state = 'CONSUMING'"
    )
    with world.running("two"):
        until("the end", world.all_passed)
    world.assert_in_order_and_once()


def said(process: subprocess.Popen[str], what: str) -> Any:
    assert process.stdout is not None
    for line in process.stdout:
        found = json.loads(line)
        if found[0] == what:
            return found[-1]
    raise AssertionError(f"the consumer ended before it said {what}")


def test_the_effect_of_an_owner_that_was_frozen_is_refused_after_its_queue_was_taken(
    world: World,
) -> None:
    """The brokers still count it as a member and wait for its word; its row, and then its effect, are lost."""
    stored = world.publish(4 * KEYS)
    waits = next(one[0] for queue, one in sorted(stored.items()) if queue >= 2)  # not its own share
    with world.child("late", waits, lease=2.0) as late:
        said(late, "waits")
        late.send_signal(signal.SIGSTOP)
        with world.running("next") as (_, _counts, _end):
            until("the takeover", lambda: list(world.owners().values())[2:] == ["next", "next"])
            theirs = {one for queue, ids in stored.items() if queue >= 2 for one in ids}
            until(
                "their effects",
                lambda: theirs <= {one for ids in world.effects().values() for one in ids},
            )
            late.send_signal(signal.SIGCONT)
            assert late.stdin is not None
            late.stdin.write("\n")
            late.stdin.flush()
            late.send_signal(signal.SIGTERM)
            counts = said(late, "ended")
            until("the end", world.all_passed)
    assert counts["fenced"] >= 1
    world.assert_in_order_and_once()
    row = world.database.one("SELECT member FROM ordered_effect WHERE message_id = %s", (waits,))
    assert row["member"] == "next"


def test_a_group_whose_place_is_set_back_and_forward_keeps_what_is_parked_and_does_nothing_twice(
    world: World,
) -> None:
    stored = world.publish(4 * KEYS)
    world.failing = {"k3-000003"}
    with world.running("one") as (made, _counts, _end):
        until("the end", world.all_passed)
        waiting = [f"k3-{n:06}" for n in range(3, 4 * KEYS, KEYS)]
        assert world.kept("k3") == waiting
        received = made.books.counts["received"]
        world.set_back()
        until("all again", lambda: made.books.counts["received"] >= received + 4 * KEYS)
        until("the end", world.all_passed)
        assert world.kept("k3") == waiting
        assert made.books.counts["done"] == 4 * KEYS - len(waiting)
    world.assert_in_order_and_once(without="k3")
    world.publish(2 * KEYS)
    skipped = 2 * KEYS
    # The broker has stored them, and counts them in their queues a moment later.
    until("the queues", lambda: world.stored() == world.published)
    for queue in world.broker.queues(world.topic):
        world.server.ask(
            15,
            {
                "consumerGroup": world.group,
                "topic": world.topic,
                "queueId": queue.queue_id,
                "commitOffset": queue.next_offset,
            },
        )
    world.failing = set()
    with world.running("two"):
        with world.database.connect() as connection:
            parking.answer_retry(connection, world.group, world.topic, "k3", "ann")
        connection.close()
        until("the release", lambda: world.kept("k3") == [])
        world.publish(KEYS)
        until("the end", world.all_passed)
    done = world.effects()
    assert sum(map(len, done.values())) == world.published - skipped
    assert all(ids == sorted(set(ids)) for ids in done.values()), "out of order, or twice"
    assert done["k3"][:4] == waiting and len(stored) > 1


def test_a_broker_that_restarts_in_a_handover_leads_to_nothing_lost_or_done_twice(
    world: World,
) -> None:
    world.publish(10 * KEYS)
    with ExitStack() as stack:
        _, _, end_first = stack.enter_context(world.running("one", takes=0.2))
        until("work", world.effects)
        stack.enter_context(world.running("two", takes=0.02))
        until("its share", lambda: "two" in world.owners().values())
        ending = threading.Thread(target=end_first)
        ending.start()
        world.server.kill_broker()
        world.server.start()
        ending.join(PATIENCE)
        assert not ending.is_alive()
        until("the end", world.all_passed)
    world.assert_in_order_and_once()


def test_a_queue_that_the_topic_has_no_more_is_drained_and_its_parked_key_is_released(
    world: World,
) -> None:
    stored = world.publish(4 * KEYS)
    key = next(ids[0].partition("-")[0] for queue, ids in stored.items() if queue == 3)
    mine = [one for one in stored[3] if one.startswith(f"{key}-")]
    world.failing = {mine[0]}
    with world.running("one") as (_, _counts, end):
        until("the end", world.all_passed)
        assert world.kept(key) == mine
        end()
    world.server.create_topic(world.topic, 2)
    world.failing = set()
    with world.database.connect() as connection:
        parking.answer_retry(connection, world.group, world.topic, key, "ann")
    connection.close()
    world.database.run(
        "UPDATE queue_owner SET updated_at = updated_at - interval '1 hour', expires_at = expires_at - interval '1 hour'"
    )
    fresh = RocketMQ(world.server.url(), delay_levels=world.server.settings["messageDelayLevel"])
    world.broker.close()
    world.broker = fresh
    with world.running("two") as (made, _counts, _end):
        made._queues.since = float("-inf")
        until("the release", lambda: world.kept(key) == [])
        until("its queues", lambda: list(world.owners().values()) == ["two", "two", None, None])
    world.assert_in_order_and_once()


def test_beside_a_java_consumer_the_queues_are_shared_and_change_hands_in_rocketmqs_own_way(
    world: World, server: Server, tmp_path: Path
) -> None:
    with JavaPeer(server, tmp_path / "java") as java, world.running("one"):
        until("all queues", lambda: list(world.owners().values()) == ["one"] * 4)
        beside = java.consume(world.group, world.topic)
        until("half of them", lambda: list(world.owners().values()).count("one") == 2)
        world.publish(4 * KEYS)
        until("the end", world.all_passed)
        theirs = {one.keys for one in beside.done}
        assert 0 < len(beside.done) < 4 * KEYS and len(theirs) == len(beside.done)
        assert len(beside.done) + sum(map(len, world.effects().values())) == 4 * KEYS
        beside.close()
        until("all queues again", lambda: list(world.owners().values()) == ["one"] * 4)
        world.publish(2 * KEYS)
        until("the end", world.all_passed)
    done = world.effects()
    assert sum(map(len, done.values())) == 6 * KEYS - len(beside.done)
    assert all(ids == sorted(set(ids)) for ids in done.values()), "out of order, or twice"
