"""The books of consumers and the owners of queues: written every minute, compared by the watch, shown to people."""

from __future__ import annotations

import json
import random
import threading
from base64 import b85encode
from typing import Any

import psycopg2
import pytest

from backstop.brokers.open import open_broker
from backstop.cli.app import run_app
from backstop.client import Consumer, OrderedConsumer
from backstop.leases import books
from backstop.model.errors import StoreUnavailable
from backstop.model.records import GROUPS_HEADER, Counts, Message
from backstop.reports.metrics import render
from control_world import World, servers, world  # noqa: F401
from parked_world import DATABASE, GROUP, SOON, TOPIC, ParkedWorld


@pytest.fixture
def shop(world: World) -> ParkedWorld:
    return ParkedWorld(world)


def run_until(shop: ParkedWorld, consumer: OrderedConsumer | Consumer, done: Any) -> None:
    """As a service runs it, until the condition holds."""
    stop, ended = threading.Event(), threading.Event()

    def look() -> None:
        while not done() and not ended.wait(0.05):
            pass
        stop.set()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        consumer.run(stop)
    finally:
        ended.set()
        looker.join()


def written(shop: ParkedWorld, member: str = "w1") -> tuple[dict[str, int], int, bool]:
    query = "SELECT counts, in_process, has_ended FROM consumer_books WHERE consumer_group = %s AND member = %s"
    ((counts, in_process, has_ended),) = shop.world.run(DATABASE, query, (GROUP, member))
    return {name: number for name, number in counts.items() if number}, in_process, has_ended


def test_every_message_of_an_ordered_consumer_is_in_one_place_of_its_books(
    shop: ParkedWorld,
) -> None:
    shop.failing = {"a-2"}
    shop.publish("a-1", "a-2", "a-3", "b-1", "b-1", "c-1")
    with open_broker(shop.world.settings, shop.world.connections, "embedded") as broker:
        theirs = {GROUPS_HEADER: json.dumps(["shipping"])}
        broker.publish(
            [
                Message(TOPIC, "d-1", b"{}", theirs),
                Message(TOPIC, "nul", b"{}", partition_key="\x00"),
                Message(TOPIC, "c-1", b"another", partition_key="c"),
            ]
        )
    with shop.worker() as worker:
        run_until(shop, worker, lambda: shop.lag() == 0)
    received = {
        "received": 9,
        "done": 3,
        "duplicates": 1,
        "parked": 2,
        "conflicts": 1,
        "failed": 1,
        "not_for_us": 1,
    }
    assert written(shop) == (received, 0, True)


