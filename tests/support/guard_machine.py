"""Guard, sweep and three workers as a state machine: every step is the shipped code's own, a model says what it must answer.

Leases are long and end because their end is moved, so that what happens does not hang on how fast this machine is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backstop.client.lease_store import InDatabase, InRedis, LeaseStore
from backstop.leases import guard
from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival, Begun, Busy, Done
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_guard import RedisGuard
from backstop.leases.redis_records import read_record
from backstop.model.errors import LeaseLost
from backstop.stores.postgresql.leases import PostgresLeases
from backstop.sweep.ask_log import GroupLog
from backstop.sweep.redis_bucket import Bucket
from backstop.sweep.sample_redis import sample_redis
from backstop.sweep.sweep_database import sweep_database
from backstop.sweep.sweep_redis import sweep_bucket
from backstop.sweep.tally import Tally
from client_world import TOPIC, Database
from guard_world import A, GuardWorld

LEASE, RETRY = timedelta(minutes=10), timedelta(seconds=10)
DAY_MS = 86_400_000
WORKERS, MESSAGES = 3, ("one", "two")


class LateFront(Front):
    """A front whose worker may stand still between its commit and the note of it: the note comes later, or never."""

    late = False
    notes: list[Callable[[], None]]

    def _note(self, state: bytes, kept: bytes, told: Any) -> None:
        if self.late:
            self.notes.append(lambda: Front._note(self, state, kept, told))
        else:
            super()._note(state, kept, told)


class LateBucket(Bucket):
    """A sweep that may stand still between its look and its change."""

    def __init__(self, *given: Any, later: list[Callable[[], Any]] | None) -> None:
        super().__init__(*given)
        self._later = later

    def settle(self, *given: Any, **named: Any) -> set[int]:
        if self._later is None:
            return super().settle(*given, **named)
        self._later.append(lambda: Bucket.settle(self, *given, **named))
        return set()


@dataclass
class Stage:
    """The servers, and connections that outlive an example."""

    kind: str
    database: Database
    url: str
    groups: Iterator[int] = field(default_factory=count)
    connections: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exchange = RedisExchange(self.url)
        self.sweepers = [PostgresLeases("consumer", self.database.dsn) for _ in range(2)]

    def connect(self, name: Any) -> Any:
        if name not in self.connections:
            self.connections[name] = self.database.connect()
        return self.connections[name]

    def close(self) -> None:
        self.exchange.close()
        for leases in self.sweepers:
            leases.close()
        for connection in self.connections.values():
            connection.close()


@dataclass
class Truth:
    """What must be so of one message."""

    owner: str | None = None
    """The token of the last grant."""
    alive: str | None = None
    """The token whose lease runs."""
    ended: bool = False
    """Its last grant was failed, completed or given back."""
    done: bool = False
    fence: int = 0
    effects: int = 0


class GuardAndSweep(RuleBasedStateMachine):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage, self.kind = stage, stage.kind
        self.world = GuardWorld(stage.kind, stage.database, stage.url, f"g{next(stage.groups)}")
        self.truth = {message: Truth() for message in MESSAGES}
        self.handles: list[tuple[int, Acquired]] = []
        self.later: list[Callable[[], Any]] = []
        """Notes and changes of those who stand still."""
        self.kept: dict[str, bytes] = {}
        self.buckets = {self.world.keys.bucket_and_key(TOPIC, message)[0] for message in MESSAGES}
        self.steps = 0
        self.stores = [self._store(worker) for worker in range(WORKERS)]

    def _store(self, worker: int) -> LeaseStore:
        if self.kind == "redis":
            return InRedis(
                RedisGuard(self.stage.exchange, self.world.group, lease=LEASE, retry_after=RETRY)
            )
        front = None
        if self.kind == "front":
            front = LateFront(self.stage.exchange, self.world.group, lease=LEASE, retry_after=RETRY)
            front.notes = self.later
        return InDatabase(
            lambda: self.stage.connect(worker),
            self.world.group,
            lease=LEASE,
            retry_after=RETRY,
            owner_host=f"host-{worker}",
            front=front,
        )

    # What workers do

    @initialize()
    def start(self) -> None:
        self.world.redis.flushall()

    @rule(
        worker=st.integers(0, WORKERS - 1),
        message=st.sampled_from(MESSAGES),
        resent=st.booleans(),
        late=st.booleans(),
    )
    def begin(self, worker: int, message: str, resent: bool, late: bool) -> None:
        """The broker delivers a copy; with `late` the worker stands still, or dies, before Redis is told."""
        truth, text = self.truth[message], self._in_redis(message)
        with self._standing_still(worker, late):
            (begun,) = self.stores[worker].begin([Arrival(TOPIC, message, A, 1, None, resent)])
        if isinstance(begun, Acquired):
            assert truth.alive is None, "two holders"
            assert not truth.done, "what is done is begun again"
            assert begun.fence > truth.fence, "the fence did not grow"
            truth.owner = truth.alive = begun.token
            truth.fence, truth.ended = begun.fence, False
            self.handles.append((worker, begun))
        else:
            self._check_refused(begun, truth, text)

    def _check_refused(self, begun: Begun, truth: Truth, text: bytes) -> None:
        if isinstance(begun, Done):
            assert truth.done, "called done, and it is not"
            return
        assert isinstance(begun, Busy), begun
        stands_in_front = (
            self.kind == "front" and text[:1] == b"C" and read_record(text).ends > self._redis_now()
        )
        assert truth.alive or stands_in_front, "nobody is at work, and it is called busy"

    @precondition(lambda self: self.handles)
    @rule(
        which=st.integers(0, 20),
        late=st.booleans(),
        what=st.sampled_from(
            [
                "complete",
                "complete",
                "complete",
                "die before the commit",
                "renew",
                "fail",
                "give back",
            ]
        ),
    )
    def work(self, which: int, what: str, late: bool) -> None:
        """A worker that was once granted a lease goes on: in time, overtaken, or after its own end. Who never does is dead."""
        worker, lease = self.handles[which % len(self.handles)]
        truth = self.truth[lease.message_id]
        is_owner = truth.owner == lease.token and not truth.ended
        if what == "die before the commit":
            self._die_before_the_commit(lease)
            return
        with self._standing_still(worker, late):
            ended = self._act(self.stores[worker], lease, what)
        assert ended in (is_owner, None), (
            f"{what}: taken from one who was overtaken, or not from the owner"
        )
        if is_owner:
            truth.alive = lease.token if what == "renew" else None
            truth.ended = what != "renew"
            truth.done = what == "complete"
            truth.effects += what == "complete"

    def _act(self, store: LeaseStore, lease: Acquired, what: str) -> bool | None:
        """Whether it was the owner's to do; null: it does not say."""
        try:
            if what == "renew":
                return lease in store.renew([lease])
            if what == "give back":
                return store.give_back([lease])
            if what == "fail":
                store.fail(lease, "it broke")
            elif self.kind == "redis":
                store.complete(lease)
            else:
                with store.completing(lease) as connection, connection.cursor() as cursor:  # type: ignore[attr-defined]
                    self._effect(cursor, lease)
        except LeaseLost:
            return False
        return True

    def _die_before_the_commit(self, lease: Acquired) -> None:
        """Everything is written, nothing committed."""
        if self.kind == "redis":
            return
        connection = self.stage.connect("dying")
        with connection.cursor() as cursor:
            self._effect(cursor, lease)
        guard.complete_many(connection, self.world.group, [lease])
        connection.rollback()

    # What happens to them

    @rule(message=st.sampled_from(MESSAGES), where=st.sampled_from(["both", "database", "redis"]))
    def lease_ends(self, message: str, where: str) -> None:
        """At both clocks, or at one of them only: the two are not the same."""
        if self.kind != "front":
            where = "both"
        if where == "redis":
            self.world.end_in_redis(message)
            return
        if where == "database":
            text = self._in_redis(message)
            self.world.expire(message)
            if text:
                self._put(message, text)
        else:
            self.world.expire(message)
        self.truth[message].alive = None

    @precondition(lambda self: self.later)
    @rule(which=st.integers(0, 20))
    def wake_up(self, which: int) -> None:
        """Who stood still goes on."""
        self.later.pop(which % len(self.later))()

    @precondition(lambda self: self.kind != "database")
    @rule(
        message=st.sampled_from(MESSAGES),
        what=st.sampled_from(["evicted", "flushed", "remembered", "put back"]),
    )
    def redis_forgets(self, message: str, what: str) -> None:
        """One record evicted; all, as by a flush or a failover to an empty replica; one as old as a replica that lagged."""
        if what in ("remembered", "put back"):
            self._redis_is_older(message, what == "put back")
            return
        if what == "flushed":
            self.world.redis.flushall()
        else:
            self.world.redis.delete(self._key(message))
        if self.kind == "redis":  # what it does not promise: from here on nobody has begun it
            for name in MESSAGES if what == "flushed" else (message,):
                self.truth[name] = Truth(fence=self.truth[name].fence)

    def _redis_is_older(self, message: str, put_back: bool) -> None:
        if self.kind == "redis":
            return  # nor this
        if put_back and message in self.kept:
            self._put(message, self.kept[message])
        elif text := self._in_redis(message):
            self.kept[message] = text

    @rule(late=st.booleans(), at_once=st.integers(1, 2))
    def sweep(self, late: bool, at_once: int) -> None:
        """`late`: it stands still between its look at Redis and its change. Two at once: in threads."""
        beside = [threading.Thread(target=self._sweep, args=(late, 1)) for _ in range(at_once - 1)]
        for thread in beside:
            thread.start()
        self._sweep(late)
        for thread in beside:
            thread.join()

    def _sweep(self, late: bool = False, who: int = 0) -> None:
        group, leases, tally = self.world.group, self.stage.sweepers[who], Tally()
        if self.kind != "redis":
            sweep_database(leases, "database", {group: 3600.0}, tally, limit=100, dry_run=False)
        if self.kind != "database":
            log = GroupLog(group, leases) if self.kind == "front" else None
            for number in self.buckets:
                bucket = LateBucket(
                    self.stage.exchange, group, number, later=self.later if late else None
                )
                sweep_bucket(bucket, "redis", log, tally, limit=6, dry_run=False)
            if log:
                sample_redis(self.stage.exchange, "redis", {group: log}, "", tally, dry_run=False)
        assert not tally.missed

    # What must hold at every moment

    @invariant()
    def rows_are_as_they_must_be(self) -> None:
        self.steps += 1
        if self.kind == "redis":
            for message, truth in self.truth.items():
                text = self._in_redis(message)
                record = read_record(text) if text else None
                assert (record is not None and record.state == "D") == truth.done, (
                    "a record is not as its owner left it"
                )
                if truth.alive:
                    held = record is not None and (record.state, record.token.replace("-", ""))
                    assert held == ("C", truth.alive.replace("-", "")), (
                        "a record is not as its owner left it"
                    )
            return
        found = self._rows()
        for message, truth in self.truth.items():
            state, token, runs, effects = found.get(message, (None, None, False, 0))
            assert effects == truth.effects <= 1, "done twice in effect, or not at all"
            assert (state == "CONSUMED") == truth.done == (truth.effects == 1)
            assert (token if runs else None) == truth.alive, (
                "a lease that runs was taken back, or one that ended was not"
            )

    def _rows(self) -> dict[str, tuple[str, str, bool, int]]:
        found = self.world.database.run(
            "SELECT message_id, state, owner_token::text, state = 'CONSUMING' AND lease_expires_at > clock_timestamp() AS runs,"
            " (SELECT count(*) FROM effect e WHERE e.message_id = l.message_id AND e.consumer_group = l.consumer_group)"
            " FROM consumer_log l WHERE consumer_group = %s",
            (self.world.group,),
        )
        return {row["message_id"]: tuple(row.values())[1:] for row in found}

    def teardown(self) -> None:
        """Everybody dies and time passes; with a sweep or without, each message is done or can be begun: none is stuck."""
        try:
            if sys.exc_info()[0] is not None:
                return  # a step has failed already: that is what must be told
            for message in MESSAGES:
                self.world.expire(message)
            if self.steps % 2:
                self._sweep()
            begun = self.stores[0].begin([Arrival(TOPIC, message, A) for message in MESSAGES])
            for message, answer in zip(MESSAGES, begun, strict=True):
                expected = Done if self.truth[message].done else Acquired
                assert isinstance(answer, expected), f"{message} is stuck: {answer}"
        finally:
            self.world.redis.close()

    # How

    def _effect(self, cursor: Any, lease: Acquired) -> None:
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, %s)",
            (TOPIC, lease.message_id, lease.group, lease.fence),
        )

    def _standing_still(self, worker: int, late: bool) -> StandingStill:
        store = self.stores[worker]
        return StandingStill(store._front if isinstance(store, InDatabase) else None, late)

    def _key(self, message: str) -> bytes:
        return self.world.keys.bucket_and_key(TOPIC, message)[1]

    def _in_redis(self, message: str) -> bytes:
        return self.world.redis.get(self._key(message)) or b""

    def _put(self, message: str, text: bytes) -> None:
        bucket, key = self.world.keys.bucket_and_key(TOPIC, message)
        self.world.redis.set(key, text, px=DAY_MS)
        if text.startswith(b"C"):
            self.world.redis.zadd(self.world.keys.expiry[bucket], {key: read_record(text).ends})
        else:
            self.world.redis.zrem(self.world.keys.expiry[bucket], key)

    def _redis_now(self) -> int:
        seconds, microseconds = self.world.redis.time()
        return seconds * 1000 + microseconds // 1000


class StandingStill:
    """While it lasts, what a front is told is told later."""

    def __init__(self, front: Any, late: bool) -> None:
        self._front, self._late = front, late

    def __enter__(self) -> None:
        if self._front:
            self._front.late = self._late

    def __exit__(self, *error: object) -> None:
        if self._front:
            self._front.late = False
