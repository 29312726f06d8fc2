"""A broker that answers without one of its servers, or without one of its queues, is no evidence of a loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.cases.open import open_case
from backstop.decisions.decide import decide
from backstop.evidence.judge_by_key import Judge
from backstop.evidence.read import read_groups
from backstop.evidence.sources import Sources
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import Key
from backstop.reconcile.record import record_looks
from backstop.runs.run import close_run, open_run
from backstop.triage.drain.drain import drain_all
from backstop.watch.sample_groups import History, take_sample
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system

LOST, UNSENT = ("LOST", "passed_over"), ("UNSENT", "not_stored")


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    """With an acknowledged message in each of two queues, and one of unknown outcome; all were passed, none was logged."""
    with system(postgres, valkey) as running:
        while {0, 1} - {
            queue for (queue,) in running.rows("shop_a", "SELECT queue_id FROM message_stub")
        }:
            ((number,),) = running.rows("shop_a", "SELECT count(*) FROM message_stub")
            running.sent(f"m-{number}")
        running.stub("unknown", broker="embedded")
        running.rows(
            "shop_a",
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
            " VALUES ('orders', 'unknown', 1, 'producer', now() - interval '1 minute', 'unknown')",
        )
        for group in ("billing", "shipping"):
            running.pass_over(group)
        yield running


def look(world: System) -> None:
    """What every run does: looks, and remembers what it saw."""
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    with closing(conn), Sources(world.settings, world.connections) as sources:
        with conn, conn.cursor() as cursor:
            record_looks(cursor, run, read_groups(sources, cursor, run.as_of, ["orders"]))
        close_run(conn, run, "done", {})


def judged(world: System) -> dict[int | None, tuple[str, str]]:
    """By queue; null: of the message of unknown outcome."""
    keys = world.rows("shop_a", "SELECT topic, message_id FROM message_stub")
    queues = dict(world.rows("shop_a", "SELECT message_id, queue_id FROM message_stub"))
    conn = world.control()
    with closing(conn), Judge(world.settings, world.connections, conn) as judge:
        found = judge.judge([Key(*key) for key in keys])
    verdicts = {(queues[one.message_id], (str(one.verdict), one.reason)) for one in found}
    assert len(verdicts) == 3, verdicts
    return dict(verdicts)


def drain(world: System) -> None:
    conn = world.control()
    with closing(conn):
        run = open_run(conn, "triage", "*", world.settings)
        try:
            drain_all(world.settings, world.connections, conn, run)
        finally:
            conn.rollback()
            close_run(conn, run, "done", {})


def test_without_a_server_that_was_seen_before_nothing_is_judged_and_nothing_drained(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a name server of RocketMQ forgets a master that is down: every other answer is whole in itself."""
    known = {"broker-a", "broker-b"}
    monkeypatch.setattr(RedisStreams, "servers", lambda self, topic: frozenset(known))
    look(world)
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
    drain(world)
    known.remove("broker-b")
    for _ in range(2):
        assert {verdict for verdict, _ in judged(world).values()} == {"UNKNOWN"}
        with pytest.raises(BrokerUnavailable, match="broker-b"):
            drain(world)
        look(world)  # what it sees now does not replace what was seen
    # Another one in its place is no answer of the missing one.
    known.add("broker-c")
    assert {verdict for verdict, _ in judged(world).values()} == {"UNKNOWN"}
    known.add("broker-b")
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
    drain(world)


def test_servers_that_a_broker_of_another_kind_had_under_the_same_name_are_not_waited_for(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker was a RocketMQ cluster, whose masters were seen, and is Redis Streams now, without an option `removed`."""
    embedded = world.settings.brokers["embedded"]
    was = world.settings.model_copy(
        update={"brokers": {"embedded": embedded.model_copy(update={"kind": "rocketmq"})}}
    )
    with monkeypatch.context() as before:
        before.setattr(RedisStreams, "servers", lambda self, topic: frozenset({"broker-a"}))
        conn = world.control()
        run = open_run(conn, "reconcile", "*", world.settings)
        with closing(conn), Sources(world.settings, world.connections) as sources:
            sources.broker("embedded")  # opened as what it is
            sources.settings = was
            with conn, conn.cursor() as cursor:
                record_looks(cursor, run, read_groups(sources, cursor, run.as_of, ["orders"]))
            close_run(conn, run, "done", {})
    assert world.rows("control", "SELECT kind, server FROM broker_server") == [
        ("rocketmq", "broker-a")
    ]
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
    drain(world)


def test_a_server_is_remembered_also_when_the_look_was_refused_and_by_the_watch(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Any, topic: str, group: str) -> Any:
        raise BrokerUnavailable("There are several brokers.", unaffected="-", next_step="-")

    known = {"broker-a"}
    monkeypatch.setattr(RedisStreams, "servers", lambda self, topic: frozenset(known))
    with monkeypatch.context() as both:
        both.setattr(RedisStreams, "progress", refused)
        known.add("broker-b")
        look(world)
        known.add("broker-c")
        conn = world.control()
        with (
            closing(conn),
            conn,
            conn.cursor() as cursor,
            Sources(world.settings, world.connections) as sources,
        ):
            cursor.execute("SELECT clock_timestamp()")
            take_sample(sources, cursor, cursor.fetchone()[0], History())
    for missing in ("broker-b", "broker-c"):
        known.remove(missing)
        assert {verdict for verdict, _ in judged(world).values()} == {"UNKNOWN"}
        known.add(missing)
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}


def test_a_queue_that_is_gone_is_a_new_life_that_a_person_accepts(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is acknowledged there, or may be there, is asked about, and not called past by the other queues."""
    look(world)
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
    for name in ("queues", "progress"):
        whole = getattr(RedisStreams, name)
        monkeypatch.setattr(
            RedisStreams,
            name,
            lambda self, *of, whole=whole: [one for one in whole(self, *of) if one.queue_id != 1],
        )
    for _ in range(3):
        assert judged(world) == {
            0: LOST,
            1: ("UNKNOWN", "new_epoch"),
            None: ("UNKNOWN", "new_epoch"),
        }
        look(world)
    conn = world.control()
    with closing(conn):
        with conn, conn.cursor() as cursor:
            ((topic, message_id),) = world.rows(
                "shop_a", "SELECT topic, message_id FROM message_stub WHERE queue_id = 1"
            )
            open_case(
                cursor,
                kind="new_epoch",
                topic="orders",
                group="billing",
                subject="",
                severity="critical",
                summary="s",
                evidence={},
                members=[("shop_a", topic, message_id, "billing")],
                run_id=None,
            )
        decided = decide(
            conn,
            world.settings,
            world.connections,
            1,
            "accept",
            "ann",
            "the topic has one queue now",
        )
    assert decided.counts == {"accepted": 1}
    for _ in range(2):
        assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
        look(world)
    # It comes back: its copies go on to be judged by time.
    monkeypatch.undo()
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
    look(world)
    assert judged(world) == {0: LOST, 1: LOST, None: UNSENT}
