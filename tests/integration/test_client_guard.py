"""The guard on real databases, PostgreSQL and MariaDB: every answer of begin, and every end of a lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from backstop.leases import guard, row_lock
from backstop.leases.lease import Acquired, Arrival, Busy, Conflict, Done, Parked, Superseded
from backstop.model.errors import ContractBroken, LeaseLost
from backstop.model.records import Position
from client_world import GROUP, TOPIC, consumer, postgres  # noqa: F401
from maria_world import maria, maria_consumer, maria_server  # noqa: F401

A, B = guard.payload_hash(b"a"), guard.payload_hash(b"b")
ID = "order-1:paid"
ODD_IDS = ["ключ/鍵", "a:b%s%%(x)s", 'it\'s "quoted"', "{0}\\n", " "]


class World:
    """One consumer database and a connection of one worker."""

    now = "clock_timestamp()"
    never = "'infinity'"
    waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def __init__(self, database: Any) -> None:
        self.database = database
        self.connection = database.connect()

    def begin(self, message_id: str = ID, **values: Any) -> guard.Begun:
        values = {"lease_seconds": 60.0, "payload_hash": A, **values}
        begun = guard.begin(self.connection, GROUP, TOPIC, message_id, **values)
        self.connection.commit()
        return begun

    def acquire(self, message_id: str = ID, **values: Any) -> Acquired:
        begun = self.begin(message_id, **values)
        assert isinstance(begun, Acquired)
        return begun

    def end(self, action: Any, *values: Any) -> None:
        action(self.connection, *values)
        self.connection.commit()

    def set(self, assignments: str) -> None:
        """{now} is the database's clock, {never} its latest time."""
        values = assignments.format(now=self.now, never=self.never)
        self.database.run(f"UPDATE consumer_log SET {values}")

    def row(self, message_id: str = ID) -> dict[str, Any]:
        return self.database.one(
            f"SELECT l.*, lease_expires_at > {self.now} AS alive FROM consumer_log l WHERE message_id = %s",
            (message_id,),
        )

    def effects(self) -> int:
        return int(self.database.one("SELECT count(*) AS n FROM effect")["n"])


class InMariaDB(World):
    """The same in MariaDB."""

    now = "UTC_TIMESTAMP(6)"
    never = "'9999-12-31'"
    waiting = (
        "SELECT COUNT(*) AS n FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
    )


