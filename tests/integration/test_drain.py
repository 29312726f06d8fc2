"""Dead letters leave the broker for the database: whole, once, and never before they are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from backstop.brokers.redis_streams import Keys
from backstop.dead_letters.drain import Bounds, drain_all
from backstop.records import Counts
from backstop.runs.run import Run, close_run, open_run
from control_world import World, servers, world  # noqa: F401  fixtures

DEAD = Keys().dead("orders", "billing")


@contextmanager
def triage(world: World, scope: str = "*", **options: Any) -> Iterator[Run]:
    run = open_run(world.conn, "triage", scope, world.settings, **options)
    yield run
    close_run(world.conn, run, "done", {})


def drain(world: World, **options: Any) -> Counts:
    with triage(world) as run:
        return drain_all(world.settings, world.connections, world.conn, run, **options)


@pytest.fixture
def client(world: World) -> Iterator[Any]:
    with redis.Redis.from_url(world.connections.url("backstop_broker")) as client:
        yield client


def entry(number: int | str = 0, **fields: Any) -> dict[Any, Any]:
    return {
        "time": "1763746000000000", "epoch": "e1", "headers": json.dumps({"backstop-message-id": f"m-{number}"}),
        "content": b"content", "origin-group": "billing", "origin-topic": "orders", "origin-queue": "1",
        "origin-offset": "17", "origin-epoch": "e1", "deliveries": "16", "cause": "handler failed",
        "error": "ValueError: no such customer", "died": "1763746001000000",
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }  # fmt: skip


def fill(client: Any, count: int, start: int = 0, key: str = DEAD) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(start, start + count):
        pipeline.xadd(key, entry(number))
    pipeline.execute()


def stored(world: World, columns: str = "message_id", order: str = "dead_letter_id") -> list[tuple[Any, ...]]:
    return world.control(f"SELECT {columns} FROM dead_letter ORDER BY {order}")


def test_a_letter_is_stored_whole_and_then_leaves_the_broker(world: World, client: Any) -> None:
    content, headers = bytes(range(256)), b'{ "backstop-message-id":"m-0",\t"x":"\xc3\xbc" }'
    client.xadd(DEAD, entry(content=content, headers=headers, tag="eu", key="k\\1\t2"))
    counts = drain(world)
    assert counts == {"queues": 5, "read": 1, "stored": 1, "acknowledged": 1}
    assert client.xlen(DEAD) == 0
    [row] = world.control("SELECT to_jsonb(l), l.content, l.headers FROM dead_letter l")
    found: Mapping[str, Any] = row[0]
    assert (bytes(row[1]), bytes(row[2])) == (content, headers)
    assert {name: found[name] for name in (
        "broker", "queue", "consumer_group", "topic", "message_id", "queue_id", "queue_offset", "queue_epoch", "tag",
        "partition_key", "content_bytes", "aside", "properties", "cause_text", "error", "deliveries", "invalid", "state",
    )} == {
        "broker": "embedded", "queue": DEAD, "consumer_group": "billing", "topic": "orders", "message_id": "m-0", "queue_id": 1,
        "queue_offset": 17, "queue_epoch": "e1", "tag": "eu", "partition_key": "k\\1\t2", "content_bytes": 256, "aside": False,
        "properties": {"time": "1763746000000000"}, "cause_text": "handler failed",
        "error": "ValueError: no such customer", "deliveries": 16, "invalid": None, "state": "open",
    }  # fmt: skip
    assert world.control("SELECT extract(epoch FROM died_at)::bigint FROM dead_letter") == [(1763746001,)]
    [(letters, acknowledged)] = world.control("SELECT letters, acknowledged_at IS NOT NULL FROM drain_batch")
    assert (letters, acknowledged) == (1, True)


def test_the_order_of_a_queue_is_kept_over_pages(world: World, client: Any) -> None:
    fill(client, 250)
    assert drain(world, bounds=Bounds(page=30))["stored"] == 250
    assert [name for (name,) in stored(world)] == [f"m-{number}" for number in range(250)]
    assert world.control("SELECT count(*), sum(letters), count(acknowledged_at) FROM drain_batch") == [(9, 250, 9)]


def test_a_second_drain_finds_nothing(world: World, client: Any) -> None:
    fill(client, 10)
    drain(world)
    assert drain(world) == {"queues": 5}
    assert len(stored(world)) == 10
