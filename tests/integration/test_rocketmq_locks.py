"""Ordered groups of a real RocketMQ: who has which queue locked, and a queue that one message holds up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.rocketmq import RocketMQ as Adapter
from backstop.config.settings import Settings
from backstop.model.records import Message, Outcome
from backstop.watch.run_once import run_once
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from rocketmq_java import JavaPeer
from rocketmq_look_world import World
from rocketmq_server import RocketMQ
from stand_still import stand_still
from system import System, build_template, settings_dict, system


@pytest.fixture(scope="module")
def world(shared_rocketmq: RocketMQ) -> Iterator[World]:
    found = World(shared_rocketmq)
    yield found
    found.close()


@pytest.fixture(scope="module")
def broker(shared_rocketmq: RocketMQ) -> Iterator[Adapter]:
    with Adapter(shared_rocketmq.url()) as found:
        yield found


@pytest.fixture(scope="module")
def java(shared_rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(shared_rocketmq, tmp_path_factory.mktemp("java")) as peer:
        yield peer


def test_an_ordered_groups_consumers_tell_which_queues_they_have_locked(
    world: World, broker: Adapter, java: JavaPeer
) -> None:
    topic = world.made(4)
    group = f"g-{topic}"
    assert broker.holders(topic, group) == [], "nobody is connected"
    begun = datetime.now(UTC)
    consumer = java.consume(group, topic, mode="ordered")
    world.until(
        lambda: [one.queue_id for one in broker.holders(topic, group) if one.locked] == [0, 1, 2, 3]
    )
    told = broker.holders(topic, group)
    [client] = java.clients(group)
    assert {one.consumer for one in told} == {client}
    assert all(
        one.locked_at is not None and begun - timedelta(seconds=1) <= one.locked_at for one in told
    )
    assert {(one.queue_id, one.locked) for one in told} == {
        (queue, locked)
        for (of, _, queue), (locked, _) in java.locks(group, client).items()
        if of == topic
    }
    world.send(topic, queue=2)
    consumer.wait_until("a message of a queue that was looked at", lambda c: c.done)
    consumer.close()
    world.until(lambda: broker.holders(topic, group) == [])


def test_a_copy_for_an_ordered_group_alone_is_refused_because_rocketmq_would_bury_it(
    world: World, broker: Adapter, java: JavaPeer
) -> None:
    topic = world.made(2)
    group = f"g-{topic}"
    consumer = java.consume(group, topic, mode="ordered")
    world.until(
        lambda: [one.queue_id for one in broker.holders(topic, group) if one.locked] == [0, 1]
    )
    [receipt] = broker.publish([Message(topic, "again", b"x")], group=group)
    assert (receipt.outcome, receipt.refused_for_good) == (Outcome.REFUSED, False)
    assert "in order" in (receipt.error or "")
    assert list(broker.dead_letters(group)) == []
    # What it is kept from: the server acknowledges the copy, and no consumer ever gets it.
    world.store(
        f"%RETRY%{group}", 0, f"backstop-message-id\x01buried\x02RETRY_TOPIC\x01{topic}\x02"
    )
    world.until(lambda: [one.message_id for one in broker.dead_letters(group)] == ["buried"])
    consumer.close()


def test_a_concurrent_groups_consumers_hold_queues_without_a_lock_and_share_them(
    world: World, broker: Adapter, java: JavaPeer, shared_rocketmq: RocketMQ, tmp_path: Path
) -> None:
    topic = world.made(4)
    group = f"g-{topic}"
    java.consume(group, topic)
    with JavaPeer(shared_rocketmq, tmp_path) as other:
        other.consume(group, topic)

        def shared() -> bool:
            told = broker.holders(topic, group)
            queues = [one.queue_id for one in told]
            return queues == [0, 1, 2, 3] and len({one.consumer for one in told}) == 2

        world.until(shared)
        assert not any(one.locked for one in broker.holders(topic, group))


def test_a_consumer_that_does_not_answer_is_one_that_does_not_tell(
    world: World, broker: Adapter, shared_rocketmq: RocketMQ, tmp_path: Path
) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    with JavaPeer(shared_rocketmq, tmp_path) as other:
        other.consume(group, topic)
        world.until(lambda: [one.queue_id for one in broker.holders(topic, group)] == [0])
        stand_still(other.pid)
        [holder] = broker.holders(topic, group)
        os.kill(other.pid, signal.SIGCONT)
    assert holder.queue_id is None and not holder.locked


def test_a_consumer_of_ours_tells_its_queues_too(world: World, broker: Adapter) -> None:
    topic = world.made(2)
    subscription = broker.subscribe(f"g-{topic}", [topic], "ours")
    world.until(
        lambda: (
            subscription.fetch(1, timedelta(milliseconds=20))
            or len(broker.holders(topic, f"g-{topic}")) == 2
        )
    )
    told = broker.holders(topic, f"g-{topic}")
    assert [(one.queue_id, one.locked) for one in told] == [(0, False), (1, False)]
    subscription.close()


# A queue that is blocked.


class Watched:
    """The watch over one topic of RocketMQ, and time that passes when the test says so."""

    def __init__(self, world: System, settings: Settings) -> None:
        self.world, self.settings = world, settings

    def minutes(self, number: int) -> None:
        for _ in range(number):
            for table, columns in (
                ("watch_topic", ("taken_at", "counted_until")),
                ("watch_group", ("taken_at", "counted_until")),
                ("watch_queue", ("taken_at", "stands_since")),
                ("run", ("started_at", "finished_at")),
            ):
                moved = ", ".join(f"{name} = {name} - interval '1 minute'" for name in columns)
                self.world.rows("control", f"UPDATE {table} SET {moved}")
            run_once(self.settings, self.world.connections)

    def cases(self) -> list[tuple[Any, ...]]:
        return self.world.rows(
            "control",
            "SELECT kind, topic, consumer_group, state, evidence FROM case_file ORDER BY case_id",
        )


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey")) as valkey,
    ):
        build_template(postgres)
        yield postgres, valkey


def test_a_message_that_an_ordered_consumer_cannot_process_makes_a_case_of_its_queue(
    world: World, java: JavaPeer, stores: tuple[Postgres, Valkey], shared_rocketmq: RocketMQ
) -> None:
    topic = world.made(2)
    group = f"g-{topic}"
    consumer = java.consume(group, topic, mode="ordered", fail_keys={"poison": -1})
    changes: dict[str, Any] = {
        "policy": {"watch_window": "2m"},
        "brokers": {
            **settings_dict()["brokers"],
            "cluster": {
                "kind": "rocketmq",
                "connection": "cluster",
                "retry_schedule": "10s",
            },
        },
        "groups": {
            group: {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"}
        },
        "topics": {topic: {"broker": "cluster", "groups": [group]}},
        "watch": {"allowed_age": {}},
    }
    with system(*stores, **changes) as found:
        found.urls["cluster"] = shared_rocketmq.url()
        watched = Watched(found, found.settings)
        java.send(topic, [{"body": b"x", "queue": 0, "keys": "poison"}, {"body": b"y", "queue": 1}])
        consumer.wait_until("the other queue's message", lambda c: c.done)
        watched.minutes(1)
        java.send(topic, [{"body": b"x", "queue": 0}] * 3 + [{"body": b"y", "queue": 1}])
        consumer.wait_until("the other queue's second message", lambda c: len(c.done) == 2)
        # Java's consumer tells the broker how far it is only every few seconds; until then this queue stands, too.
        world.until(lambda: dict(world.at(topic)).get(1) == 2)
        watched.minutes(2)
        assert watched.cases() == []
        watched.minutes(2)
        [(kind, of, whose, state, evidence)] = watched.cases()
        assert (kind, of, whose, state) == ("queue_blocked", topic, group, "open")
        [queue] = evidence["queues"]
        assert (queue["queue"], queue["offset"], queue["waiting"], queue["came_since"]) == (
            0,
            0,
            4,
            3,
        )
        [holder] = queue["held_by"]
        [client] = java.clients(group)
        assert (holder["consumer"], holder["locked"]) == (client, True)
        consumer.heal()
        world.until(lambda: world.at(topic)[0] == (0, 4))
        watched.minutes(1)
        assert [case[3] for case in watched.cases()] == ["closed"]
    consumer.close()
