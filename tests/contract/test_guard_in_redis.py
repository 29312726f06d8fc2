"""What the guard keeps in Redis, and what Redis may answer in front of the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg2
import pytest

from backstop.client.lease_store import InDatabase
from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival, Busy, Done
from backstop.leases.redis_exchange import RedisExchange
from backstop.model.errors import StoreUnavailable
from client_world import TOPIC, consumer, postgres, valkey  # noqa: F401
from guard_world import ID, ODD, B, GuardWorld, acquired, arrival


@pytest.fixture(params=["front", "redis"])
def in_redis(request: pytest.FixtureRequest, consumer: Any, valkey: Any) -> Iterator[GuardWorld]:
    world = GuardWorld(request.param, consumer, valkey.url())
    world.redis.flushall()
    yield world
    world.close()


@pytest.fixture
def alone(consumer: Any, valkey: Any) -> Iterator[GuardWorld]:
    """Leases in Redis alone."""
    world = GuardWorld("redis", consumer, valkey.url())
    world.redis.flushall()
    yield world
    world.close()


def all_ends(world: GuardWorld, size: int = 60) -> None:
    """Every operation, over messages of every bucket."""
    worker, late = world.worker(), world.worker()
    leases = [acquired(begun) for begun in worker.begin([arrival(f"m-{n}") for n in range(size)])]
    worker.renew(leases)
    for number, lease in enumerate(leases):
        match number % 5:
            case 0:
                worker.complete(lease)
            case 1:
                worker.fail(lease, "it broke")
            case 2:
                worker.give_back([lease])
            case 3:
                world.expire(lease.message_id)
    late.begin([arrival(f"m-{n}", hash=B) for n in range(size)])
    late.begin([arrival(f"m-{n}") for n in range(size)])


def test_every_key_has_a_time_to_live(in_redis: GuardWorld) -> None:
    all_ends(in_redis)
    lives = {key: in_redis.redis.pttl(key) for key in in_redis.all_keys()}
    assert len(lives) > 60 and all(life > 0 for life in lives.values()), lives


def test_the_index_of_a_bucket_lives_as_long_as_what_it_points_to_and_points_to_all_that_is_held(
    in_redis: GuardWorld,
) -> None:
    all_ends(in_redis)
    held = {
        key
        for key in in_redis.all_keys()
        if b"}:m:" in key and in_redis.redis.get(key).startswith(b"C")
    }
    pointed: dict[bytes, float] = {}
    for index in in_redis.keys.expiry:
        for key, ends in in_redis.redis.zrange(index, 0, -1, withscores=True):
            assert key.split(b"}")[0] == index.split(b"}")[0]
            assert in_redis.redis.pttl(index) >= in_redis.redis.pttl(key) - 1
            pointed[key] = ends
    assert set(pointed) == held and held
    assert {key: int(in_redis.redis.get(key)[1:14]) for key in held} == pointed


def test_all_keys_of_a_script_call_share_one_hash_tag(
    in_redis: GuardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags: list[set[bytes]] = []
    plain = RedisExchange.run

    def run(self: RedisExchange, calls: Sequence[Any]) -> list[Any]:
        tags.extend(
            {key[key.index(b"{") : key.index(b"}")] for key in keys} for _, keys, _ in calls
        )
        return plain(self, calls)

    monkeypatch.setattr(RedisExchange, "run", run)
    all_ends(in_redis)
    for name in ODD:
        in_redis.worker().begin([arrival(name), arrival(ID, name)])
    assert len(tags) > 60 and all(len(called) == 1 for called in tags)
    assert len(set().union(*tags)) == 16, "the work is spread over all buckets"


class Fronted:
    """A worker with a front, whose database a test can take away."""

    def __init__(self, world: GuardWorld) -> None:
        self.world, self.away, self.asked = world, False, 0
        self.store = world.worker(connect=self.connect)
        assert isinstance(self.store, InDatabase) and isinstance(self.store._front, Front)
        self.front = self.store._front

    def connect(self) -> Any:
        if self.away:
            raise psycopg2.OperationalError("refused")
        return self.world.database.connect(cursor_factory=self.counting())

    def counting(self) -> type[psycopg2.extensions.cursor]:
        fronted = self

        class Counting(psycopg2.extensions.cursor):
            def execute(self, query: Any, values: Any = None) -> None:
                fronted.asked += 1
                super().execute(query, values)

        return Counting

    def without_database(self) -> None:
        assert isinstance(self.store, InDatabase)
        self.store.store.close()
        self.away = True


@pytest.fixture
def fronted(consumer: Any, valkey: Any) -> Iterator[Fronted]:
    world = GuardWorld("front", consumer, valkey.url())
    world.redis.flushall()
    yield Fronted(world)
    world.close()


def test_what_is_done_is_answered_without_the_database(fronted: Fronted) -> None:
    fronted.store.complete(acquired(fronted.store.begin([arrival(ID)])[0]))
    asked = fronted.asked
    assert fronted.store.begin([arrival(ID)]) == [Done()] and fronted.asked == asked
    fronted.without_database()
    assert fronted.store.begin([arrival(ID)]) == [Done()]
    assert fronted.store.drain_counts() == {"front_asked": 1, "front_done": 2}


@pytest.mark.parametrize(
    "copy",
    [
        arrival(ID, resent=True),
        arrival(ID, hash=B),
        arrival(ID, version=2),
        arrival(ID, version=0),
        arrival("new"),
    ],
)
@pytest.mark.parametrize("end", ["done", "held"])
def test_what_the_front_does_not_know_for_sure_is_the_databases_to_answer(
    fronted: Fronted, copy: Arrival, end: str
) -> None:
    lease = acquired(fronted.store.begin([arrival(ID)])[0])
    if end == "done":
        fronted.store.complete(lease)
    fronted.without_database()
    if end == "held" and copy.resent:
        assert isinstance(fronted.store.begin([copy])[0], Busy), (
            "who holds it is at work on this copy's message, too"
        )
    else:
        with pytest.raises(StoreUnavailable):
            fronted.store.begin([copy])


def test_a_resent_copy_of_what_only_redis_calls_done_is_processed(fronted: Fronted) -> None:
    fronted.store.complete(acquired(fronted.store.begin([arrival(ID)])[0]))
    fronted.world.database.run("DELETE FROM consumer_log")  # a restore of an older backup
    assert fronted.store.begin([arrival(ID)]) == [Done()]
    assert isinstance(fronted.store.begin([arrival(ID, resent=True)])[0], Acquired)


def test_what_is_held_is_answered_busy_without_the_database_until_it_ends(fronted: Fronted) -> None:
    fronted.store.begin([arrival(ID)])
    asked = fronted.asked
    assert isinstance(fronted.store.begin([arrival(ID)])[0], Busy)
    assert fronted.asked == asked
    fronted.world.expire(ID)
    assert isinstance(fronted.store.begin([arrival(ID)])[0], Acquired)


def test_a_front_that_calls_an_ended_lease_free_is_corrected_by_the_database(
    fronted: Fronted,
) -> None:
    fronted.store.begin([arrival(ID)])
    fronted.world.end_in_redis(ID)
    assert isinstance(fronted.store.begin([arrival(ID)])[0], Busy), (
        "the database's clock decides, not Redis"
    )


@pytest.mark.parametrize("late", ["held", "done", "free"])
@pytest.mark.parametrize("stands", ["held", "done"])
def test_a_late_note_never_overwrites_what_a_later_grant_has_noted(
    fronted: Fronted, stands: str, late: str
) -> None:
    copy = arrival(ID)
    old = acquired(fronted.store.begin([copy])[0])
    new = old._replace(token="0" * 32, fence=old.fence + 1)
    getattr(fronted.front, stands)([(new, copy)])
    _, key = fronted.world.keys.bucket_and_key(TOPIC, ID)
    before = fronted.world.redis.get(key)
    getattr(fronted.front, late)([(old, copy)])
    assert fronted.world.redis.get(key) == before


@pytest.mark.parametrize("end", ["done", "failed", "given back"])
def test_a_renewal_that_is_noted_late_does_not_hide_the_end(fronted: Fronted, end: str) -> None:
    copy = arrival(ID)
    lease = acquired(fronted.store.begin([copy])[0])
    match end:
        case "done":
            fronted.store.complete(lease)
        case "failed":
            fronted.store.fail(lease, "it broke")
        case "given back":
            fronted.store.give_back([lease])
    fronted.front.held([(lease, copy)])
    assert fronted.front.look([copy]) == [Done() if end == "done" else None]


def test_a_record_that_cannot_be_read_is_the_databases_to_answer_and_mended(
    fronted: Fronted,
) -> None:
    _, key = fronted.world.keys.bucket_and_key(TOPIC, ID)
    fronted.world.redis.set(key, "another program's")
    lease = acquired(fronted.store.begin([arrival(ID)])[0])
    fronted.store.complete(lease)
    assert fronted.store.drain_counts() == {"front_unread": 1, "front_asked": 1}
    assert fronted.front.look([arrival(ID)]) == [Done()]
    assert fronted.world.redis.pttl(key) > 0


@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 2gb"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ],
    ids=["a replica", "full", "too few replicas"],
)
def test_a_redis_that_may_not_write_is_unavailable_and_not_busy(
    alone: GuardWorld, refuse: str, allow: str
) -> None:
    """BUSY would end no connection to a replica, and nobody would learn that the server is full."""
    store = alone.worker()
    acquired(store.begin([arrival("before")])[0])
    alone.redis.execute_command(*refuse.split())
    try:
        with pytest.raises(StoreUnavailable, match="refused the call"):
            store.begin([arrival(ID)])
    finally:
        alone.redis.execute_command(*allow.split())
    acquired(store.begin([arrival(ID)])[0])


def test_another_programs_key_of_another_type_is_busy_and_stops_no_other_message(
    alone: GuardWorld,
) -> None:
    _, key = alone.keys.bucket_and_key(TOPIC, ID)
    alone.redis.hset(key, "field", "value")
    # Some of the others are of its bucket, and so in the same call of the script.
    first, *others = alone.worker().begin([arrival(ID), *(arrival(f"m-{n}") for n in range(60))])
    assert isinstance(first, Busy)
    assert all(isinstance(other, Acquired) for other in others)
