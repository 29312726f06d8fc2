"""The consumer loop on real parts: what is logged, what has effect, what is acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
import redis

from backstop.brokers.protocol import Received
from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.client import (
    Consumer,
    Work,
    leased,
    row_lock,
    run_until_signal,
    transactional,
)
from backstop.client.ways import Row, Way
from backstop.leases import guard
from backstop.model.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable
from backstop.model.records import GROUPS_HEADER, VERSION_HEADER, Counts, Message
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from client_world import (  # noqa: F401
    DELIVERY_LIMIT,
    GROUP,
    TOPIC,
    VISIBILITY,
    Database,
    broker,
    consumer,
    postgres,
    valkey,
)

SOON = timedelta(milliseconds=50)
ID = "order-1:placed"


def do(connection: Any, message: Message, work: Work) -> None:
    """A handler whose effect is in the consumer's database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, %s)",
            (message.topic, message.message_id, GROUP, work.fence),
        )


class World:
    """A topic, a group and workers on it."""

    def __init__(self, broker: RedisStreams, database: Database) -> None:
        self.broker, self.database = broker, database

    def publish(self, *ids: str, content: bytes = b"{}", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for receipt in self.broker.publish([Message(TOPIC, i, content, named) for i in ids]):
            assert receipt.position is not None, receipt.error

    @contextmanager
    def worker(self, handler: Any = do, name: str = "w1", **values: Any) -> Iterator[Consumer]:
        subscription = self.broker.subscribe(GROUP, [TOPIC], name)
        values = {"retry_after": SOON, "wait": SOON, "lease": timedelta(seconds=30), **values}
        consumer = Consumer(
            subscription, values.pop("connect", self.database.connect), GROUP, handler, **values
        )
        try:
            yield consumer
        finally:
            consumer.close()
            subscription.close()

    def effects(self) -> list[str]:
        return [
            r["message_id"] for r in self.database.run("SELECT message_id FROM effect ORDER BY 1")
        ]

    def log(self, message_id: str = ID) -> dict[str, Any]:
        return self.database.one("SELECT * FROM consumer_log WHERE message_id = %s", (message_id,))

    def logs(self) -> int:
        return int(self.database.one("SELECT count(*) FROM consumer_log")["count"])

    def pending(self) -> int:
        return sum(position.pending for position in self.broker.progress(TOPIC, GROUP))

    def dead(self) -> list[str | None]:
        return [dead.message_id for dead in self.broker.dead_letters(GROUP)]

    def dead_of(self, valkey: Valkey) -> list[str]:
        """What the consumer said of each dead letter."""
        with redis.Redis.from_url(valkey.url()) as server:
            letters: Any = server.xrange(Keys("backstop").dead(TOPIC, GROUP))
        return [fields[b"error"].decode() for _, fields in letters]


@pytest.fixture
def world(broker: RedisStreams, consumer: Database) -> World:
    return World(broker, consumer)


def drain(consumer: Consumer, until: Callable[[Counts], bool], seconds: float = 240.0) -> Counts:
    """Run batches until the condition holds."""
    counts, deadline = Counts(), time.monotonic() + seconds
    while not until(counts):
        assert time.monotonic() < deadline, f"not reached: {counts}"
        consumer.run_once(counts)
    return counts


def test_a_message_is_logged_done_and_acknowledged(world: World) -> None:
    world.publish(ID)
    with world.worker(owner_host="host-1") as consumer:
        counts = drain(consumer, lambda c: "processed" in c)
    row = world.log()
    assert (counts, world.effects(), world.pending()) == ({"processed": 1}, [ID], 0)
    assert (row["state"], row["attempts"], row["owner_host"]) == ("CONSUMED", 1, "host-1")
    assert row["queue_offset"] is not None
    assert bytes(row["payload_hash"]) == guard.payload_hash(b"{}")


def test_the_log_is_committed_before_the_handler_starts(world: World) -> None:
    seen: list[str] = []
    world.publish(ID)
    with world.worker(lambda *_: seen.append(world.log()["state"])) as consumer:
        drain(consumer, lambda c: "processed" in c)
    assert seen == ["CONSUMING"]


def test_a_copy_sent_again_is_acknowledged_without_effect(world: World) -> None:
    world.publish(ID, ID)  # both in one batch
    with world.worker() as consumer:
        counts = drain(consumer, lambda c: sum(c.values()) == 2)
        world.publish(ID)
        drain(consumer, lambda c: c.get("done") == 1)
    assert counts == {"processed": 1, "done": 1}
    assert (world.effects(), world.pending(), world.log()["duplicates_stopped"]) == ([ID], 0, 2)


def test_a_copy_for_other_groups_is_acknowledged_untouched(world: World) -> None:
    world.publish("theirs", backstop_groups=json.dumps(["shipping"]))
    world.publish("ours", backstop_groups=json.dumps(["shipping", GROUP]))
    with world.worker() as consumer:
        drain(consumer, lambda c: c == {"not_for_us": 1, "processed": 1})
    assert (world.effects(), world.logs(), world.pending()) == (["ours"], 1, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {GROUPS_HEADER: "billing"},
        {GROUPS_HEADER: "[]"},
        {GROUPS_HEADER: "[1]"},
        {VERSION_HEADER: "0"},
        {VERSION_HEADER: "x"},
    ],
)
def test_a_copy_with_broken_headers_becomes_a_dead_letter_and_is_never_dropped(
    world: World, headers: dict[str, str]
) -> None:
    world.publish(ID, **headers)
    with world.worker() as consumer:
        counts = drain(consumer, lambda c: world.dead() == [ID])
    assert counts["broken"] == DELIVERY_LIMIT
    assert (world.effects(), world.logs()) == ([], 0)


