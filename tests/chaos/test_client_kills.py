"""A producer or consumer killed at any commit boundary loses nothing and does nothing twice."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import Consumer, Work
from backstop.model.records import Counts, Message
from backstop_lab.servers.valkey import Valkey
from client_world import (  # noqa: F401
    CHILD,
    GROUP,
    TOPIC,
    Database,
    broker,
    consumer,
    postgres,
    producer,
    stored,
    valkey,
)
from forked import run_forked
from maria_world import maria, maria_consumer, maria_producer, maria_server  # noqa: F401

ID = "order-1:placed"


def run_child(role: str, boundary: str, places: dict[str, str]) -> int:
    ended = run_forked(CHILD, role, boundary, json.dumps(places))
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


@pytest.mark.parametrize(
    ("where", "prepares"),
    [("producer", False), ("producer", True), ("maria_producer", False)],
    ids=["producer", "prepared", "maria_producer"],
)
@pytest.mark.parametrize(
    ("boundary", "recorded", "published", "settled"),
    [
        ("before the commit of record", False, 0, False),
        ("after the commit of record", True, 0, False),
        ("after the commit of look", True, 0, False),
        ("before publish", True, 0, False),
        ("after publish", True, 1, False),
        ("before the commit of settle", True, 1, False),
        ("after the commit of settle", True, 1, True),
    ],
)
def test_a_killed_producer_leaves_what_backstop_needs_and_a_rerun_completes_it(
    broker: RedisStreams,
    valkey: Valkey,
    request: pytest.FixtureRequest,
    where: str,
    prepares: bool,
    boundary: str,
    recorded: bool,
    published: int,
    settled: bool,
) -> None:
    producer: Database = request.getfixturevalue(where)
    places = {"producer": producer.dsn, "broker": valkey.url(), "id": ID}
    if prepares:
        places["prepares"] = "from the first execution on"
    assert run_child("produce", boundary, places) == -signal.SIGKILL
    orders = producer.run("SELECT 1 FROM business_order")
    stubs = producer.run("SELECT * FROM message_stub")
    assert len(orders) == len(stubs) == recorded, (
        "the business change and its stub, both or neither"
    )
    assert stored(broker) == [ID] * published
    assert bool(producer.run("SELECT 1 FROM send_attempt")) == settled
    if recorded:
        (stub,) = stubs
        assert (stub["status"], stub["send_count"], stub["refusals"]) == ("pending", 1, 0)
        assert (stub["attempt_token"] is None, stub["sent_at"] is not None) == (settled, settled)
        assert stub["next_check_at"] > stub["created_at"], "Backstop will look"
        assert stub["attempt_deadline"] is not None, "and can tell when the attempt is over"
    else:
        assert run_child("produce", "none", places) == 0
        assert stored(broker) == [ID]
        assert producer.one("SELECT outcome FROM send_attempt")["outcome"] == "sent"


@pytest.mark.parametrize(
    ("where", "prepares"),
    [("consumer", False), ("consumer", True), ("maria", False)],
    ids=["consumer", "prepared", "maria"],
)
@pytest.mark.parametrize(
    ("boundary", "state", "effects"),
    [
        ("after fetch", None, 0),
        ("before the commit of begin", None, 0),
        ("after the commit of begin", "CONSUMING", 0),
        ("in the handler", "CONSUMING", 0),
        ("before the commit of complete", "CONSUMING", 0),
        ("after the commit of complete", "CONSUMED", 1),
        ("before acknowledge", "CONSUMED", 1),
        ("after acknowledge", "CONSUMED", 1),
    ],
)
def test_a_killed_consumer_is_followed_by_one_that_does_the_work_exactly_once(
    broker: RedisStreams,
    valkey: Valkey,
    request: pytest.FixtureRequest,
    where: str,
    prepares: bool,
    boundary: str,
    state: str | None,
    effects: int,
) -> None:
    consumer: Database = request.getfixturevalue(where)
    broker.publish([Message(TOPIC, ID, b"{}")])
    places = {"consumer": consumer.dsn, "broker": valkey.url()}
    if prepares:
        places["prepares"] = "from the first execution on"
    assert run_child("consume", boundary, places) == -signal.SIGKILL
    assert [row["state"] for row in consumer.run("SELECT state FROM consumer_log")] == (
        [state] if state else []
    )
    assert len(consumer.run("SELECT 1 FROM effect")) == effects
    consumer.end_lease(GROUP, TOPIC, ID, 1.0)
    counts = follow(broker, consumer, lambda c: pending(broker) == 0)
    row = consumer.one("SELECT * FROM consumer_log")
    assert (row["state"], row["attempts"]) == ("CONSUMED", 2 if state == "CONSUMING" else 1)
    effect = consumer.one("SELECT * FROM effect")
    assert effect["fence"] == row["fence"]
    assert counts.get("processed", 0) == 1 - effects
    assert list(broker.dead_letters(GROUP)) == []


def pending(broker: RedisStreams) -> int:
    behind = broker.lag(TOPIC, GROUP)
    return sum(behind.values())


def follow(broker: RedisStreams, database: Database, until: Callable[[Counts], bool]) -> Counts:
    """The next worker of the group, until the condition holds."""

    def handler(connection: object, message: Message, work: Work) -> None:
        with connection.cursor() as cursor:  # type: ignore[attr-defined]
            values = (message.topic, message.message_id, GROUP, work.fence)
            cursor.execute("INSERT INTO effect VALUES (%s, %s, %s, %s)", values)

    subscription = broker.subscribe(GROUP, [TOPIC], "next")
    soon = timedelta(milliseconds=100)
    worker = Consumer(subscription, database.connect, GROUP, handler, retry_after=soon, wait=soon)
    counts, deadline = Counts(), time.monotonic() + 120
    while not until(counts):
        assert time.monotonic() < deadline, f"not reached: {counts}"
        worker.run_once(counts)
    worker.close()
    subscription.close()
    return counts