def test_a_released_message_comes_in_once_more_and_goes_out_again(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    shop.failing = set()
    shop.world.run(DATABASE, "UPDATE parked_key SET state = 'RELEASING', answered_at = now()")
    with shop.worker() as worker:
        worker._looked_at = float("-inf")
        run_until(shop, worker, lambda: shop.parked() == {})
    assert written(shop) == ({"released": 2, "done": 2}, 0, True)
    assert case_id


def test_the_books_are_written_every_minute_and_tell_one_process_from_the_next(
    shop: ParkedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.publish("a-1", "b-1")
    with shop.worker() as worker:
        shop.work(lambda: shop.lag() == 0, worker)
        assert shop.world.run(DATABASE, "SELECT * FROM consumer_books") == []
        worker._ledger._wrote_at -= 60
        worker.step(Counts())
        assert written(shop) == ({"received": 2, "done": 2}, 0, False)
    before = shop.world.run(DATABASE, "SELECT life, started_at FROM consumer_books")
    shop.world.run(
        DATABASE,
        "INSERT INTO consumer_books (consumer_group, member, life, counts, in_process, written_at)"
        " VALUES ('billing', 'gone', '', '{}', 0, now() - interval '2 days')",
    )
    with shop.worker() as worker:
        worker._ledger.write(0)
    assert written(shop) == ({}, 0, False)
    assert shop.world.run(DATABASE, "SELECT life, started_at FROM consumer_books") != before


def test_the_books_of_a_plain_consumer_balance_too(shop: ParkedWorld) -> None:
    dsn = shop.world.postgres.admin_dsn(DATABASE)
    shop.publish("a-1", "b-1", "b-1", "c-1")
    failed: list[str] = []

    def handle(connection: Any, message: Message, work: Any) -> None:
        if message.message_id == "c-1" and not failed:
            failed.append("c-1")
            raise ValueError("once")

    with open_broker(shop.world.settings, shop.world.connections, "embedded") as broker:
        subscription = broker.subscribe(GROUP, [TOPIC], "plain")  # type: ignore[attr-defined]
        consumer = Consumer(
            subscription,
            lambda: psycopg2.connect(dsn),
            GROUP,
            handle,
            wait=SOON,
            retry_after=SOON,
            member="plain",
        )
        run_until(shop, consumer, lambda: shop.lag() == 0)
        consumer.close()
        subscription.close()
    counts, in_process, has_ended = written(shop, "plain")
    assert (counts["received"], counts["done"], counts["failed"], counts["duplicates"]) == (
        5,
        3,
        1,
        1,
    )
    assert (books.difference(counts, in_process), in_process, has_ended) == (0, 0, True)


def test_books_that_do_not_balance_are_a_finding_until_they_do(shop: ParkedWorld) -> None:
    shop.publish("a-1")
    with shop.worker() as worker:
        run_until(shop, worker, lambda: shop.lag() == 0)
    shop.watch()
    assert shop.world.control("SELECT 1 FROM watch_finding WHERE rule = 'books_differ'") == []
    shop.world.run(
        DATABASE, "UPDATE consumer_books SET counts = jsonb_set(counts, '{received}', '4')"
    )
    shop.watch()
    ((severity, body),) = shop.world.control(
        "SELECT severity, body FROM watch_finding WHERE rule = 'books_differ'"
    )
    assert (severity, "w1: 3" in body) == ("critical", True)
    text, _ = render(shop.world.conn, shop.world.settings)
    assert b'backstop_consumer_books_difference{group="billing",member="w1"} 3.0' in text
    shop.world.run(
        DATABASE, "UPDATE consumer_books SET counts = jsonb_set(counts, '{received}', '1')"
    )
    shop.watch()
    assert (
        shop.world.control(
            "SELECT 1 FROM watch_finding WHERE rule = 'books_differ' AND over_at IS NULL"
        )
        == []
    )


@pytest.mark.parametrize(
    "counts", ['{"done": "7"}', '{"received": null}', '{"received": 1e30}', '{"received": 1.5}']
)
def test_books_that_no_consumer_writes_end_no_watch(shop: ParkedWorld, counts: str) -> None:
    """Any program with the group's login can: then nobody would hear of anything any more."""
    shop.world.run(
        DATABASE,
        "INSERT INTO consumer_books (consumer_group, member, life, counts, in_process) VALUES (%s, 'odd', '', %s, 3)",
        (GROUP, counts),
    )
    shop.watch()
    ((body,),) = shop.world.control("SELECT body FROM watch_finding WHERE rule = 'books_differ'")
    assert "odd: -3" in body


def test_a_parked_key_that_no_case_can_be_named_after_is_said_and_ends_no_watch(
    shop: ParkedWorld,
) -> None:
    parks = (
        "INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes)"
        " VALUES (%s, %s, %s, 0, 'PARKED', 1, 1)"
    )
    noise = b85encode(random.Random(1).randbytes(2_200)).decode()[:2_672]
    for key in (noise, "k"):
        shop.world.run(DATABASE, parks, (GROUP, TOPIC, key))
    with pytest.raises(
        StoreUnavailable, match=r"could not ask store .*longer names than any consumer writes"
    ):
        shop.watch()
    assert shop.world.control("SELECT subject FROM case_file WHERE kind = 'key_parked'") == [("k",)]


def test_who_owns_each_queue_its_lag_and_who_drains_is_shown(
    shop: ParkedWorld, capsys: Any
) -> None:
    with shop.worker() as worker:
        shop.work(
            lambda: shop.world.run(DATABASE, "SELECT 1 FROM queue_owner WHERE owner = 'w1'"), worker
        )
        shop.failing = {"*"}
        shop.publish("a-1")
        shop.world.run(DATABASE, "UPDATE queue_owner SET state = 'DRAINING' WHERE queue_id = 0")
        shop.world.run(DATABASE, "UPDATE queue_owner SET expires_at = now() WHERE queue_id = 1")
        shop.watch()
        capsys.readouterr()
        assert run_app(["where", TOPIC, "--queues", "--json"]) == 0
    shown = {one["queue"]: one for one in json.loads(capsys.readouterr().out)}
    assert [(shown[n]["state"], shown[n]["owner"]) for n in (0, 1)] == [
        ("DRAINING", "w1"),
        ("EXPIRED", "w1"),
    ]
    waiting = [shown[n]["waiting"] for n in (0, 1)]
    assert sorted(waiting) == [0, 1]
    assert [shown[n]["waits_since"] is not None for n in (0, 1)] == [
        number == 1 for number in waiting
    ]
    kept = shop.world.control("SELECT queue_id, owner, state, waiting FROM watch_owner ORDER BY 1")
    assert kept == [(0, "w1", "DRAINING", waiting[0]), (1, "w1", "EXPIRED", waiting[1])]
    text, _ = render(shop.world.conn, shop.world.settings)
    assert (
        b'backstop_queue_waiting_messages{group="billing",owner="w1",queue="0",state="DRAINING",topic="orders"}'
        in text
    )
    assert run_app(["where", TOPIC, "--queues"]) == 0
    assert "DRAINING" in capsys.readouterr().out
    shop.world.run(DATABASE, "UPDATE queue_owner SET queue_id = 7 WHERE queue_id = 1")
    assert run_app(["where", TOPIC, "--queues"]) == 0
    assert "GONE" in capsys.readouterr().out, "the broker has no such queue"