def test_a_message_without_an_id_becomes_a_dead_letter(world: World, valkey: Valkey) -> None:
    stream = Keys("backstop").stream(TOPIC, 0)
    redis.Redis.from_url(valkey.url()).xadd(
        stream, {"content": b"{}"}, id="1-0"
    )  # another program's doing
    with world.worker() as consumer:
        drain(consumer, lambda c: world.dead() == [None])
    assert world.effects() == []


def test_a_failed_handler_has_no_effect_leaves_its_error_and_is_tried_again(world: World) -> None:
    failures = iter([ValueError("first"), ValueError("second")])

    def sometimes(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        for failure in failures:
            raise failure

    world.publish(ID)
    with world.worker(sometimes) as consumer:
        drain(consumer, lambda c: c.get("failed") == 1)
        row = world.log()
        assert (row["state"], row["last_error"], world.effects()) == (
            "FAILED",
            "ValueError: first",
            [],
        )
        assert world.pending() == 1
        drain(consumer, lambda c: c.get("processed") == 1)
    row = world.log()
    assert (row["state"], row["attempts"], world.effects()) == ("CONSUMED", 3, [ID])


class Cancelled(BaseException):
    """What a library raises to end a task of its own."""


@pytest.mark.parametrize("way", [transactional, leased, row_lock])
@pytest.mark.parametrize("raised", [asyncio.CancelledError, GeneratorExit, Cancelled])
def test_whatever_a_handler_raises_is_its_messages_failure_and_the_consumer_goes_on(
    world: World, way: Callable[[Any], Way], raised: type[BaseException]
) -> None:
    tried: list[str] = []

    def handle(*given: Any) -> Row:
        message: Message = given[-2]
        tried.append(message.message_id)
        if way is not leased:
            do(*given)
        if tried.count("poison") == 1 and message.message_id == "poison":
            raise raised("its task")
        return Row.APPLIED

    world.publish("poison", "other")
    with world.worker(way(handle)) as consumer:
        drain(consumer, lambda c: c.get("failed") == 1 and c.get("processed") == 1)
        row = world.log("poison")
        assert (row["state"], row["last_error"]) == ("FAILED", f"{raised.__name__}: its task")
        assert row["lease_expires_at"] <= row["updated_at"], "its lease is free at once"
        assert (world.effects(), world.pending()) == ([] if way is leased else ["other"], 1)
        drain(consumer, lambda c: c.get("processed") == 1)
    assert (tried.count("poison"), world.pending()) == (2, 0)
    assert world.effects() == ([] if way is leased else ["other", "poison"])
    assert (world.log("poison")["state"], world.log("poison")["attempts"]) == ("CONSUMED", 2)


@pytest.mark.parametrize("way", [transactional, leased, row_lock])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_handler_ends_the_consumer_and_gives_its_message_back(
    world: World, way: Callable[[Any], Way], raised: type[BaseException]
) -> None:
    def handle(*given: Any) -> None:
        if way is not leased:
            do(*given)
        raise raised

    world.publish(ID)
    with world.worker(way(handle)) as consumer, pytest.raises(raised):
        drain(consumer, lambda _: False)
    assert (world.effects(), world.pending()) == ([], 1)
    assert [r["state"] for r in world.database.run("SELECT state FROM consumer_log")] == (
        [] if way is row_lock else ["EXPIRED"]
    )
    with world.worker(name="w2") as other:
        drain(other, lambda c: "processed" in c)
    assert world.effects() == [ID]


def test_a_handler_that_always_fails_ends_as_a_dead_letter_with_its_log_and_its_error(
    world: World, valkey: Valkey
) -> None:
    def never(connection: Any, message: Message, work: Work) -> None:
        raise ValueError(f"delivery {work.deliveries}")

    world.publish(ID)
    with world.worker(never) as consumer:
        drain(consumer, lambda c: world.dead() == [ID])
    assert (world.log()["state"], world.log()["attempts"]) == ("FAILED", DELIVERY_LIMIT)
    assert world.dead_of(valkey) == [f"ValueError: delivery {DELIVERY_LIMIT}"]


def test_a_message_that_fails_its_last_delivery_on_a_full_server_stops_no_other(
    world: World, valkey: Valkey
) -> None:
    """The server can store no dead letter; done messages are what gives it memory again."""
    tried: list[str] = []

    def handle(connection: Any, message: Message, work: Work) -> None:
        tried.append(message.message_id)
        if message.message_id == "poison":
            raise ValueError("poison")
        do(connection, message, work)

    later = [f"later-{n}" for n in range(10)]
    world.publish("poison", *later)
    with world.worker(handle) as consumer, redis.Redis.from_url(valkey.url()) as server:
        server.config_set("maxmemory", "1")
        try:
            drain(consumer, lambda c: c.get("processed") == len(later))
            drain(consumer, lambda _: tried.count("poison") == DELIVERY_LIMIT)
            until = time.monotonic() + VISIBILITY.total_seconds() * 2
            while time.monotonic() < until:
                consumer.run_once()
        finally:
            server.config_set("maxmemory", "0")
        assert (tried.count("poison"), world.pending(), world.dead()) == (DELIVERY_LIMIT, 1, [])
        drain(consumer, lambda _: world.dead() == ["poison"])
    assert (tried.count("poison"), world.effects(), world.pending()) == (
        DELIVERY_LIMIT,
        later,
        0,
    )


class Mute(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise KeyError("template")


@pytest.mark.parametrize("way", [transactional, leased, row_lock])
def test_an_exception_that_cannot_say_its_text_is_its_messages_failure(
    world: World, way: Callable[[Any], Way]
) -> None:
    def handle(*given: Any) -> Row:
        if given[-2].message_id == "poison":
            raise Mute
        return Row.APPLIED

    world.publish("poison", "other")
    with world.worker(way(handle)) as consumer:
        drain(consumer, lambda c: world.dead() == ["poison"])
    assert (world.pending(), world.log("other")["state"]) == (0, "CONSUMED")
    assert world.log("poison")["last_error"] == "Mute: its text cannot be read (KeyError)"


@pytest.mark.parametrize("way", [transactional, row_lock])
def test_a_message_that_ends_its_own_connection_each_time_holds_up_no_other_and_becomes_a_dead_letter(
    world: World, way: Callable[[Any], Way]
) -> None:
    """Its database answers every time: it is the message, and not an outage."""

    def handle(connection: Any, message: Message, work: Work) -> Row:
        if message.message_id == "poison":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        do(connection, message, work)
        return Row.APPLIED

    others = [f"other-{number:02}" for number in range(12)]
    world.publish("poison", *others)
    stop = threading.Event()
    watcher = threading.Thread(
        target=lambda: _set_when(
            stop, lambda: world.dead() == ["poison"] and world.effects() == others, 60
        )
    )
    watcher.start()
    with world.worker(way(handle)) as consumer:
        counts = consumer.run(stop)
    watcher.join()
    assert (world.effects(), world.dead(), world.pending()) == (others, ["poison"], 0), counts
    assert world.log("poison")["state"] == "FAILED"


@pytest.mark.parametrize("way", [transactional, leased, row_lock])
def test_a_handler_that_says_another_database_is_away_is_never_blamed_and_holds_up_no_other(
    world: World, way: Callable[[Any], Way]
) -> None:
    def handle(*given: Any) -> Row:
        if away and given[-2].message_id == "waits":
            raise StoreUnavailable("the shop's database", unaffected="", next_step="")
        if way is not leased:
            do(*given)
        return Row.APPLIED

    away = [True]
    world.publish("waits", "a", "b", "c")
    with world.worker(way(handle)) as consumer:
        counts = drain(consumer, lambda c: c.get("busy", 0) > 2 * DELIVERY_LIMIT)
        assert counts["processed"] == 3 and world.pending() == 1
        assert world.effects() == ([] if way is leased else ["a", "b", "c"])
        away.clear()
        drain(consumer, lambda c: "processed" in c)
        assert consumer.books.difference(0) == 0
    assert (world.pending(), world.dead(), world.log("waits")["state"]) == (0, [], "CONSUMED")


END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def test_a_leased_handler_waits_alone_for_another_database_though_its_idle_connection_was_ended(
    world: World,
) -> None:
    away = [True]

    @leased
    def handle(message: Message, work: Work) -> None:
        if away and message.message_id == "waits":
            world.database.run(END_OTHERS)
            raise StoreUnavailable("the shop's database", unaffected="", next_step="")

    world.publish("waits", "a", "b", "c")
    with world.worker(handle) as consumer:
        counts = drain(consumer, lambda c: c.get("busy", 0) > 2)
        assert (counts["processed"], world.pending()) == (3, 1)
        away.clear()
        drain(consumer, lambda c: "processed" in c)
    assert (world.pending(), world.dead(), world.log("waits")["state"]) == (0, [], "CONSUMED")


def test_an_interrupted_leased_handler_gives_its_batch_back_though_its_idle_connection_was_ended(
    world: World,
) -> None:
    @leased
    def handle(message: Message, work: Work) -> None:
        world.database.run(END_OTHERS)
        raise KeyboardInterrupt

    world.publish("a", "b", "c")
    with world.worker(handle) as consumer, pytest.raises(KeyboardInterrupt):
        drain(consumer, lambda c: False)
    left = world.database.run("SELECT state, attempts FROM consumer_log")
    assert sorted((row["state"], row["attempts"]) for row in left) == [
        ("EXPIRED", 0),
        ("EXPIRED", 0),
        ("EXPIRED", 1),
    ]


def test_a_leased_handler_during_which_the_server_ends_an_idle_connection_is_done_once(
    world: World,
) -> None:
    """`idle_session_timeout`, or a firewall: it would be called again and again, and never be done."""
    called: list[str] = []

    @leased
    def handle(message: Message, work: Work) -> None:
        called.append(message.message_id)
        world.database.run(END_OTHERS)
        if called.count("b") == 1 and message.message_id == "b":
            raise ValueError("b")

    world.publish("a")
    with world.worker(handle) as consumer:
        drain(consumer, lambda c: c.get("processed") == 1)
        world.publish("b")
        drain(consumer, lambda c: c.get("failed") == 1)
        assert world.log("b")["last_error"] == "ValueError: b"
        drain(consumer, lambda c: c.get("processed") == 1)
    assert (called, world.pending()) == (["a", "b", "b"], 0)


def test_a_handler_that_broke_its_transaction_and_hid_it_fails(world: World) -> None:
    def hides(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        try:
            connection.cursor().execute("SELECT 1/0")
        except Exception:  # noqa: BLE001 - as careless handlers do
            return

    world.publish(ID)
    with world.worker(hides) as consumer:
        drain(consumer, lambda c: "failed" in c)
    assert (world.effects(), world.log()["state"]) == ([], "FAILED")


def test_busy_is_never_acknowledged_and_spends_no_delivery(world: World) -> None:
    connection = world.database.connect()
    begun = guard.begin(
        connection, GROUP, TOPIC, ID, payload_hash=guard.payload_hash(b"{}"), lease_seconds=30
    )
    connection.commit()
    assert isinstance(begun, guard.Acquired)
    world.publish(ID)
    with world.worker() as consumer:
        drain(consumer, lambda c: c.get("busy", 0) > DELIVERY_LIMIT + 2)
        assert (world.pending(), world.dead()) == (1, [])
        guard.give_back(connection, begun)
        connection.commit()
        drain(consumer, lambda c: "processed" in c)
    connection.close()
    assert (world.effects(), world.pending()) == ([ID], 0)


def test_a_conflict_is_neither_applied_nor_acknowledged_but_ends_before_a_person(
    world: World,
) -> None:
    world.publish(ID)
    with world.worker() as consumer:
        drain(consumer, lambda c: "processed" in c)
        world.publish(ID, content=b"other")
        drain(consumer, lambda c: world.dead() == [ID])
    assert (world.effects(), world.log()["conflicts"]) == ([ID], DELIVERY_LIMIT)


def test_a_copy_on_which_a_row_lock_handler_raises_ends_as_the_log_says(world: World) -> None:
    """It would come again for ever: what the log does not take as a failure spends no delivery."""

    @row_lock
    def once(connection: Any, message: Message, work: Work) -> Row:
        if message.message_id in world.effects():
            raise ValueError("it is there already")
        do(connection, message, work)
        return Row.APPLIED

    world.publish(ID)
    with world.worker(once) as consumer:
        drain(consumer, lambda c: "processed" in c)
        world.publish(ID)
        drain(consumer, lambda c: "done" in c)
        assert (world.pending(), world.dead()) == (0, [])
        world.publish(ID, content=b"other")
        drain(consumer, lambda c: world.dead() == [ID])
    assert (world.effects(), world.pending(), world.log()["conflicts"]) == ([ID], 0, DELIVERY_LIMIT)


def test_an_older_version_is_acknowledged_and_a_parked_one_is_not(world: World) -> None:
    world.publish("new", content=b"2", backstop_content_version="2")
    world.publish("parked")
    with world.worker() as consumer:
        drain(consumer, lambda c: c.get("processed") == 2)
        world.database.run("UPDATE consumer_log SET state = 'PARKED' WHERE message_id = 'parked'")
        world.publish("new", content=b"1")
        world.publish("parked")
        drain(consumer, lambda c: c.get("superseded") == 1 and c.get("parked", 0) > DELIVERY_LIMIT)
    assert (world.pending(), world.effects(), world.dead()) == (1, ["new", "parked"], [])


def test_a_lost_lease_rolls_the_effect_back_and_acknowledges_nothing(world: World) -> None:
    fences: list[int] = []

    def robbed(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        fences.append(work.fence)
        if len(fences) == 1:  # another worker takes it over while this one is away
            world.database.run(
                "UPDATE consumer_log SET owner_token = gen_random_uuid(), fence = fence + 1"
            )

    world.publish(ID)
    with world.worker(robbed) as consumer:
        counts = drain(consumer, lambda c: bool(c))
        assert counts == {"lease_lost": 1}
        assert (world.effects(), world.pending(), world.log()["state"]) == ([], 1, "CONSUMING")
        world.database.run("UPDATE consumer_log SET lease_expires_at = clock_timestamp()")
        drain(consumer, lambda c: "processed" in c)  # the broker delivers it again
    assert (world.effects(), world.log()["fence"]) == ([ID], fences[1])
    assert fences[1] > fences[0] + 1


class HandingBack:
    """A subscription, and what was handed back through it; `refuses`: the broker does not take the first one back."""

    def __init__(self, inner: Any, *, refuses: bool = False) -> None:
        self._inner, self._refuses = inner, refuses
        self.tried: list[tuple[str, bool]] = []

    def hand_back(self, received: Received, *, counts: bool, **how: Any) -> None:
        self.tried.append((received.message.message_id, counts))
        if self._refuses and len(self.tried) == 1:
            raise away("handing a message back")
        self._inner.hand_back(received, counts=counts, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def away(doing: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"{doing} failed", unaffected="nothing", next_step="wait")


def test_whatever_lost_its_lease_is_handed_back_for_a_broker_that_lends_for_good(
    world: World,
) -> None:
    """RocketMQ and ActiveMQ do not offer a message again to whoever holds it."""

    def robbed(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        world.database.run(
            "UPDATE consumer_log SET owner_token = gen_random_uuid(), fence = fence + 1"
        )
        deadline = time.monotonic() + 60
        while not work.lost.wait(0.02):
            assert time.monotonic() < deadline

    world.publish("a", "b", "c")
    with world.worker(robbed, lease=timedelta(seconds=0.6)) as consumer:
        subscription = consumer._subscription = HandingBack(consumer._subscription)
        counts = drain(consumer, lambda c: bool(c))
    assert counts == {"lease_lost": 3}, "two of them before their turn"
    assert sorted(subscription.tried) == [("a", False), ("b", False), ("c", False)]
    assert (world.effects(), consumer.books.counts["fenced_off"]) == ([], 3)


@pytest.mark.parametrize("fails", ["acknowledge", "handler"])
def test_a_message_that_cannot_be_handed_back_strands_no_other_of_its_batch(
    world: World, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        if fails == "handler":
            connection.close()
            raise StoreUnavailable("gone", unaffected="nothing", next_step="wait")
        consumer.stopping.set()  # the rest of the batch is given back

    def acknowledge(_: Any) -> None:
        raise away("acknowledging")

    world.publish("a", "b", "c", "d")
    with world.worker(handle) as consumer:
        subscription = HandingBack(consumer._subscription, refuses=True)
        subscription.acknowledge = acknowledge  # type: ignore[attr-defined]
        consumer._subscription = subscription
        forgotten: list[bool] = []
        monkeypatch.setattr(consumer._finished, "forget", lambda: forgotten.append(True))
        with pytest.raises(BrokerUnavailable, match="handing a message back"):
            consumer.run_once()
    assert len({name for name, _ in subscription.tried}) == (4 if fails == "handler" else 3)
    # What is finished is asked of the log again where the database was away, also behind the broker's error.
    assert any(forgotten) == (fails == "handler")


def test_a_foreign_message_that_cannot_be_acknowledged_strands_no_other_of_its_batch(
    world: World,
) -> None:
    def acknowledge(_: Any) -> None:
        raise away("acknowledging")

    world.publish("theirs", **{GROUPS_HEADER.replace("-", "_"): json.dumps(["other"])})
    world.publish("a", "b")
    with world.worker() as consumer:
        subscription = HandingBack(consumer._subscription)
        subscription.acknowledge = acknowledge  # type: ignore[attr-defined]
        consumer._subscription = subscription
        with pytest.raises(BrokerUnavailable):
            consumer.run_once()
    assert sorted(subscription.tried) == [("a", False), ("b", False), ("theirs", False)]
    assert world.effects() == []


def test_a_long_handler_keeps_its_lease(world: World) -> None:
    lease = timedelta(seconds=5)
    renewed = threading.Event()

    def long(connection: Any, message: Message, work: Work) -> None:
        """The first of the two takes longer than a lease lasts; the other one waits for as long."""
        do(connection, message, work)
        first = world.log(message.message_id)["lease_expires_at"]
        deadline = time.monotonic() + 120
        while not renewed.wait(0.05):
            assert time.monotonic() < deadline, "not renewed"
            if world.log(message.message_id)["lease_expires_at"] > first + lease:
                renewed.set()
        assert not work.lost.is_set()

    world.publish(ID, "waits-its-turn")
    with world.worker(long, lease=lease) as consumer:
        counts = drain(consumer, lambda c: sum(c.values()) >= 2)
    assert renewed.is_set()
    assert counts == {"processed": 2}
    assert {r["attempts"] for r in world.database.run("SELECT attempts FROM consumer_log")} == {1}


def test_a_handler_is_told_that_its_lease_is_lost(world: World) -> None:
    def waits(connection: Any, message: Message, work: Work) -> None:
        world.database.run("UPDATE consumer_log SET owner_token = gen_random_uuid()")
        assert work.lost.wait(60)
        do(connection, message, work)

    world.publish(ID)
    with world.worker(waits, lease=timedelta(seconds=0.3)) as consumer:
        drain(consumer, lambda c: c == {"lease_lost": 1})
    assert world.effects() == []


def test_a_renewal_that_meets_a_completed_message_is_no_lost_lease(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal waits for the row that the handler's transaction has completed, and answers before the keeper hears of the end."""
    world.publish(ID)
    with world.worker(lease=timedelta(seconds=0.3)) as consumer:
        keeper, release = consumer._keeper, consumer._keeper.release
        renewed = threading.Event()
        renew = consumer._store.renew

        def say(leases: Any) -> Any:
            found = renew(leases)
            if world.log()["state"] == "CONSUMED":
                renewed.set()
            return found

        def release_late(lease: Any) -> None:
            assert renewed.wait(60)
            time.sleep(0.05)  # what the keeper does with the answer
            release(lease)

        monkeypatch.setattr(consumer._store, "renew", say)
        monkeypatch.setattr(keeper, "release", release_late)
        counts = drain(consumer, lambda c: "processed" in c)
    assert (counts, world.effects()) == ({"processed": 1}, [ID])
    assert [record.message for record in caplog.records if "lost" in record.message] == []


def test_when_the_database_is_away_everything_is_handed_back_uncounted(world: World) -> None:
    world.publish("a", "b", "c")
    away = f"postgresql://nobody:x@127.0.0.1:{free_port()}/x"
    with world.worker(connect=lambda: psycopg2.connect(away, connect_timeout=2)) as consumer:
        given_back, deadline = Counts(), time.monotonic() + 120
        while given_back.get("given_back", 0) <= 3 * DELIVERY_LIMIT:
            assert time.monotonic() < deadline, f"not handed back: {given_back}"
            with pytest.raises(StoreUnavailable) as raised:
                while True:
                    consumer.run_once(given_back)
    assert all((raised.value.what, raised.value.unaffected, raised.value.next_step))
    assert (world.pending(), world.dead(), world.logs()) == (3, [], 0)
    with world.worker() as consumer:
        drain(consumer, lambda c: c.get("processed") == 3)
    assert world.effects() == ["a", "b", "c"]


def test_a_database_killed_in_the_handler_loses_nothing_and_doubles_nothing(
    world: World, postgres: Postgres
) -> None:
    killed = threading.Event()

    def kills(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        if not killed.is_set():
            killed.set()
            postgres.kill()

    world.publish("a", "b", "c")
    with world.worker(kills, lease=timedelta(seconds=1)) as consumer:
        with pytest.raises(StoreUnavailable):
            drain(consumer, lambda c: False)
        postgres.start()
        assert (world.effects(), world.pending(), world.dead()) == ([], 3, [])
        assert {r["state"] for r in world.database.run("SELECT state FROM consumer_log")} == {
            "CONSUMING"
        }
        stop = threading.Event()
        watcher = threading.Thread(
            target=lambda: _set_when(stop, lambda: world.effects() == ["a", "b", "c"])
        )
        watcher.start()
        consumer.run(stop)
        watcher.join()
    assert (world.effects(), world.dead()) == (["a", "b", "c"], [])
    assert {r["last_error"] for r in world.database.run("SELECT last_error FROM consumer_log")} == {
        None
    }


def _set_when(stop: threading.Event, condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()


def test_a_stop_finishes_the_message_in_hand_and_gives_the_rest_back(world: World) -> None:
    stop = threading.Event()

    def stops(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        stop.set()
        assert work.stopping.is_set()

    world.publish("a", "b", "c")
    with world.worker(stops) as consumer:
        counts = consumer.run(stop)
    done = world.effects()
    assert len(done) == 1
    assert counts["processed"] == 1
    assert world.pending() == 2
    left = world.database.run("SELECT state, attempts FROM consumer_log WHERE state <> 'CONSUMED'")
    assert all((row["state"], row["attempts"]) == ("EXPIRED", 0) for row in left)
    with world.worker(name="w2") as other:
        drain(other, lambda c: c.get("processed") == 2)
    assert world.effects() == ["a", "b", "c"]


def test_sigterm_ends_a_handler_that_takes_too_long_and_gives_its_message_back(
    world: World,
) -> None:
    def endless(connection: Any, message: Message, work: Work) -> None:
        do(connection, message, work)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)

    world.publish(ID)
    before = signal.getsignal(signal.SIGTERM)
    started = time.monotonic()
    with world.worker(endless) as consumer:
        counts = run_until_signal(consumer, stop_within=timedelta(seconds=0.3))
    assert time.monotonic() - started < 20
    assert signal.getsignal(signal.SIGTERM) is before
    assert counts["out_of_time"] == 1
    assert (world.effects(), world.log()["state"], world.pending()) == ([], "EXPIRED", 1)
    with world.worker(name="w2") as other:
        drain(other, lambda c: "processed" in c)
    assert world.effects() == [ID]


WAITS = """
import os, signal, threading
from backstop.client import run_until_signal

class Waits:
    stopping = threading.Event()

    def run(self, *, counts):
        with self.stopping._cond:  # as `wait` has it, before it waits and after
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(10_000):
                pass
        assert self.stopping.wait(10)

run_until_signal(Waits())
"""


def test_sigterm_while_the_stop_is_just_looked_for_does_not_hang() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS], timeout=60, check=False)
    assert done.returncode == 0


def test_two_workers_share_the_work_and_do_each_message_once(world: World) -> None:
    names = sorted(f"m{number:03}" for number in range(200))
    world.publish(*names)
    stop = threading.Event()
    with world.worker(name="w1") as one, world.worker(name="w2") as two:
        threads = [threading.Thread(target=w.run, args=(stop,)) for w in (one, two)]
        for thread in threads:
            thread.start()
        _set_when(stop, lambda: len(world.effects()) >= len(names))
        for thread in threads:
            thread.join()
    assert world.effects() == names
    assert (world.pending(), world.dead()) == (0, [])


def test_settings_that_make_no_sense_are_refused(world: World) -> None:
    with pytest.raises(ConfigurationError), world.worker(batch=0):
        pass


class Numbered:
    """The subscription of a broker whose messages have their producer's numbers, as ActiveMQ's have."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch(self, limit: int, wait: timedelta) -> list[Received]:
        fetched = self._inner.fetch(limit, wait)
        return [
            replace(one, sequence=("ID:producer", int(one.message.message_id))) for one in fetched
        ]


def test_a_database_that_is_away_before_the_batch_is_looked_at_strands_nothing(
    world: World,
) -> None:
    """The filter of finished messages asks it first: its batches are handed back too, and counted once."""
    world.publish("1", "2", "3")
    url = [f"postgresql://nobody:x@127.0.0.1:{free_port()}/x"]
    with world.worker(connect=lambda: psycopg2.connect(url[0], connect_timeout=2)) as consumer:
        consumer._subscription = Numbered(consumer._subscription)
        counts, deadline = Counts(), time.monotonic() + 120
        while counts.get("given_back", 0) < 9:
            assert time.monotonic() < deadline, f"not handed back: {counts}"
            with suppress(StoreUnavailable):
                consumer.run_once(counts)
        books = consumer.books.counts
        assert books["received"] == books["handed_back"] == counts["given_back"]
        url[0] = world.database.dsn
        drain(consumer, lambda c: c.get("processed") == 3)
        assert consumer.books.difference(0) == 0
    assert (world.effects(), world.pending(), world.dead()) == (["1", "2", "3"], 0, [])
