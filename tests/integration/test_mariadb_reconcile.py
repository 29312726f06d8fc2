"""A PostgreSQL producer and a MariaDB consumer: each delivery gets the verdict that it gets where the logs are in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from backstop.client import Consumer
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.reconcile import scan_logs
from backstop.reconcile.run_once import run_once
from backstop.watch.parked import look_for_parked
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from maria_world import MariaDatabase, MariaLogWorld, maria_database, maria_server
from mariadb import MariaDB
from scan_world import fill, in_parts, staged
from system import System, settings_dict, system

__all__ = ["in_parts", "maria_server"]
POLICY = {"unknown_horizon": "9m"}


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers, policy=POLICY) as running:
        yield running


@pytest.fixture
def maria(maria_server: MariaDB) -> Iterator[MariaDatabase]:
    with maria_database(maria_server) as database:
        yield database


def moved(world: System, maria: MariaDatabase) -> System:
    """The same system, where billing keeps its logs in MariaDB."""
    stores = {
        "billing_db": {"kind": "mariadb", "connection": "billing_db"},
        "shipping_db": {"connection": "shipping_db"},
    }
    urls = {**world.urls, "billing_db": maria.dsn}
    settings = Settings.model_validate(settings_dict(policy=POLICY, consumers=stores))
    return System(urls, settings, Connections(resolver=urls.get), world.broker)


def copy_logs(world: System, maria: MariaDatabase) -> None:
    """Every row of billing's log as it is, also one that breaks its contract."""
    maria.run("ALTER TABLE consumer_log DROP CONSTRAINT consumer_log_consumed_has_time")
    into = MariaLogWorld.__new__(MariaLogWorld)
    into.database = maria
    for (row,) in world.rows("billing_db", "SELECT row_to_json(l)::text FROM consumer_log l"):
        values = {name: value for name, value in json.loads(row).items() if value is not None}
        for name in ("first_received_at", "updated_at", "consumed_at", "lease_expires_at"):
            if name in values:
                values[name] = datetime.fromisoformat(values[name]).astimezone(UTC)
        into.put_log(**values)


@pytest.mark.parametrize(
    ("seed", "keys_worth"), [(1, 1), (5, 1), (2, 10**9)], ids=["scan", "other scan", "by key"]
)
def test_every_verdict_is_what_it_is_with_logs_in_postgresql(
    world: System,
    maria: MariaDatabase,
    spark: Any,
    in_parts: None,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    keys_worth: int,
) -> None:
    fill(world, seed)
    copy_logs(world, maria)
    monkeypatch.setattr(scan_logs, "KEYS_WORTH_A_SCAN", keys_worth)
    (in_postgresql, broken), counts = staged(world, spark)
    (in_mariadb, broken_there), counts_there = staged(moved(world, maria), spark)
    assert in_mariadb == in_postgresql and broken_there == broken
    assert len(in_mariadb[0]) > 20 and len(broken) > 3, "a world that shows little"
    named = ("deliveries", "asked_by_key", "proven_by_scan")
    assert [counts_there.get(n) for n in named] == [counts.get(n) for n in named]
    assert bool(counts_there.get("proven_by_scan")) == (keys_worth == 1)


def test_a_log_in_an_odd_state_is_set_aside_and_stops_no_repair(
    world: System, maria: MariaDatabase, spark: Any
) -> None:
    """A NUL would be refused with the evidence of every verdict beside it; a state with a space is none of the contract's."""
    states = {"nul": "CONSUMED\0", "padded": "CONSUMED ", "small": "consumed"}
    keys = [world.sent(name) for name in states]
    world.sent("lost")
    for group in ("billing", "shipping"):
        world.pass_over(group)
    for key in keys:
        world.log(key, "shipping")
    with closing(maria.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION check_constraint_checks = 0")
        for name, state in states.items():
            cursor.execute(
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state, first_received_at, updated_at, consumed_at)"
                " SELECT 'billing', 'orders', %s, %s, t, t, t FROM (SELECT UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE AS t) one",
                (name.encode(), state),
            )
        connection.commit()
    there = moved(world, maria)
    run_once(there.settings, there.connections, lambda: spark, lambda *_: None)
    assert world.rows("control", "SELECT message_id, send_number FROM resend_request") == [
        ("lost", 2)
    ]
    set_aside = world.rows("control", "SELECT message_id, reason FROM quarantine ORDER BY 1")
    assert [message_id for message_id, _ in set_aside] == ["nul", "padded", "small"]
    assert all(reason.startswith("unknown state") for _, reason in set_aside)
    statuses = dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))
    assert set(statuses.values()) == {"pending"}, "whether the work is done is not known"


def test_a_message_is_promised_done_and_confirmed_and_a_lost_one_is_found(
    world: System, maria: MariaDatabase, spark: Any
) -> None:
    """The whole way: a stub in PostgreSQL, the guard's log in MariaDB, a run, and the watch's books."""
    there = moved(world, maria)
    done, lost = world.sent("done"), world.sent("lost")
    world.consume("shipping")

    def handle(connection: Any, message: Any, work: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES ('t', %s, 'g', 0)", (message.message_id,))

    with closing(world.broker.subscribe("billing", ["orders"], "worker")) as subscription:
        keep = subscription.fetch

        def fetch(*asked: Any) -> Any:
            """The consumer's broker loses one: it is acknowledged, and nobody works on it."""
            received = keep(*asked)
            gone = [one for one in received if one.message.message_id == "lost"]
            subscription.acknowledge(gone)
            return [one for one in received if one not in gone]

        subscription.fetch = fetch  # type: ignore[method-assign]
        consumer = Consumer(subscription, maria.connect, "billing", handle, member="worker")
        while sum(world.broker.lag("orders", "billing").values()):
            consumer.run_once()
        consumer._ledger.write(0)
        consumer.close()
    run_once(there.settings, there.connections, lambda: spark, lambda *_: None)
    statuses = dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))
    assert statuses == {"done": "confirmed", "lost": "pending"}
    requests = world.rows("control", "SELECT message_id, groups FROM resend_request")
    assert requests == [("lost", ["billing"])]
    assert (done, lost) == (Key("orders", "done"), Key("orders", "lost"))
    with closing(there.control()) as control, Sources(there.settings, there.connections) as sources:
        seen = look_for_parked(sources, control)
    assert sources.unreachable == {} and sorted(seen.looked) == ["billing", "shipping"]
    (kept,) = seen.books
    assert (kept.group, kept.member, kept.counts["done"]) == ("billing", "worker", 1)


def test_a_database_that_is_away_makes_its_own_deliveries_unknown_and_nobody_elses(
    world: System, maria: MariaDatabase, spark: Any
) -> None:
    there = moved(world, maria)
    world.sent("m-1")
    world.consume("shipping")
    world.pass_over("billing")
    there.urls["billing_db"] = "mysql://nobody:s3cret-never-shown@127.0.0.1:1/gone"
    away = System(there.urls, there.settings, Connections(resolver=there.urls.get), there.broker)
    with pytest.raises(StoreUnavailable) as caught:
        run_once(away.settings, away.connections, lambda: spark, lambda *_: None)
    assert "billing_db" in str(caught.value) and "s3cret" not in str(caught.value)
    assert world.rows("control", "SELECT 1 FROM resend_request") == []
    found = world.rows("control", "SELECT DISTINCT consumer_group, verdict FROM verdict ORDER BY 1")
    assert ("billing", "UNKNOWN") in found
