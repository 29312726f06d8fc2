"""Ordering keys on real databases and a real broker: one at a time, in sequence, to the key's queue; a gap is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.brokers.redis_streams.keys import queue_of
from backstop.client import SendPolicy, record, send
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.model.records import Key
from resend_world import TOPIC, World, servers, world  # noqa: F401


def chain(world: World, *messages: str, key: str = "k", shard: str = "a", **columns: Any) -> None:
    """Messages of one key, in sequence."""
    for number, message_id in enumerate(messages, 1):
        world.stubs([message_id], shard, ordering_key=key, sequence=number, **columns)


def out(world: World) -> list[str]:
    return sorted(message_id for message_id, _ in world.copies())


def due_again(world: World) -> None:
    world.sql(
        "control",
        "UPDATE resend_request SET not_before = now() - interval '1 second' WHERE state = 'open'",
    )


def confirmed(world: World, message_id: str, status: str = "confirmed", shard: str = "a") -> None:
    world.sql(
        f"producer_{shard}",
        "UPDATE message_stub SET status = %s WHERE message_id = %s",
        [status, message_id],
    )


def cases(world: World) -> list[tuple[Any, ...]]:
    return world.sql(
        "control", "SELECT case_id, kind, subject, state FROM case_file ORDER BY case_id"
    )


def decided(world: World, case_id: int, action: str) -> None:
    connection = connect(world.settings, world.connections)
    try:
        decide(connection, world.settings, world.connections, case_id, action, "ann", "because")
    finally:
        connection.close()


@pytest.mark.parametrize("done", ["confirmed", "voided"])
def test_of_one_key_one_message_is_under_way_at_a_time_in_sequence(world: World, done: str) -> None:
    chain(world, "z", "b", "c")
    chain(world, "other", key="l")
    world.ask(["b", "c", "z", "other"])
    world.resend()
    assert out(world) == ["other", "z"], (
        "the first by sequence, not by id; another key does not wait"
    )
    assert world.request("b")["error"] == "ordering: waits until z of key 'k' is done"
    due_again(world)
    world.resend()
    assert out(world) == ["other", "z"], "sent is not done"
    confirmed(world, "z", done)
    due_again(world)
    world.resend()
    assert out(world) == ["b", "other", "z"]
    confirmed(world, "b")
    due_again(world)
    world.resend()
    assert out(world) == ["b", "c", "other", "z"] and cases(world) == []


def test_without_a_sequence_the_order_is_that_of_creation_then_of_ids(world: World) -> None:
    world.stubs(["b", "a"], ordering_key="k")
    world.stubs(["late"], ordering_key="k")
    world.sql(
        "producer_a", "UPDATE message_stub SET created_at = '2026-01-01' WHERE message_id = 'late'"
    )
    with world.run() as run, world.worker(run) as worker:
        found = worker.judge.sources.shard("shop_a").neighbours(
            [Key(TOPIC, i) for i in ("a", "b", "late", "no such")]
        )
    assert {key.message_id: near.open_before for key, near in found.items()} == {
        "a": "late",
        "b": "late",
        "late": None,
    }
    confirmed(world, "late")
    with world.run() as run, world.worker(run) as worker:
        found = worker.judge.sources.shard("shop_a").neighbours([Key(TOPIC, "b")])
    assert found[Key(TOPIC, "b")].open_before == "a"


def test_a_message_waits_behind_one_that_still_travels_its_first_way(world: World) -> None:
    chain(world, "first", send_count=1)
    world.stubs(["second"], ordering_key="k", sequence=2)
    world.ask(["second"])
    world.resend()
    assert out(world) == [] and cases(world) == []


def test_a_gap_whose_later_messages_may_have_been_sent_is_a_case_and_a_person_may_send_it(
    world: World,
) -> None:
    chain(world, "gap")
    world.stubs(["later"], ordering_key="k", sequence=2, send_count=1, status="confirmed")
    world.ask(["gap"])
    world.resend()
    assert out(world) == []
    ((case_id, kind, subject, state),) = cases(world)
    assert (kind, subject, state) == ("order_gap", "k", "open")
    assert world.sql("control", "SELECT message_id FROM case_member") == [("gap",)]
    assert world.sql("control", "SELECT evidence->>'in_the_way' FROM case_file") == [("later",)]
    due_again(world)
    world.resend()
    assert len(cases(world)) == 1, "asked once"

    decided(world, case_id, "resend")
    world.resend()
    assert out(world) == ["gap"]


def test_a_later_message_that_the_broker_refused_makes_no_gap(world: World) -> None:
    chain(world, "first")
    world.stubs(["later"], ordering_key="k", sequence=2, send_count=1, refusals=1)
    world.ask(["first"])
    world.resend()
    assert out(world) == ["first"] and cases(world) == []


def test_the_policy_may_resend_into_a_gap(world: World) -> None:
    world.set("topics", TOPIC, "policy", to={"ordering_gap": "resend"})
    chain(world, "gap")
    world.stubs(["later"], ordering_key="k", sequence=2, send_count=1, status="confirmed")
    world.ask(["gap"])
    world.resend()
    assert out(world) == ["gap"] and cases(world) == []


def test_an_exhausted_message_parks_its_key_in_one_case(world: World) -> None:
    chain(world, "first", "second", "third")
    confirmed(world, "first", "exhausted")
    world.ask(["second", "third"])
    world.resend()
    assert out(world) == []
    ((case_id, kind, subject, state),) = cases(world)
    assert (kind, subject, state) == ("order_parked", "k", "open")
    assert "parked behind first, which is EXHAUSTED" in world.request("second")["error"]
    decided(world, case_id, "resend")
    world.resend()
    assert out(world) == ["second"], "a person sends behind what is stuck, one at a time"
    assert world.request("third")["error"] == "ordering: waits until second of key 'k' is done"
    due_again(world)
    world.resend()
    assert out(world) == ["second"], "sent is not done"
    confirmed(world, "second")
    due_again(world)
    world.resend()
    assert out(world) == ["second", "third"]


def test_a_person_lets_no_group_that_a_machine_asked_for_into_a_gap(world: World) -> None:
    chain(world, "gap")
    world.stubs(["later"], ordering_key="k", sequence=2, send_count=1, status="confirmed")
    world.ask(["gap"], groups=("shipping",))
    world.ask(["gap"], groups=("billing",), by="case 1")
    world.consume("gap", "billing")
    world.resend()
    assert out(world) == []
    assert [kind for _, kind, _, _ in cases(world)] == ["order_gap"]


def test_a_person_who_sends_behind_what_is_stuck_overtakes_nothing_that_is_on_its_way(
    world: World,
) -> None:
    chain(world, "first", "second", "third")
    confirmed(world, "first", "exhausted")
    world.ask(["third"], by="case 1")
    world.resend()
    assert out(world) == [], "second is neither stuck nor done"
    assert world.request("third")["error"] == "ordering: waits until second of key 'k' is done"
    confirmed(world, "second", "exhausted")
    due_again(world)
    world.resend()
    assert out(world) == ["third"]


def test_what_is_stuck_for_one_group_and_on_its_way_to_another_is_not_overtaken_by_a_person(
    world: World,
) -> None:
    chain(world, "first", "second")
    world.consume("first", "billing", state="PARKED")
    world.ask(["first", "second"], by="case 1", groups=("shipping",))
    world.resend()
    assert out(world) == ["first"]
    due_again(world)
    world.resend()
    assert out(world) == ["first"], "its copy for shipping is not done"
    world.consume("first", "shipping")
    due_again(world)
    world.resend()
    assert out(world) == ["first", "second"]


def test_a_long_line_of_stuck_messages_is_walked_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstop.resend.order._PAGE", 2)
    names = [f"m{number}" for number in range(7)]
    chain(world, *names, "last")
    for message_id in names:
        confirmed(world, message_id, "exhausted")
    world.ask(["last"], by="case 1")
    confirmed(world, "m5", "pending")
    world.resend()
    assert out(world) == [] and "waits until m5" in world.request("last")["error"]
    confirmed(world, "m5", "exhausted")
    due_again(world)
    world.resend()
    assert out(world) == ["last"]


def test_messages_of_one_key_on_two_topics_or_without_a_key_do_not_wait(world: World) -> None:
    chain(world, "a")
    world.stubs(["b"], topic="payments", ordering_key="k", sequence=2)
    world.stubs(["c"])
    world.ask(["a", "c"])
    world.ask(["b"], topic="payments")
    world.resend()
    assert out(world) == ["a", "c"] and world.copies("payments") == {("b", "1"): 1}


@pytest.mark.parametrize("key", ["k", "a key: ünï%", "x" * 300])
def test_first_sends_and_resends_of_a_key_lie_in_the_keys_queue(world: World, key: str) -> None:
    connection = psycopg2.connect(world.urls["backstop_producer_a"])
    policy = SendPolicy(timedelta(seconds=30), timedelta(seconds=20), timedelta(seconds=5))
    with connection, connection.cursor():
        recorded = record(
            connection,
            TOPIC,
            b"{}",
            message_id="first",
            ordering_key=key,
            sequence=1,
            policy=policy,
        )
    with RedisStreams(world.urls["backstop_broker"]) as broker:
        send(recorded, broker, lambda: psycopg2.connect(world.urls["backstop_producer_a"]))
    connection.close()
    confirmed(world, "first")
    world.stubs(["resent-1"], ordering_key=key, sequence=2)
    world.ask(["resent-1"])
    world.resend()
    assert {world.stub(i)["queue_id"] for i in ("first", "resent-1")} == {queue_of(key, 2)}
