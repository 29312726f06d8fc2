"""Workers whose logs and effects are in MariaDB: several at once, one frozen past its lease, one killed, a server that is away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import Consumer, Front, RedisExchange, Row, row_lock
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts, Message
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, TOPIC, broker, open_broker, valkey  # noqa: F401
from fault_world import SOON, Child, nothing_left, publish, until
from guard_handlers import apply_under_lock, insert_effect
from maria_world import MariaDatabase, maria, maria_consumer, maria_server  # noqa: F401
from mariadb import MariaDB

LEASE = timedelta(seconds=30)


class Places:
    """What a Child asks of its servers."""

    def __init__(self, database: MariaDatabase, valkey: Valkey) -> None:
        self.database, self.broker_server = database, valkey
        self.faketime = None


@pytest.fixture
def places(maria: MariaDatabase, valkey: Valkey) -> Places:
    return Places(maria, valkey)


@pytest.fixture
def account(maria: MariaDatabase) -> Iterator[MariaDatabase]:
    maria.run(
        "CREATE TABLE account (message_id varchar(64) PRIMARY KEY, applied integer NOT NULL DEFAULT 0)"
    )
    yield maria
    maria.run("DROP TABLE account")


def at_work(
    database: MariaDatabase, valkey: Valkey, way: Any, *, fronted: bool, done: Any, workers: int = 3
) -> Counts:
    """Workers in threads, until `done()`; what they counted."""
    stop, total, failed = threading.Event(), Counts(), []

    def work(number: int) -> None:
        front = (
            Front(RedisExchange(valkey.url()), GROUP, lease=LEASE, retry_after=SOON)
            if fronted
            else None
        )
        try:
            with open_broker(valkey.url()) as broker:
                consumer = Consumer(
                    broker.subscribe(GROUP, [TOPIC], f"worker-{number}"),
                    database.connect,
                    GROUP,
                    way,
                    redis=front,
                    lease=LEASE,
                    retry_after=SOON,
                    batch=5,
                    wait=SOON,
                    member=f"worker-{number}",
                )
                counts = consumer.run(stop)
                consumer.close()
        except BaseException as error:
            failed.append(error)
            raise
        with threading.Lock():
            for name, value in counts.items():
                total.add(name, value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    try:
        until("the end", done)
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert not failed
    return total


def assert_once(database: MariaDatabase, broker: RedisStreams, size: int) -> None:
    found = database.run("SELECT message_id, COUNT(*) AS n FROM effect GROUP BY message_id")
    assert {row["message_id"]: row["n"] for row in found} == {f"m-{n}": 1 for n in range(size)}
    states = database.run("SELECT DISTINCT state FROM consumer_log")
    assert [row["state"] for row in states] == ["CONSUMED"]
    assert nothing_left(broker) and list(broker.dead_letters(GROUP)) == []


@pytest.mark.parametrize("fronted", [False, True], ids=["database", "front"])
def test_workers_at_once_do_each_message_once_however_many_copies_come(
    maria: MariaDatabase, broker: RedisStreams, valkey: Valkey, fronted: bool
) -> None:
    publish(broker, 0, 120, copies=3)
    counts = at_work(
        maria, valkey, insert_effect, fronted=fronted, done=lambda: nothing_left(broker)
    )
    assert counts["processed"] == 120 and counts.get("failed", 0) == 0
    assert_once(maria, broker, 120)
    books = maria.run("SELECT member, has_ended FROM consumer_books ORDER BY member")
    assert [(row["member"], row["has_ended"]) for row in books] == [
        (f"worker-{number}", 1) for number in range(3)
    ]


def test_workers_that_meet_at_a_business_row_apply_each_message_once(
    account: MariaDatabase, broker: RedisStreams, valkey: Valkey
) -> None:
    for number in range(40):
        account.run("INSERT INTO account (message_id) VALUES (%s)", (f"m-{number}",))

    def handle(connection: Any, message: Message, work: Any) -> Row:
        return apply_under_lock(connection, message)

    publish(broker, 0, 40, copies=3)
    counts = at_work(
        account, valkey, row_lock(handle), fronted=False, done=lambda: nothing_left(broker)
    )
    assert account.one("SELECT MIN(applied) AS least, MAX(applied) AS most FROM account") == {
        "least": 1,
        "most": 1,
    }
    assert counts["processed"] == 40
    assert_once(account, broker, 40)


def test_a_row_handler_that_does_not_look_is_stopped_by_the_log(
    maria: MariaDatabase, broker: RedisStreams, valkey: Valkey
) -> None:
    def handle(connection: Any, message: Message, work: Any) -> Row:
        insert_effect(connection, message, work)
        return Row.APPLIED

    publish(broker, 0, 30, copies=3)
    counts = at_work(
        maria, valkey, row_lock(handle), fronted=False, done=lambda: nothing_left(broker)
    )
    assert counts["processed"] == 30
    assert_once(maria, broker, 30)


@pytest.mark.parametrize("fronted", [False, True], ids=["database", "front"])
def test_a_worker_frozen_past_its_lease_wakes_up_rolls_back_and_the_effect_is_there_once(
    places: Places, broker: RedisStreams, valkey: Valkey, fronted: bool
) -> None:
    url = valkey.url() if fronted else None
    publish(broker, 0, 1)
    with Child(places, "m-0", redis=url) as late:  # type: ignore[arg-type]
        late.wait_until_started()
        assert late.line() == ["begun", "m-0"]
        late.send(signal.SIGSTOP)
        with Child(places, None, redis=url) as next_one:  # type: ignore[arg-type]
            next_one.wait_until_started()
            assert next_one.line() == ["begun", "m-0"]
            until("the other's end", lambda: places.database.run("SELECT 1 FROM effect"))
            late.send(signal.SIGCONT)
            late.go_on()
            until("the broker's end", lambda: nothing_left(broker))
            counts = late.ended()
            next_one.ended()
    assert counts["lease_lost"] == 1 and "processed" not in counts
    assert places.database.one("SELECT attempts FROM consumer_log")["attempts"] == 2
    assert_once(places.database, broker, 1)


@pytest.mark.parametrize("way", ["transactional", "row_lock"])
def test_a_worker_killed_in_its_handler_has_no_effect_and_the_next_one_has_it_once(
    places: Places, account: MariaDatabase, broker: RedisStreams, way: str
) -> None:
    account.run("INSERT INTO account (message_id) VALUES ('m-0')")
    publish(broker, 0, 1)
    with Child(places, "m-0", way=way) as doomed:  # type: ignore[arg-type]
        doomed.wait_until_started()
        assert doomed.line() == ["begun", "m-0"]
        with Child(places, None, way=way) as next_one:  # type: ignore[arg-type]
            doomed.send(signal.SIGKILL)
            until("the broker's end", lambda: nothing_left(broker))
            assert next_one.ended()["processed"] == 1
    assert_once(account, broker, 1)


def test_with_the_server_away_or_hanging_nothing_is_begun_and_nothing_acknowledged(
    maria: MariaDatabase, maria_server: MariaDB, broker: RedisStreams, valkey: Valkey
) -> None:
    begun: list[str] = []

    def handle(connection: Any, message: Message, work: Any) -> None:
        begun.append(message.message_id)
        insert_effect(connection, message, work)

    publish(broker, 0, 20)
    with open_broker(valkey.url()) as streams:
        consumer = Consumer(
            streams.subscribe(GROUP, [TOPIC], "worker"),
            lambda: maria.connect(read_timeout=1),
            GROUP,
            handle,
            retry_after=SOON,
            wait=SOON,
        )
        while not nothing_left(broker):
            # A server on a machine that stands still takes longer to answer, too.
            with suppress(StoreUnavailable):
                consumer.run_once()
        so_far = len(begun)
        publish(broker, 20, 40)
        process = maria_server._child.pid
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        stop, counts = threading.Event(), Counts()
        worker = threading.Thread(target=consumer.run, args=(stop,), kwargs={"counts": counts})
        worker.start()
        try:
            until("refusals", lambda: counts.get("unavailable", 0) >= 2)
            assert len(begun) == so_far and sum(broker.lag(TOPIC, GROUP).values()) == 20
        finally:
            os.kill(process, signal.SIGCONT)
        maria_server.stop()
        refused = counts["unavailable"]
        try:
            until("refusals", lambda: counts["unavailable"] >= refused + 2)
        finally:
            maria_server.start()
        until("the end", lambda: nothing_left(broker))
        stop.set()
        worker.join(120)
        consumer.close()
    assert sorted(set(begun)) == sorted(f"m-{n}" for n in range(40))
    assert_once(maria, broker, 40)
