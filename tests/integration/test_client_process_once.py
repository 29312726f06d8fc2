"""Processing once in a loop of one's own, and the three ways: asserted on the log and on the effects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from backstop.client import (
    Consumer,
    Ended,
    Front,
    Holding,
    ProcessOnce,
    RedisExchange,
    RedisGuard,
    Row,
    leased,
    row_lock,
)
from backstop.client.keep_leases import LeaseKeeper
from backstop.leases.lease import Acquired, Busy, Conflict, Done
from backstop.model.errors import ConfigurationError, LeaseLost
from backstop.model.records import GROUPS_HEADER, Message
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, TOPIC, Database, consumer, postgres, valkey

__all__ = ["consumer", "postgres", "valkey"]
MESSAGE = Message(TOPIC, "m-1", b"{}")


@pytest.fixture
def once(consumer: Database) -> Iterator[ProcessOnce]:
    worker = ProcessOnce(consumer.connect, GROUP)
    yield worker
    worker.close()


def effect(connection: Any, message: Message, fence: int = 0) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, %s)",
            (message.topic, message.message_id, GROUP, fence),
        )


def effects(consumer: Database) -> int:
    return int(consumer.one("SELECT count(*) AS n FROM effect")["n"])


def log(consumer: Database) -> dict[str, Any]:
    return consumer.one("SELECT state, attempts, last_error FROM consumer_log")


def test_the_effect_and_the_end_are_one_commit_and_a_second_copy_is_done(
    once: ProcessOnce, consumer: Database
) -> None:
    for _ in range(2):
        with once.holding(MESSAGE) as held:
            if isinstance(held, Holding):
                effect(held.connection, MESSAGE)
        assert once.settles(held)
    assert isinstance(held, Done)
    assert (effects(consumer), log(consumer)["state"]) == (1, "CONSUMED")


def test_an_exception_rolls_back_is_kept_and_raised(once: ProcessOnce, consumer: Database) -> None:
    with pytest.raises(KeyError), once.holding(MESSAGE) as held:
        assert isinstance(held, Holding)
        effect(held.connection, MESSAGE)
        raise KeyError("amount")
    assert isinstance(held, Holding) and held.ended is Ended.FAILED and not once.settles(held)
    assert effects(consumer) == 0
    assert log(consumer) == {"state": "FAILED", "attempts": 1, "last_error": "KeyError: 'amount'"}


def test_an_interrupt_gives_the_lease_back_and_the_attempt_stays_one(
    once: ProcessOnce, consumer: Database
) -> None:
    with pytest.raises(KeyboardInterrupt), once.holding(MESSAGE):
        raise KeyboardInterrupt
    assert log(consumer) == {"state": "EXPIRED", "attempts": 1, "last_error": None}


def test_work_that_another_worker_took_over_is_rolled_back(
    once: ProcessOnce, consumer: Database
) -> None:
    other = ProcessOnce(consumer.connect, GROUP)
    with pytest.raises(LeaseLost), once.holding(MESSAGE) as held:
        assert isinstance(held, Holding)
        effect(held.connection, MESSAGE)
        consumer.run("UPDATE consumer_log SET lease_expires_at = now() - interval '1 s'")
        with other.holding(MESSAGE) as taken:
            assert isinstance(taken, Holding)
            effect(taken.connection, MESSAGE)
    other.close()
    assert effects(consumer) == 1
    assert not once.settles(held) and once.settles(taken)


def test_a_held_message_is_busy_and_another_content_is_a_conflict(
    once: ProcessOnce, consumer: Database
) -> None:
    other = ProcessOnce(consumer.connect, GROUP, retry_after=timedelta(seconds=2))
    with once.holding(MESSAGE), other.holding(MESSAGE) as busy:
        assert busy == Busy(timedelta(seconds=2))
    with other.holding(Message(TOPIC, "m-1", b"other")) as conflict:
        assert isinstance(conflict, Conflict)
    other.close()
    assert not once.settles(busy) and not once.settles(conflict)


def test_a_copy_for_another_group_is_acknowledged_untouched(
    once: ProcessOnce, consumer: Database
) -> None:
    with once.holding(MESSAGE.with_headers({GROUPS_HEADER: '["shipping"]'})) as held:
        assert once.settles(held)
    assert consumer.run("SELECT 1 FROM consumer_log") == []


def test_a_leased_handler_is_never_run_by_two_and_its_failure_is_returned(
    once: ProcessOnce, consumer: Database
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    @leased
    def slow(message: Message, work: Any) -> None:
        seen.append(work.fence)
        inside.set()
        assert go_on.wait(120)

    @leased
    def failing(message: Message, work: Any) -> None:
        raise ValueError("no")

    other = ProcessOnce(consumer.connect, GROUP)
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(other.around(slow)(MESSAGE)))
    thread.start()
    assert inside.wait(120)
    assert isinstance(once.around(slow)(MESSAGE), Busy)
    go_on.set()
    thread.join()
    other.close()
    assert (ended, len(seen)) == ([Ended.PROCESSED], 1)
    assert once.around(failing)(Message(TOPIC, "m-2", b"{}")) is Ended.FAILED


def ship(connection: Any, message: Message, work: Any) -> Row:
    with connection.cursor() as cursor:
        cursor.execute("SELECT shipped FROM parcel WHERE id = %s FOR UPDATE", (message.message_id,))
        if cursor.fetchone()[0]:
            return Row.ALREADY
        cursor.execute("UPDATE parcel SET shipped = true WHERE id = %s", (message.message_id,))
    effect(connection, message)
    return Row.APPLIED


@pytest.fixture
def parcel(consumer: Database) -> None:
    consumer.run(
        "CREATE TABLE IF NOT EXISTS parcel (id text PRIMARY KEY, shipped boolean NOT NULL DEFAULT false)"
    )
    consumer.run("TRUNCATE parcel")
    consumer.run("INSERT INTO parcel VALUES ('m-1')")


def test_under_a_row_s_lock_two_workers_at_once_apply_once(
    once: ProcessOnce, consumer: Database, parcel: None
) -> None:
    blocker = psycopg2.connect(consumer.dsn)
    with blocker.cursor() as cursor:
        cursor.execute("SELECT 1 FROM parcel FOR UPDATE")
    ended: list[Any] = []

    def work() -> None:
        worker = ProcessOnce(consumer.connect, GROUP)
        ended.append(worker.around(row_lock(ship))(MESSAGE))
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    blocker.rollback()
    blocker.close()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in ended) == ["Done", "Ended"]
    assert (effects(consumer), log(consumer)["state"]) == (1, "CONSUMED")


def test_a_row_that_cannot_be_locked_in_time_is_busy_and_no_failure(
    consumer: Database, parcel: None
) -> None:
    worker = ProcessOnce(lambda: consumer.connect(options="-c lock_timeout=100ms"), GROUP)
    blocker = psycopg2.connect(consumer.dsn)
    with blocker.cursor() as cursor:
        cursor.execute("SELECT 1 FROM parcel FOR UPDATE")
    assert isinstance(worker.around(row_lock(ship))(MESSAGE), Busy)
    blocker.rollback()  # a close does not wait until the server has let go of the lock
    blocker.close()
    assert consumer.run("SELECT 1 FROM consumer_log") == []
    assert worker.around(row_lock(ship))(MESSAGE) is Ended.PROCESSED
    worker.close()


def test_a_row_lock_handler_that_does_not_see_its_effect_is_stopped_by_the_log(
    once: ProcessOnce, consumer: Database, parcel: None
) -> None:
    handle = once.around(row_lock(ship))
    assert handle(MESSAGE) is Ended.PROCESSED
    consumer.run("UPDATE parcel SET shipped = false")
    assert isinstance(handle(MESSAGE), Done)
    assert effects(consumer) == 1
    assert (
        consumer.one("SELECT shipped FROM parcel")["shipped"] is False
    )  # rolled back with the effect


def test_a_row_lock_handler_s_failure_is_kept_and_the_next_delivery_applies(
    once: ProcessOnce, consumer: Database, parcel: None
) -> None:
    consumer.run("DELETE FROM parcel")
    assert once.around(row_lock(ship))(MESSAGE) is Ended.FAILED
    assert log(consumer)["state"] == "FAILED"
    consumer.run("INSERT INTO parcel VALUES ('m-1')")
    assert once.around(row_lock(ship))(MESSAGE) is Ended.PROCESSED
    assert (log(consumer)["state"], log(consumer)["attempts"], effects(consumer)) == (
        "CONSUMED",
        2,
        1,
    )


def test_redis_alone_holds_leases_for_leased_handlers_only(valkey: Valkey) -> None:
    guard = RedisGuard(RedisExchange(valkey.url()), "mailer")
    worker = ProcessOnce(None, "mailer", redis=guard)
    done: list[str] = []
    handle = worker.around(leased(lambda message, work: done.append(message.message_id)))
    assert handle(MESSAGE) is Ended.PROCESSED
    assert isinstance(handle(MESSAGE), Done)
    with worker.holding(Message(TOPIC, "m-2", b"{}")) as held:
        assert isinstance(held, Holding) and held.connection is None
    assert worker.settles(held)
    with pytest.raises(ConfigurationError):
        worker.around(ship)
    worker.close()
    assert done == ["m-1"]


def test_what_does_not_fit_together_is_refused(consumer: Database, valkey: Valkey) -> None:
    exchange = RedisExchange(valkey.url())
    for arguments in (
        {"connect": None},
        {"connect": consumer.connect, "redis": RedisGuard(exchange, GROUP)},
        {"connect": consumer.connect, "redis": Front(exchange, "another")},
        {"connect": consumer.connect, "redis": Front(exchange, GROUP, lease=timedelta(seconds=7))},
        {"connect": None, "redis": RedisGuard(exchange, "another")},
        {"connect": None, "redis": RedisGuard(exchange, GROUP, lease=timedelta(seconds=7))},
    ):
        with pytest.raises(ConfigurationError):
            ProcessOnce(group=GROUP, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="row_lock handler"):
        Consumer(
            None,  # type: ignore[arg-type]
            consumer.connect,
            GROUP,
            row_lock(ship),
            redis=Front(exchange, GROUP),
        )


class Unsteady:
    """A lease store whose renewals do what a test says."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.closed = answers, threading.Event()

    def renew(self, leases: Any) -> set[Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return set(leases) if answer else set()

    def close_renewal(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("error", [ValueError("a pool is used up"), KeyError("secret")])
def test_an_error_that_nobody_expected_does_not_end_renewing(error: Exception) -> None:
    store = Unsteady([error, True, False])
    keeper = LeaseKeeper(store, timedelta(seconds=1.5))  # type: ignore[arg-type]
    (lost,) = keeper.hold([Acquired(GROUP, TOPIC, "m-1", "t", 1)]).values()
    assert lost.wait(120), "the third renewal said that the lease is lost"
    keeper.close()
    assert store.closed.wait(120)


def test_a_lease_that_could_not_be_renewed_for_as_long_as_it_lasts_counts_as_lost() -> None:
    keeper = LeaseKeeper(Unsteady([ConnectionError("away")]), timedelta(seconds=0.6))  # type: ignore[arg-type]
    (lost,) = keeper.hold([Acquired(GROUP, TOPIC, "m-1", "t", 1)]).values()
    assert lost.wait(120)
    keeper.close()


def test_a_lease_whose_renewal_hangs_for_as_long_as_it_lasts_counts_as_lost() -> None:
    """Behind a row that somebody has locked, or a line that swallows everything: no error ever comes."""
    answers = threading.Event()

    class Hanging(Unsteady):
        def renew(self, leases: Any) -> set[Any]:
            answers.wait(60)
            return super().renew(leases)

    keeper = LeaseKeeper(Hanging([True]), timedelta(seconds=0.6))  # type: ignore[arg-type]
    (lost,) = keeper.hold([Acquired(GROUP, TOPIC, "m-1", "t", 1)]).values()
    assert lost.wait(120)
    answers.set()
    keeper.close()


@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_that_turned_autocommit_on_fails_and_changes_nothing_for_the_next_one(
    once: ProcessOnce, consumer: Database, raises: bool
) -> None:
    def turn_on(connection: Any, message: Message, work: Any) -> None:
        connection.commit()
        connection.autocommit = True
        if raises:
            raise ValueError("after it")

    def fail(connection: Any, message: Message, work: Any) -> None:
        effect(connection, message)
        raise ValueError("not yet")

    assert once.around(turn_on)(Message(TOPIC, "m-0", b"{}")) is Ended.FAILED
    assert once.around(fail)(MESSAGE) is Ended.FAILED
    assert effects(consumer) == 0
    handle = once.around(lambda connection, message, work: effect(connection, message))
    assert handle(MESSAGE) is Ended.PROCESSED
    assert effects(consumer) == 1
    found = consumer.run("SELECT message_id, state FROM consumer_log ORDER BY message_id")
    assert [(row["message_id"], row["state"]) for row in found] == [
        ("m-0", "FAILED"),
        (MESSAGE.message_id, "CONSUMED"),
    ]
