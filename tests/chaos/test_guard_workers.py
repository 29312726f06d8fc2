"""Workers of the guard that are frozen past their lease, killed in the handler or meet at a row, in each of the three ways."""

from __future__ import annotations

import signal
import threading
from itertools import count
from typing import Any

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import Row, row_lock
from backstop.model.records import Message
from backstop_lab.chaos.servers import Server
from client_world import Database
from fault_world import (  # noqa: F401
    AN_HOUR,
    SOON,
    Child,
    Fleet,
    Servers,
    assert_once,
    broker,
    database,
    effects,
    fronted,
    grants,
    guarding,
    nothing_left,
    publish,
    servers,
    until,
)
from guard_handlers import apply_under_lock, insert_effect


@pytest.mark.parametrize("redis_too", [False, True], ids=["database", "front"])
def test_a_worker_frozen_past_its_lease_wakes_up_rolls_back_and_the_effect_is_there_once(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams, redis_too: bool
) -> None:
    url = guarding.url("") if redis_too else None
    publish(broker, 0, 1)
    with Child(servers, "m-0", redis=url) as late:
        late.wait_until_started()
        assert late.line() == ["begun", "m-0"]
        late.send(signal.SIGSTOP)
        with Child(servers, None, redis=url) as next_one:
            next_one.wait_until_started()
            assert next_one.line() == ["begun", "m-0"]
            until("the other's end", lambda: effects(database) == 1)
            late.send(signal.SIGCONT)
            late.go_on()
            until("the broker's end", lambda: nothing_left(broker))
            counts = late.ended()
            next_one.ended()
    assert counts["lease_lost"] == 1 and "processed" not in counts
    assert grants(database) == [("m-0", 2)]
    assert_once(database, broker, 1)


def test_a_leased_worker_that_wakes_up_late_is_refused_by_a_downstream_that_checks_the_fence(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams
) -> None:
    publish(broker, 0, 1)
    with Child(servers, "m-0", way="leased", redis=guarding.url("")) as late:
        late.wait_until_started()
        assert late.line() == ["begun", "m-0"]
        late.send(signal.SIGSTOP)
        with Child(servers, None, way="leased", redis=guarding.url("")) as next_one:
            until(
                "the other's end",
                lambda: database.run("SELECT 1 FROM consumer_log WHERE state = 'CONSUMED'"),
            )
            late.send(signal.SIGCONT)
            late.go_on()
            until("the broker's end", lambda: nothing_left(broker))
            assert late.ended()["lease_lost"] == 1
            assert next_one.ended()["processed"] == 1
    assert database.run(
        "SELECT d.message_id, l.attempts, d.applied FROM downstream d JOIN consumer_log l USING (message_id, fence)"
    ) == [{"message_id": "m-0", "attempts": 2, "applied": 1}]


@pytest.mark.parametrize("way", ["transactional", "row_lock"])
def test_a_worker_killed_in_its_handler_has_no_effect_and_the_next_one_has_it_once(
    servers: Servers, database: Database, broker: RedisStreams, way: str
) -> None:
    database.run("INSERT INTO account (message_id) VALUES ('m-0')")
    publish(broker, 0, 1)
    with Child(servers, "m-0", way=way) as doomed:
        doomed.wait_until_started()
        assert doomed.line() == ["begun", "m-0"]
        with Child(servers, None, way=way) as next_one:
            doomed.send(signal.SIGKILL)
            until("the broker's end", lambda: nothing_left(broker))
            assert next_one.ended()["processed"] == 1
    assert_once(database, broker, 1)


def test_two_workers_that_meet_at_a_business_row_apply_each_message_once(
    servers: Servers, database: Database, broker: RedisStreams
) -> None:
    size = 60
    database.run(
        "INSERT INTO account (message_id) SELECT 'm-' || n FROM generate_series(0, %s) AS n",
        (size - 1,),
    )
    met, turns = threading.Barrier(2), count()

    def handle(connection: Any, message: Message, work: Any) -> Row:
        if message.message_id == "m-0" and next(turns) < 2:
            met.wait(120)  # two of the workers stand before one row at once, each with a copy
        return apply_under_lock(connection, message)

    publish(broker, 0, size, copies=3)
    with Fleet(servers, row_lock(handle), lambda: None).at_work() as fleet:
        until("the end", lambda: nothing_left(broker))
        counts = fleet.counts
    assert database.one("SELECT min(applied), max(applied) FROM account") == {"min": 1, "max": 1}
    assert counts["processed"] == size and counts["done"] >= 2 * size
    assert_once(database, broker, size)


def test_a_handler_that_does_not_look_at_its_row_is_stopped_by_the_log(
    servers: Servers, database: Database, broker: RedisStreams
) -> None:
    def handle(connection: Any, message: Message, work: Any) -> Row:
        insert_effect(connection, message, work)
        return Row.APPLIED

    publish(broker, 0, 40, copies=3)
    with Fleet(servers, row_lock(handle), lambda: None).at_work() as fleet:
        until("the end", lambda: nothing_left(broker))
        counts = fleet.counts
    assert counts["processed"] == 40 and counts["done"] >= 80
    assert_once(database, broker, 40)
