"""A message with a time of its own that its broker delivers late is not past before it came: a look at the delay storage says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.evidence.evidence import DelayReading, Readings
from backstop.evidence.judge_by_key import Judge
from backstop.evidence.read import read_groups
from backstop.evidence.sources import Sources
from backstop.model.records import Counts, Key, Message
from backstop.reconcile.record import record_looks
from backstop.runs.run import close_run, open_run
from backstop.verdicts.frames import micros
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, build_template, system

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        with system(postgres, valkey) as running:
            yield running


class Delays:
    """Makes the embedded broker one that keeps messages back, and says up to when it has delivered them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.until = LONG_AGO
        whole = RedisStreams.capabilities.fget
        assert whole is not None
        monkeypatch.setattr(
            RedisStreams,
            "capabilities",
            property(lambda broker: replace(whole(broker), delays_messages=True)),
        )
        monkeypatch.setattr(
            RedisStreams, "delivered_until", lambda _, topic: self.until, raising=False
        )


def scheduled(world: System, message_id: str) -> Key:
    """Handed to the broker by its producer half an hour ago, for a minute ago; how that ended nobody knows."""
    key = world.stub(message_id, age=timedelta(minutes=30), broker="embedded")
    world.rows(
        "shop_a",
        "UPDATE message_stub SET deliver_at = now() - interval '1 minute' WHERE message_id = %s",
        message_id,
    )
    return key


def verdict(world: System, key: Key) -> tuple[str, bool]:
    conn = world.control()
    with Judge(world.settings, world.connections, conn) as judge:
        (found,) = {(str(one.verdict), one.eligible) for one in judge.judge([key])}
    conn.close()
    return found


def look(world: System) -> Readings:
    """What a run of reconcile sees of the topic, recorded."""
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    with Sources(world.settings, world.connections) as sources, conn, conn.cursor() as cursor:
        looks = read_groups(sources, cursor, run.as_of, {"orders"})
        record_looks(cursor, run, looks)
    close_run(conn, run, "done", Counts())
    conn.close()
    return looks


def test_a_message_that_came_late_waits_for_its_group(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = Delays(monkeypatch)
    key = scheduled(world, "late")
    # It comes a minute late, behind which the group's progress by time has long been.
    world.broker.publish([Message("orders", key.message_id, b"{}")])
    assert verdict(world, key) == ("BACKLOGGED", False), "no look at the delay storage says it came"
    look(world)
    assert verdict(world, key) == ("BACKLOGGED", False), "that look found it was behind"
    delays.until = datetime.now(UTC) + timedelta(minutes=1)
    look(world)
    assert verdict(world, key) == ("BACKLOGGED", False), "it was stored before that look"
    for group in ("billing", "shipping"):
        world.consume(group)
    assert verdict(world, key) == ("CONFIRMED", False)


def test_a_message_that_never_came_is_sent_once_its_group_is_past_the_first_look_that_shows_it(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = Delays(monkeypatch)
    key = scheduled(world, "lost")
    delays.until = datetime.now(UTC) + timedelta(minutes=1)
    for _ in range(2):
        look(world)
    # The second look says no more than the first, and is not kept.
    assert world.rows("control", "SELECT broker, topic FROM delay_look") == [("embedded", "orders")]
    assert verdict(world, key) == ("BACKLOGGED", False)
    world.rows("control", "UPDATE delay_look SET recorded_at = recorded_at - interval '5 s'")
    assert verdict(world, key) == ("UNSENT", True)


def test_a_broker_that_keeps_nothing_back_needs_no_look(world: System) -> None:
    assert verdict(world, scheduled(world, "lost")) == ("UNSENT", True)
    looks = look(world)
    assert not looks.delivered and world.rows("control", "SELECT * FROM delay_look") == []


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([], []),
        ([(10, 5)], [(None, 5, 10)]),
        ([(10, 5), (20, 15)], [(None, 5, 10), (5, 15, 20)]),
        # Two runs beside one another: what the later look found, it found for all that is due before.
        ([(20, 5), (10, 15)], [(None, 5, 10), (5, 15, 10)]),
    ],
)
def test_of_each_due_instant_the_first_look_that_found_nothing_left_counts(
    looks: list[tuple[int, int]], expected: list[tuple[Any, ...]]
) -> None:
    """Looks as (seconds of the look, seconds until which everything had come)."""

    def at(seconds: int) -> datetime:
        return LONG_AGO + timedelta(seconds=seconds)

    seen = Readings(at(0), brokers={"orders": "main"})
    seen.delays["orders"] = [DelayReading(at(one), at(until)) for one, until in looks]
    found = [
        tuple(row[n] for n in ("due_after", "due_until", "seen_at")) for row in seen.delay_rows()
    ]
    assert found == [
        tuple(None if value is None else micros(at(value)) for value in row) for row in expected
    ]
