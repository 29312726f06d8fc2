"""The guard where its servers forget, are away or hang, while workers consume: counted in effects."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import RedisExchange, RedisGuard, leased
from backstop.client.lease_store import LeaseStore
from backstop.leases.front import ASK_AGAIN
from backstop.leases.lease import Acquired, Busy, Done
from backstop.leases.redis_exchange import SOCKET_SECONDS
from backstop.model.records import Message
from backstop_lab.chaos.servers import Server
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, TOPIC, Database
from fault_world import (  # noqa: F401
    AN_HOUR,
    LEASE,
    PATIENT,
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
from guard_handlers import apply_under_fence, insert_effect
from guard_world import GuardWorld, acquired, arrival

LIMIT = SOCKET_SECONDS
"""Seconds that a Redis which hangs may cost."""


def test_redis_is_flushed_while_workers_consume_and_everything_is_done_once(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams
) -> None:
    client = redis.Redis.from_url(guarding.url(""))
    with Fleet(servers, insert_effect, fronted(guarding.url(""))).at_work() as fleet:
        for wave in range(6):
            publish(broker, wave * 30, wave * 30 + 30, copies=2)
            until("the middle of a wave", lambda wave=wave: effects(database) >= wave * 30 + 10)
            assert client.dbsize() > 0
            client.flushall()
        until("the end", lambda: nothing_left(broker))
        # A batch is counted after its acknowledgement, and a copy that came to two workers twice.
        until("the last count", lambda: fleet.counts.get("done", 0) >= 180)
        client.flushall()
        asked = fleet.counts["done"]
        publish(broker, 0, 180)
        until("every late copy", lambda: nothing_left(broker))
        until("the database's word on each", lambda: fleet.counts["done"] - asked >= 180)
    assert_once(database, broker, 180)


@pytest.mark.parametrize("replica", ["empty", "lagging"])
def test_a_failover_to_a_replica_that_does_not_know_loses_and_doubles_nothing(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams, replica: str
) -> None:
    primary, second = guarding.program, servers.a_redis()
    assert isinstance(primary, Valkey) and isinstance(second.program, Valkey)
    shutil.copy(primary.directory / "valkey.password", second.directory / "valkey.password")
    with Fleet(servers, insert_effect, fronted(primary.url())).at_work() as fleet:
        publish(broker, 0, 60, copies=2)
        until("some work", lambda: effects(database) >= 20)
        if replica == "lagging":
            second.start()
            copy = redis.Redis.from_url(second.url(""))
            copy.config_set("primaryauth", primary.password)
            copy.replicaof("127.0.0.1", primary.port)
            until(
                "the copy",
                lambda: (
                    copy.info("replication")["master_link_status"] == "up" and copy.dbsize() > 0
                ),
            )
            copy.replicaof("NO", "ONE")  # from here on it misses everything
            second.stop()
        publish(broker, 60, 120, copies=2)
        until("the end of the first half", lambda: effects(database) >= 70)
        primary.kill()
        publish(broker, 120, 150)
        second.program.port = primary.port  # promoted: behind the address that everybody knows
        second.start()
        publish(broker, 0, 150)
        until("the end", lambda: nothing_left(broker))
        until("somebody who noticed", lambda: fleet.counts.get("front_away", 0) >= 1)
        promoted, size = redis.Redis.from_url(second.url("")), 150
        told = promoted.dbsize()
        while promoted.dbsize() == told:  # until a worker asks it again
            publish(broker, size, size + 1)
            size += 1
            until("one more", lambda: nothing_left(broker))
    second.kill()
    assert_once(database, broker, size)


def test_what_redis_evicts_is_asked_of_the_database(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams
) -> None:
    client = redis.Redis.from_url(guarding.url(""))
    client.config_set("maxmemory-policy", "allkeys-lru")
    with Fleet(servers, insert_effect, fronted(guarding.url(""))).at_work() as fleet:
        publish(broker, 0, 20)
        until("the connections", lambda: nothing_left(broker))
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 30_000)
        publish(broker, 20, 300, copies=2)
        until("the end", lambda: nothing_left(broker))
        assert client.info("stats")["evicted_keys"] > 20
        evicted = 300 - len(list(client.scan_iter("*:m:*", count=1000)))
        assert evicted > 20
        # A batch is counted after its acknowledgement, and a copy that came to two workers twice.
        until("the last count", lambda: fleet.counts.get("done", 0) >= 280)
        before = fleet.counts
        publish(broker, 0, 300)
        until("every late copy", lambda: nothing_left(broker))
        until(
            "the last count",
            lambda: (
                fleet.counts["done"] - before["done"] >= 300
                and fleet.counts["front_asked"] - before["front_asked"] >= evicted
            ),
        )
    assert_once(database, broker, 300)


def busy_done_and_new(worker: LeaseStore, new: str) -> float:
    """What the database answers for the three; in how many seconds."""
    started = time.monotonic()
    busy, done, granted = worker.begin([arrival("held"), arrival("done"), arrival(new)])
    assert isinstance(busy, Busy) and done == Done() and isinstance(granted, Acquired)
    return time.monotonic() - started


@pytest.fixture
def known(database: Database, guarding: Server) -> Iterator[GuardWorld]:
    """A guard with a front, where one message is held and one is done."""
    world = GuardWorld("front", database, guarding.url(""))
    first = world.worker()
    _, done = (acquired(begun) for begun in first.begin([arrival("held"), arrival("done")]))
    first.complete(done)
    yield world
    world.close()


def test_a_redis_that_is_down_is_counted_and_nobody_waits_for_it(
    known: GuardWorld, guarding: Server
) -> None:
    workers = [known.worker() for _ in range(3)]
    guarding.kill()
    took = [busy_done_and_new(one, f"new-{n}") for n, one in enumerate(workers)]
    assert max(took) < PATIENT / 2
    for one, seconds in zip(workers, took, strict=True):
        counts = one.drain_counts()
        assert 1 <= counts.pop("front_away") <= 1 + seconds / ASK_AGAIN
        assert counts == {"front_asked": 3}
    worker, *_ = workers
    later = [busy_done_and_new(worker, f"later-{n}") for n in range(10)]
    assert statistics.median(later) < 1.0
    assert worker.drain_counts().get("front_away", 0) <= 1 + sum(later) / ASK_AGAIN
    assert known.see("new-1") is not None
    guarding.start()
    until(
        "the front again",
        lambda: (
            worker.begin([arrival("done")]) == [Done()] and worker.drain_counts().get("front_done")
        ),
    )


def test_a_redis_that_hangs_costs_one_time_limit_and_is_then_left_alone(
    known: GuardWorld, guarding: Server
) -> None:
    workers = [known.worker(patience=LIMIT) for _ in range(3)]
    for n, one in enumerate(workers):
        busy_done_and_new(one, f"before-{n}")  # connected
        one.drain_counts()
    guarding.freeze()
    took: list[float] = []
    for n, worker in enumerate(workers):
        took.append(busy_done_and_new(worker, f"new-{n}"))
        if took[-1] < 2 * LIMIT:
            break  # a machine that stands still for a moment makes one of them longer, but not all
    assert min(took) > 0.75 * LIMIT and took[-1] < 2 * LIMIT, "its time limit, once"
    ends, more, later = time.monotonic() + 1.5 * LIMIT, count(), list[float]()
    while time.monotonic() < ends:  # longer than the time limit
        later.append(busy_done_and_new(worker, f"later-{next(more)}"))
    assert statistics.median(later) < 0.5 * LIMIT
    assert worker.drain_counts()["front_away"] == 1
    guarding.thaw()


def test_work_goes_on_while_redis_is_down_and_hangs(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams
) -> None:
    with Fleet(servers, insert_effect, fronted(guarding.url(""), 0.5)).at_work() as fleet:
        for wave, (fault, mend) in enumerate(
            [(guarding.kill, guarding.start), (guarding.freeze, guarding.thaw)]
        ):
            publish(broker, wave * 60, wave * 60 + 20)
            until("some work", lambda wave=wave: effects(database) >= wave * 60 + 10)
            fault()
            publish(broker, wave * 60 + 20, wave * 60 + 60, copies=2)
            publish(broker, 0, wave * 60 + 20)
            until("all of it, without Redis", lambda: nothing_left(broker))
            mend()
        assert fleet.counts["front_away"] >= 2
    assert_once(database, broker, 120)


def test_with_redis_alone_and_away_nothing_is_begun_and_nothing_acknowledged(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams
) -> None:
    url, begun = guarding.url(""), []

    def handle(message: Message, work: Any) -> None:
        begun.append(message.message_id)
        apply_under_fence(database.dsn, message, work)

    def alone() -> RedisGuard:
        return RedisGuard(RedisExchange(url, timeout=PATIENT), GROUP, lease=LEASE, retry_after=SOON)

    with Fleet(servers, leased(handle), alone).at_work() as fleet:
        publish(broker, 0, 20)
        until("some work", lambda: nothing_left(broker))
        guarding.kill()
        so_far = len(begun)
        publish(broker, 20, 40)
        until("refusals", lambda: fleet.counts.get("unavailable", 0) >= 6)
        assert len(begun) == so_far and sum(broker.lag(TOPIC, GROUP).values()) == 20
        guarding.start()
        publish(broker, 0, 40)
        until("the end", lambda: nothing_left(broker))
    assert sorted(begun) == sorted(f"m-{n}" for n in range(40)), "its file knew what was done"
    assert database.one("SELECT count(*), max(applied) FROM downstream") == {"count": 40, "max": 1}


@pytest.mark.parametrize("kind", ["database", "front"])
def test_with_the_database_down_nothing_is_begun_and_nothing_acknowledged(
    servers: Servers, database: Database, guarding: Server, broker: RedisStreams, kind: str
) -> None:
    begun: list[str] = []

    def handle(connection: Any, message: Message, work: Any) -> None:
        begun.append(message.message_id)
        insert_effect(connection, message, work)

    store = fronted(guarding.url("")) if kind == "front" else lambda: None
    with Fleet(servers, handle, store).at_work() as fleet:
        publish(broker, 0, 20)
        until("some work", lambda: nothing_left(broker))
        servers.database_server.stop()
        try:
            publish(broker, 20, 60)
            until("refusals", lambda: fleet.counts.get("unavailable", 0) >= 6)
            assert len(begun) == 20 and sum(broker.lag(TOPIC, GROUP).values()) == 40
            held = [
                key
                for key in redis.Redis.from_url(guarding.url("")).scan_iter("*:m:*")
                if key.endswith(b"m-30")
            ]
            assert held == [], "a silence of the database is never taken for a new message"
        finally:
            servers.database_server.start()
        publish(broker, 0, 60)
        until("the end", lambda: nothing_left(broker))
    assert sorted(begun) == sorted(f"m-{n}" for n in range(60))
    assert_once(database, broker, 60)
