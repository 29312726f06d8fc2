"""The guard where a server's clock is set back by an hour, or a worker's own is wrong: no two holders, no work lost."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client.lease_store import LeaseStore
from backstop.leases.lease import Acquired, Busy, Done
from backstop.model.errors import LeaseLost
from backstop_lab.chaos.servers import Server
from client_world import GROUP, TOPIC, Database
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
from guard_world import GuardWorld, acquired, arrival


def work(store: LeaseStore, lease: Acquired) -> None:
    """An effect and the end in one transaction."""
    with store.completing(lease) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, %s)",
            (lease.topic, lease.message_id, GROUP, lease.fence),
        )


SHORT = timedelta(seconds=1)


def past(lease: timedelta) -> None:
    ends = time.monotonic() + lease.total_seconds() * 1.1
    until("the end of a lease", lambda: time.monotonic() > ends)


@pytest.mark.parametrize("kind", ["database", "front"])
def test_a_database_clock_set_back_by_an_hour_makes_no_second_holder_and_loses_no_work(
    servers: Servers, database: Database, guarding: Server, kind: str
) -> None:
    world = GuardWorld(kind, database, guarding.url(""))
    one, other = world.worker(lease=SHORT), world.worker(lease=SHORT)
    alive, dead = (acquired(begun) for begun in one.begin([arrival("alive"), arrival("dead")]))
    servers.database_server.skew(-AN_HOUR)
    past(SHORT)
    for begun in other.begin([arrival("alive"), arrival("dead")]):
        assert isinstance(begun, Busy) and begun.retry_after <= timedelta(seconds=10), (
            "asked again soon, not in an hour"
        )
    assert one.renew([alive]) == {alive}
    work(one, alive)
    assert other.begin([arrival("alive")]) == [Done()]
    (under,) = one.begin([arrival("under the wrong clock")])
    servers.database_server.skew(0.0)
    (again,) = other.begin([arrival("dead")])
    work(other, acquired(again))
    with pytest.raises(LeaseLost):
        work(one, dead)
    world.end_in_redis("under the wrong clock")
    (taken,) = other.begin([arrival("under the wrong clock")])
    with pytest.raises(LeaseLost):
        work(
            one, acquired(under)
        )  # as old as an hour, all of a sudden: it is taken over, and has no effect
    work(other, acquired(taken))
    assert grants(database) == [("alive", 1), ("dead", 2), ("under the wrong clock", 2)]
    world.close()


def test_a_redis_clock_set_back_by_an_hour_keeps_no_message_from_the_database(
    database: Database, guarding: Server
) -> None:
    world = GuardWorld("front", database, guarding.url(""))
    one, other = world.worker(), world.worker()
    late, done = (acquired(begun) for begun in one.begin([arrival("late"), arrival("done")]))
    guarding.skew(-AN_HOUR)
    assert isinstance(other.begin([arrival("late")])[0], Busy), "the database says so"
    database.end_lease(GROUP, TOPIC, "late", 1.0)
    (taken,) = other.begin([arrival("late")])
    assert isinstance(taken, Acquired), "Redis calls it held for an hour; nobody believes it"
    with pytest.raises(LeaseLost):
        work(one, late)
    work(other, taken)
    work(one, done)
    assert world.worker().begin([arrival("late"), arrival("done")]) == [Done(), Done()]
    assert grants(database) == [("done", 1), ("late", 2)]
    world.close()


def test_with_redis_alone_a_clock_set_back_makes_no_second_holder_and_no_smaller_fence(
    database: Database, guarding: Server
) -> None:
    world = GuardWorld("redis", database, guarding.url(""))
    one, other = world.worker(lease=SHORT), world.worker(lease=SHORT)
    alive, dead, failed = (
        acquired(begun)
        for begun in one.begin([arrival("alive"), arrival("dead"), arrival("failed")])
    )
    one.fail(failed, "it broke")
    guarding.skew(-AN_HOUR)
    past(SHORT)
    for begun in other.begin([arrival("alive"), arrival("dead")]):
        assert isinstance(begun, Busy) and begun.retry_after <= timedelta(seconds=10)
    assert acquired(other.begin([arrival("failed")])[0]).fence > failed.fence
    assert one.renew([alive]) == {alive}
    one.complete(alive)
    assert other.begin([arrival("alive")]) == [Done()]
    guarding.skew(0.0)
    answers = []
    # A process reads its new time a moment later.
    until(
        "the lease ended",
        lambda: isinstance(
            (answers.append(other.begin([arrival("dead")])[0]), answers[-1])[1], Acquired
        ),
    )
    assert acquired(answers[-1]).fence > dead.fence
    with pytest.raises(LeaseLost):
        one.complete(dead)
    world.close()


def test_a_workers_own_clock_changes_nothing(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams
) -> None:
    url = guarding.url("")
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(servers, None, clock, redis=url, batch=5))
            for clock in (-AN_HOUR, AN_HOUR, 0.0)
        ]
        for child, wrong in zip(children, (-AN_HOUR, AN_HOUR, 0.0), strict=True):
            child.wait_until_started()
            assert child.clock is not None and abs(child.clock - time.time() - wrong) < 60
        size = 120
        publish(broker, 0, size, copies=2)
        until("the end", lambda: nothing_left(broker))
        while size < 600 and not all(child.has_begun() for child in children):
            # On a busy machine one of them may stand still while the others do everything.
            publish(broker, size, size + 30, copies=2)
            size += 30
            until("the end", lambda: nothing_left(broker))
        ends = [child.ended() for child in children]
    assert sum(counts.get("processed", 0) for counts in ends) == size
    assert all(counts.get("processed", 0) > 0 for counts in ends), "each of them took part"
    far = "SELECT count(*) FROM consumer_log WHERE abs(extract(epoch FROM updated_at - clock_timestamp())) > 600"
    assert database.one(far) == {"count": 0}, "no time in a log is a worker's"
    assert_once(database, broker, size)
