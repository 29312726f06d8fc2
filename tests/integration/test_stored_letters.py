"""Verdict row 4 over letters that were drained: undecided ones count, whatever queue they came from; decided ones do not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from backstop.brokers.protocol import DeadLetterRef
from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.evidence.judge_by_key import Judge
from backstop.model.records import Key
from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from letters import INSERT, values
from system import System, system


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    with system(postgres, valkey) as running:
        yield running


def letter(
    world: System, message_id: str | None, group: str | None = "billing", **given: Any
) -> int:
    connection = world.control()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(INSERT, values(message_id, group, **given))
            return int(cursor.fetchone()[0])
    finally:
        connection.close()


def by_key(world: System, key: Key) -> dict[str, str]:
    connection = world.control()
    try:
        with Judge(world.settings, world.connections, connection) as judge:
            return {judged.consumer_group: str(judged.verdict) for judged in judge.judge([key])}
    finally:
        connection.close()


def passed(world: System, message_id: str) -> Key:
    """Both groups passed it without a trace: LOST, unless something else is there."""
    key = world.sent(message_id)
    for group in ("billing", "shipping"):
        world.pass_over(group)
    return key


def test_an_undecided_letter_is_seen_by_key_and_by_a_run_and_only_for_its_group(
    world: System, spark: Any
) -> None:
    key = passed(world, "m:1%'ü")
    letter(world, key.message_id)
    assert by_key(world, key) == {"billing": "DEAD_LETTERED", "shipping": "LOST"}

    def no_audit(run: Run, suites: Sequence[str]) -> None:
        """The suites have tests of their own."""

    run_once(world.settings, world.connections, lambda: spark, no_audit)
    assert world.rows("control", "SELECT consumer_group, verdict FROM verdict ORDER BY 1") == [
        ("billing", "DEAD_LETTERED"),
        ("shipping", "LOST"),
    ]
    assert world.rows("control", "SELECT groups FROM resend_request") == [(["shipping"],)]


@pytest.mark.parametrize("state", ["replaying", "replayed", "discarded"])
def test_a_decided_letter_says_nothing(world: System, state: str) -> None:
    key = passed(world, "m-1")
    letter(world, "m-1", state=state)
    assert by_key(world, key) == {"billing": "LOST", "shipping": "LOST"}


def test_a_letter_without_a_group_counts_for_every_group_and_one_without_a_topic_for_every_topic(
    world: System,
) -> None:
    first, second, third = (passed(world, f"m-{number}") for number in range(3))
    letter(world, "m-0", None)
    letter(world, "m-1", "billing", topic=None)
    letter(world, "m-2", "billing", topic="payments")
    assert by_key(world, first) == {"billing": "DEAD_LETTERED", "shipping": "DEAD_LETTERED"}
    assert by_key(world, second) == {"billing": "DEAD_LETTERED", "shipping": "LOST"}
    assert by_key(world, third) == {"billing": "LOST", "shipping": "LOST"}, (
        "another topic's message of the same id"
    )


def test_a_letter_that_moves_from_the_queue_to_the_store_while_it_is_looked_for_is_seen(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = passed(world, "m-1")
    import redis

    raw, dead = redis.Redis.from_url(world.urls["broker"]), Keys().dead("orders", "billing")
    raw.xadd(
        dead,
        {
            "headers": json.dumps({"backstop-message-id": "m-1", "backstop-topic": "orders"}),
            "origin-topic": "orders",
            "origin-group": "billing",
        },
    )
    raw.sadd(Keys().group("billing"), "orders")
    look = RedisStreams.dead_letters

    def drained_just_before(
        self: RedisStreams, group: str, **options: Any
    ) -> Iterator[DeadLetterRef]:
        if raw.delete(dead):
            letter(world, "m-1")
        return look(self, group, **options)

    assert by_key(world, key)["billing"] == "DEAD_LETTERED", "in the queue"
    # The worst instant: stored and taken from the queue between any read before and the read of the queue.
    monkeypatch.setattr(RedisStreams, "dead_letters", drained_just_before)
    assert by_key(world, key)["billing"] == "DEAD_LETTERED", "in the store"
