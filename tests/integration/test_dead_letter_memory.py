"""A look at dead letters takes memory by what it judges, not by how many wait in the broker or in the control database."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from backstop.brokers.protocol import DeadLetterRef
from backstop.evidence.evidence import GroupProgress, Readings
from backstop.evidence.read import read_after_logs
from backstop.evidence.seen_dead_letters import SeenDeadLetters
from control_world import World, servers, world  # noqa: F401
from triage_world import letter

LETTERS = 200_000
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def stream(group: str, *, since: Any) -> Iterator[DeadLetterRef]:
    """As an adapter gives them: one after the other. One in four is of a topic that is not judged."""
    for n in range(LETTERS):
        topic = "orders" if n % 4 else "elsewhere"
        yield DeadLetterRef(group, topic, f"order-{n:09}", str(n), NOW, ("dead", str(n)))


def looked(world: World, ids: list[str] | None) -> tuple[Readings, float]:
    """What a look saw, and how many MB it held at its peak."""
    looks = Readings(
        NOW, groups={("orders", "billing"): GroupProgress("orders", "billing", "embedded")}
    )
    sources: Any = SimpleNamespace(
        settings=world.settings,
        logs_of=lambda _: SimpleNamespace(floor=lambda *_: NOW),
        shard=lambda _: SimpleNamespace(proves=lambda _: True),
        broker=lambda _: SimpleNamespace(dead_letters=stream),
        seen_dead_letters=defaultdict(SeenDeadLetters),
    )
    tracemalloc.start()
    arrow = pa.total_allocated_bytes()
    with world.conn, world.conn.cursor() as cursor:
        read_after_logs(looks, sources, cursor, ids)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return looks, (peak + pa.total_allocated_bytes() - arrow) / 1e6


@pytest.mark.parametrize(
    ("ids", "most"), [(["order-000000001", "order-000000004", "stored-7"], 5), (None, 30)]
)
def test_a_look_at_many_dead_letters_takes_little_memory(
    world: World, ids: list[str] | None, most: float
) -> None:
    first = letter(world, "stored-1")
    world.control(
        """
        INSERT INTO dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id, headers, content_bytes)
        SELECT batch_id, broker, queue, 'w' || n, consumer_group, topic, 'stored-' || n, headers, 0
        FROM dead_letter, generate_series(2, 50000) n WHERE dead_letter_id = %s""",
        (first,),
    )
    looks, megabytes = looked(world, ids)
    found = looks.dead.table()
    assert looks.groups["orders", "billing"].dead_letters_read
    if ids is None:
        assert found.num_rows == LETTERS * 3 // 4 + 50_000 and set(
            found.column("topic").to_pylist()
        ) == {"orders"}
    else:
        assert sorted(found.column("message_id").to_pylist()) == ["order-000000001", "stored-7"]
    assert megabytes < most