@pytest.fixture(params=["consumer", "maria"], ids=["PostgreSQL", "MariaDB"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    database = request.getfixturevalue(request.param)
    world = World(database) if request.param == "consumer" else InMariaDB(database)
    yield world
    world.connection.close()


def test_the_first_begin_writes_the_log_and_grants_the_lease(world: World) -> None:
    lease = world.acquire(position=Position(3, 41, "e1"), content_version=2, owner_host="worker-7")
    row = world.row()
    assert (row["state"], row["owner_token"], row["alive"]) == ("CONSUMING", lease.token, True)
    assert (row["attempts"], row["fence"]) == (1, lease.fence)
    assert (row["queue_id"], row["queue_offset"], row["queue_epoch"]) == (3, 41, "e1")
    assert (bytes(row["payload_hash"]), row["content_version"], row["owner_host"]) == (
        A,
        2,
        "worker-7",
    )
    assert (row["lease_expires_at"] - row["updated_at"]) == timedelta(seconds=60)


def test_begin_does_not_commit(world: World) -> None:
    guard.begin(world.connection, GROUP, TOPIC, ID, payload_hash=A)
    world.connection.rollback()
    assert world.database.run("SELECT 1 FROM consumer_log") == []


@pytest.mark.parametrize("message_id", ODD_IDS)
def test_ids_of_any_kind_are_kept_apart_and_whole(world: World, message_id: str) -> None:
    lease = world.acquire(message_id)
    world.acquire(message_id + "x")
    world.end(guard.complete, lease)
    assert world.row(message_id)["state"] == "CONSUMED"
    assert world.row(message_id + "x")["state"] == "CONSUMING"


def test_a_living_lease_is_busy_is_counted_and_does_not_move_the_time(world: World) -> None:
    world.acquire(lease_seconds=30.0)
    before = world.row()
    begun = world.begin(retry_after=timedelta(seconds=10))
    after = world.row()
    assert begun == Busy(timedelta(seconds=10))
    assert after["duplicates_stopped"] == 1
    same = ("owner_token", "updated_at", "lease_expires_at", "attempts", "fence", "state")
    assert [after[name] for name in same] == [before[name] for name in same]


def test_busy_comes_again_when_the_lease_ends_if_that_is_sooner(world: World) -> None:
    world.acquire(lease_seconds=300.0)
    begun = world.begin(retry_after=timedelta(hours=1))
    assert isinstance(begun, Busy)
    assert timedelta(seconds=100) < begun.retry_after <= timedelta(seconds=300)


@pytest.mark.parametrize("end", ["NULL", "{never}"])
def test_a_lease_without_an_end_is_alive(world: World, end: str) -> None:
    world.acquire()
    world.set(f"lease_expires_at = {end}")
    assert world.begin(retry_after=timedelta(seconds=10)) == Busy(timedelta(seconds=10))


def test_consumed_is_done_is_counted_and_does_not_move_the_time(world: World) -> None:
    world.end(guard.complete, world.acquire())
    before = world.row()
    assert world.begin() == Done()
    after = world.row()
    assert (after["duplicates_stopped"], after["updated_at"]) == (1, before["updated_at"])
    assert after["consumed_at"] is not None
    assert not after["alive"]


@pytest.mark.parametrize(
    "left",
    [
        "lease_expires_at = {now}",
        "state = 'FAILED', lease_expires_at = {now}",
        "state = 'EXPIRED', lease_expires_at = {now}",
        "state = 'FAILED', lease_expires_at = NULL",
    ],
)
def test_what_expired_failed_or_was_reclaimed_is_taken_over(world: World, left: str) -> None:
    old = world.acquire(position=Position(0, 5, "e"))
    world.set(left)
    new = world.acquire(position=Position(1, 9, "e"))
    row = world.row()
    assert (row["state"], row["owner_token"], row["attempts"], row["alive"]) == (
        "CONSUMING",
        new.token,
        2,
        True,
    )
    assert new.fence > old.fence
    assert new.token != old.token
    assert (row["queue_id"], row["queue_offset"]) == (0, 5), "the original position stays"
    assert row["duplicates_stopped"] == 0


@pytest.mark.parametrize("state", ["CONSUMED", "CONSUMING"])
def test_the_same_id_with_another_content_is_a_conflict(world: World, state: str) -> None:
    lease = world.acquire()
    if state == "CONSUMED":
        world.end(guard.complete, lease)
    before = world.row()
    assert world.begin(payload_hash=B) == Conflict()
    after = world.row()
    assert (after["conflicts"], after["duplicates_stopped"]) == (1, 0)
    assert B.hex() in after["last_error"]
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"conflicts", "last_error"}


def test_an_expired_lease_with_another_content_is_a_conflict(world: World) -> None:
    world.acquire()
    world.set("lease_expires_at = {now}")
    assert world.begin(payload_hash=B) == Conflict()


def test_a_failed_log_takes_another_content_and_counts_the_conflict(world: World) -> None:
    world.end(guard.fail, world.acquire(), "no")
    world.acquire(payload_hash=B)
    row = world.row()
    assert (bytes(row["payload_hash"]), row["conflicts"]) == (B, 1)


@pytest.mark.parametrize("left", ["state = 'FAILED'", "lease_expires_at = {now}"])
def test_a_newer_version_replaces_the_content_of_a_log_that_is_not_consumed(
    world: World, left: str
) -> None:
    world.acquire()
    world.set(left)
    world.acquire(payload_hash=B, content_version=2)
    row = world.row()
    assert (bytes(row["payload_hash"]), row["content_version"], row["conflicts"]) == (B, 2, 0)


def test_a_newer_version_waits_for_the_holder_of_the_older_one(world: World) -> None:
    lease = world.acquire()
    assert isinstance(world.begin(payload_hash=B, content_version=2), Busy)
    assert (bytes(world.row()["payload_hash"]), world.row()["content_version"]) == (A, 1)
    world.end(guard.complete, lease)
    assert world.begin(payload_hash=B, content_version=2) == Conflict()


@pytest.mark.parametrize("state", ["CONSUMED", "CONSUMING", "FAILED", "EXPIRED"])
def test_an_older_version_is_superseded(world: World, state: str) -> None:
    world.acquire(content_version=2)
    world.set(f"state = '{state}', consumed_at = {{now}}")
    before = world.row()
    assert world.begin(payload_hash=B, content_version=1) == Superseded()
    after = world.row()
    assert {n for n in before if before[n] != after[n]} <= {"alive"}


def test_parked_is_neither_granted_nor_changed(world: World) -> None:
    world.acquire()
    world.set("state = 'PARKED', lease_expires_at = {now}")
    before = world.row()
    assert world.begin(payload_hash=B, content_version=2) == Parked()
    assert world.row() == before


def test_a_log_without_a_hash_is_no_conflict(world: World) -> None:
    world.end(guard.complete, world.acquire(payload_hash=None))
    assert world.begin(payload_hash=A) == Done()


def test_complete_joins_the_handlers_transaction(world: World) -> None:
    lease = world.acquire()
    with world.connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES ('t', 'm', 'g', 1)")
    guard.complete(world.connection, lease)
    world.connection.rollback()
    assert (world.effects(), world.row()["state"]) == (0, "CONSUMING")


def test_a_worker_that_wakes_up_late_cannot_complete_and_its_effect_is_rolled_back(
    world: World,
) -> None:
    late = world.acquire()
    world.set("lease_expires_at = {now}")
    winner = world.acquire()
    with world.connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES ('t', 'm', 'g', %s)", (late.fence,))
    with pytest.raises(LeaseLost):
        guard.complete(world.connection, late)
    world.connection.rollback()
    assert (world.effects(), world.row()["owner_token"]) == (0, winner.token)
    world.end(guard.complete, winner)
    with pytest.raises(LeaseLost):
        guard.complete(world.connection, winner)


@pytest.mark.parametrize(
    "left", ["state = 'EXPIRED'", "lease_expires_at = {now} - interval '1' hour"]
)
def test_complete_succeeds_after_a_reclaim_while_nobody_else_took_the_lease(
    world: World, left: str
) -> None:
    lease = world.acquire()
    world.set(left)
    world.end(guard.complete, lease)
    assert world.row()["state"] == "CONSUMED"


def test_fail_keeps_a_bounded_error_and_releases_the_lease(world: World) -> None:
    world.end(guard.fail, world.acquire(), "bad \x00 " + "x" * 10_000)
    row = world.row()
    assert (row["state"], row["alive"], len(row["last_error"])) == (
        "FAILED",
        False,
        guard.ERROR_CHARACTERS,
    )
    assert row["lease_expires_at"] is not None, "an empty expiry would be a lease for ever"


@pytest.mark.parametrize(
    "action", [guard.complete, lambda c, x: guard.fail(c, x, "e"), guard.renew]
)
def test_nothing_is_changed_with_a_token_that_is_not_the_owners(world: World, action: Any) -> None:
    late = world.acquire()
    world.set("lease_expires_at = {now}")
    world.acquire()
    before = world.row()
    with pytest.raises(LeaseLost) as raised:
        action(world.connection, late)
    world.connection.commit()
    assert world.row() == before
    assert all((raised.value.what, raised.value.unaffected, raised.value.next_step))


@pytest.mark.parametrize("state", ["FAILED", "PARKED", "CONSUMED"])
def test_what_has_ended_can_be_neither_completed_nor_failed_nor_renewed(
    world: World, state: str
) -> None:
    lease = world.acquire()
    world.set(f"state = '{state}', consumed_at = {{now}}")
    for action in (guard.complete, lambda c, x: guard.fail(c, x, "e"), guard.renew):
        with pytest.raises(LeaseLost):
            action(world.connection, lease)
    assert not guard.give_back(world.connection, lease)


def test_renew_prolongs_and_brings_back_what_was_reclaimed(world: World) -> None:
    lease = world.acquire(lease_seconds=1.0)
    world.set("state = 'EXPIRED', lease_expires_at = {now}")
    world.end(guard.renew, lease)
    row = world.row()
    assert (row["state"], row["alive"], row["owner_token"]) == ("CONSUMING", True, lease.token)
    assert isinstance(world.begin(), Busy)


def test_a_given_back_lease_is_free_at_once_and_was_no_attempt(world: World) -> None:
    lease = world.acquire()
    assert guard.give_back(world.connection, lease)
    world.connection.commit()
    assert (world.row()["state"], world.row()["attempts"]) == ("EXPIRED", 0)
    again = world.acquire()
    assert again.fence > lease.fence
    assert world.row()["attempts"] == 1


def test_many_are_begun_in_order_with_an_answer_for_each(world: World) -> None:
    world.end(guard.complete, world.acquire("done"))
    world.acquire("busy")
    arrivals = [Arrival(TOPIC, name, A) for name in ("z", "done", "a", "busy")]
    begun = guard.begin_many(world.connection, GROUP, arrivals, lease_seconds=60.0)
    world.connection.commit()
    assert [type(b) for b in begun] == [Acquired, Done, Acquired, Busy]
    assert [b.message_id for b in begun if isinstance(b, Acquired)] == ["z", "a"]
    with pytest.raises(ContractBroken):
        guard.begin_many(world.connection, GROUP, [arrivals[0], arrivals[0]])


def test_groups_do_not_share_a_log(world: World) -> None:
    world.end(guard.complete, world.acquire())
    begun = guard.begin(world.connection, "shipping", TOPIC, ID, payload_hash=A)
    world.connection.commit()
    assert isinstance(begun, Acquired)


@pytest.mark.parametrize("start", ["nothing", "expired"])
def test_of_many_workers_that_begin_at_once_exactly_one_gets_the_lease(
    world: World, start: str
) -> None:
    workers, rounds = 4, 15
    for number in range(rounds):
        message_id = f"race-{number}"
        if start == "expired":
            world.acquire(message_id)
            world.set("lease_expires_at = {now}")
        gate = threading.Barrier(workers)
        answers: list[guard.Begun] = []

        def race(message_id: str = message_id, gate: Any = gate, answers: Any = answers) -> None:
            connection = world.database.connect()
            try:
                gate.wait()
                begun = guard.begin(
                    connection, GROUP, TOPIC, message_id, payload_hash=A, lease_seconds=60.0
                )
                connection.commit()
                answers.append(begun)
            finally:
                connection.close()

        threads = [threading.Thread(target=race) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(answer).__name__ for answer in answers) == ["Acquired"] + ["Busy"] * (
            workers - 1
        )
        assert world.row(message_id)["duplicates_stopped"] == workers - 1


def test_a_begin_that_meets_an_uncommitted_complete_waits_and_is_told_done(world: World) -> None:
    guard_before = world.acquire()
    guard.complete(world.connection, guard_before)  # not committed yet

    def meet(connection: Any) -> guard.Begun:
        return guard.begin(connection, GROUP, TOPIC, ID, payload_hash=A)

    assert meanwhile(world, meet) == Done()


def test_a_renewal_that_meets_an_uncommitted_give_back_waits_and_brings_nothing_back(
    world: World,
) -> None:
    """It would hold the message for a lease, for nobody."""
    lease = world.acquire()
    guard.give_back(world.connection, lease)  # not committed yet
    assert meanwhile(world, lambda other: guard.renew_many(other, GROUP, [lease])) == set()
    assert isinstance(world.begin(), Acquired)


@pytest.mark.parametrize("end", ["complete", "fail", "give_back", "record_done", "record_failure"])
def test_a_worker_that_stands_still_before_its_commit_is_ended_by_the_server(
    world: World, end: str
) -> None:
    """`begin` of the message's next delivery waits for its row, and so does the rest of that batch."""
    if isinstance(world, InMariaDB):
        pytest.skip("MariaDB has no such limit for one transaction")

    def limit() -> str:
        with world.connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            return str(cursor.fetchone()[0])

    match end:
        case "complete":
            guard.complete(world.connection, world.acquire())
        case "fail":
            guard.fail(world.connection, world.acquire(), "broke")
        case "give_back":
            assert guard.give_back(world.connection, world.acquire())
        case "record_done":
            assert row_lock.record_done(world.connection, GROUP, Arrival(TOPIC, ID, A))
        case "record_failure":
            assert row_lock.record_failure(world.connection, GROUP, Arrival(TOPIC, ID, A), "broke")
    assert limit() == "10s"
    world.connection.commit()
    assert limit() == "0", "it is that transaction's alone"


def meanwhile(world: World, ask: Callable[[Any], Any]) -> Any:
    """What is answered over another connection to somebody who waits until the world's transaction is committed."""
    answers: list[Any] = []

    def asking() -> None:
        connection = world.database.connect()
        answers.append(ask(connection))
        connection.commit()
        connection.close()

    thread = threading.Thread(target=asking)
    thread.start()
    while not world.database.one(world.waiting)["n"]:
        assert thread.is_alive(), "it did not wait"
        time.sleep(0.2)  # MariaDB shows what it showed before to who asks again within 0.1 s
    world.connection.commit()
    thread.join()
    (answer,) = answers
    return answer


def test_a_newer_version_that_failed_without_a_lease_is_known_to_the_log(world: World) -> None:
    first, edited = Arrival(TOPIC, ID, A), Arrival(TOPIC, ID, B, 2)
    world.end(row_lock.record_failure, GROUP, first, "poison")
    world.end(row_lock.record_failure, GROUP, edited, "deadlock")
    row = world.row()
    assert (bytes(row["payload_hash"]), row["content_version"], row["conflicts"]) == (B, 2, 0)
    assert not row_lock.record_done(world.connection, GROUP, first)
    assert row_lock.why_not(world.connection, GROUP, first) == Superseded()
    world.connection.rollback()
    world.end(row_lock.record_failure, GROUP, Arrival(TOPIC, ID, A, 2), "another content of it")
    assert bytes(world.row()["payload_hash"]) == B
    assert row_lock.record_done(world.connection, GROUP, edited)
    world.connection.commit()
