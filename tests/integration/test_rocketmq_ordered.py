"""Ordered consumption over a real RocketMQ: the brokers allot the queues, their owners drain them, and the fence decides."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.client import OrderedConsumer, Retries, Work
from backstop.leases import parking
from backstop.model.records import Counts, Message
from client_world import Database, consumer, postgres  # noqa: F401
from ordered_world import make_empty, write_effect
from rocketmq_server import RocketMQ as Server

pytestmark = pytest.mark.other_broker

SOON = timedelta(milliseconds=50)
KEYS = 12
PATIENCE = 90.0
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

    def publish(self, size: int) -> None:
        numbers = range(self.published, self.published + size)
        messages = [
            Message(self.topic, f"k{n % KEYS}-{n:06}", b"{}", partition_key=f"k{n % KEYS}")
            for n in numbers
        ]
        assert all(receipt.position for receipt in self.broker.publish(messages))
        self.published += size

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
        stored = sum(queue.next_offset for queue in self.broker.queues(self.topic))
        return (
            sum(one.next_offset for one in self.broker.progress(self.topic, self.group))
            == stored
            == self.published
        )

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
