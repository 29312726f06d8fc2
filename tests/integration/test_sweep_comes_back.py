"""After a lease was taken back its message comes back: by the broker, else through STALLED; shown from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import Consumer, Work
from backstop.leases import guard
from backstop.leases.lease import Acquired, Arrival
from backstop.model.records import Key, Message
from backstop.reconcile.run_once import run_once
from backstop.resend.run_once import run_duty as resend
from backstop.runs.run import Run
from backstop.sweep.run_once import run_duty as sweep
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    with system(postgres, valkey) as running:
        yield running


def die_holding(world: System, key: Key, *, acknowledged: bool) -> Acquired:
    """A worker of billing began the message and is gone; `acknowledged`: the broker has nothing left to redeliver."""
    subscription = world.broker.subscribe("billing", ["orders"], "the dead worker")
    received = subscription.fetch(10, timedelta(seconds=5))
    assert [one.message.key for one in received] == [key]
    connection = psycopg2.connect(world.urls["billing_db"])
    with connection:
        (lease,) = guard.begin_many(
            connection,
            "billing",
            [Arrival(key.topic, key.message_id, position=received[0].position)],
            lease_seconds=60,
        )
    connection.close()
    if acknowledged:
        subscription.acknowledge(received)
    assert isinstance(lease, Acquired)
    world.rows(
        "billing_db",
        "UPDATE consumer_log SET lease_expires_at = clock_timestamp() - interval '1 s'",
    )
    return lease


def consume(world: System, key: Key) -> list[int]:
    """A living worker of billing, until the message is done; the fences its handler saw for it."""
    fences: list[int] = []

    def handler(connection: Any, message: Message, work: Work) -> None:
        if message.key == key:
            fences.append(work.fence)

    broker = RedisStreams(world.urls["broker"], visibility=timedelta(seconds=1))
    subscription = broker.subscribe("billing", ["orders"], "the living worker")
    consumer = Consumer(
        subscription,
        lambda: psycopg2.connect(world.urls["billing_db"]),
        "billing",
        handler,
        retry_after=timedelta(seconds=1),
        wait=timedelta(seconds=1),
    )
    for _ in range(60):
        consumer.run_once()
        if state(world) == "CONSUMED":
            break
    consumer.close()
    subscription.close()
    broker.close()
    return fences


def state(world: System) -> str:
    ((found,),) = world.rows("billing_db", "SELECT state FROM consumer_log")
    return str(found)


def test_the_broker_delivers_again_what_a_dead_worker_held(world: System) -> None:
    key = world.sent("held")
    held = die_holding(world, key, acknowledged=False)
    assert sweep(world.settings, world.connections)["reclaim"] == 1
    assert state(world) == "EXPIRED"
    (fence,) = consume(world, key)
    assert fence > held.fence
    assert state(world) == "CONSUMED"


def test_what_the_broker_has_given_up_is_stalled_and_resent(world: System, spark: Any) -> None:
    key = world.sent("given up")
    world.consume("shipping")
    held = die_holding(world, key, acknowledged=True)
    sweep(world.settings, world.connections)
    # Time passes: the group's last touch is beyond the redelivery horizon, and it passed the message long ago.
    world.rows(
        "billing_db",
        "UPDATE consumer_log SET updated_at = now() - interval '30 s', first_received_at = updated_at",
    )
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now() - interval '1 s'")

    def audit(run: Run, suites: Sequence[str]) -> None:
        """The suites have tests of their own."""

    for _ in range(2):  # the first run records the progress that the second looks back to
        run_once(world.settings, world.connections, lambda: spark, audit)
        for table in ("progress", "progress_history"):
            world.rows("control", f"UPDATE {table} SET recorded_at = recorded_at - interval '30 s'")
        world.rows("shop_a", "UPDATE message_stub SET next_check_at = now() - interval '1 s'")
    verdicts = world.rows(
        "control", "SELECT DISTINCT consumer_group, verdict FROM verdict WHERE verdict = 'STALLED'"
    )
    assert verdicts == [("billing", "STALLED")]
    resend(world.settings, world.connections)
    (fence,) = consume(world, key)
    assert fence > held.fence
    assert state(world) == "CONSUMED"
    assert world.rows(
        "shop_a", "SELECT send_number, requested_by FROM send_attempt ORDER BY 1"
    ) == [(1, "producer"), (2, "request 1")]
