"""Where a worker's leases are held, behind one protocol: the database, Redis in front of the database, or Redis alone.

Each method commits (or is one script), so that what it says is durable when it returns; each raises StoreUnavailable when
nobody answered, and then nothing is assumed.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol

from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.ways import Leased, RowLock, Way
from backstop.leases import guard
from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival, Begun, Busy
from backstop.leases.redis_guard import RedisGuard
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.model.records import Counts
from backstop.sql.run import Connection

log = logging.getLogger(__name__)

_LATE = 0.1
"""A lease whose answer took a larger share of it is asked for once more before its work begins: it counts from the question."""


class LeaseStore(Protocol):
    """The leases of one group, for one worker. Not shared between threads, but for `renew`."""

    def begin(self, arrivals: Sequence[Arrival]) -> list[Begun]:
        """Ask for leases, each key once; answers in order."""

    def renew(self, leases: Sequence[Acquired]) -> set[Acquired]:
        """Prolong leases, from the keeper's thread; those that are still ours."""

    def completing(self, lease: Acquired) -> AbstractContextManager[Connection]:
        """A transaction whose last statement completes the lease. Raises LeaseLost, and all is rolled back."""

    def complete(self, lease: Acquired) -> None:
        """The work was done elsewhere. Raises LeaseLost."""

    def fail(self, lease: Acquired, error: str) -> None:
        """The handler failed. Raises LeaseLost."""

    def give_back(self, leases: Sequence[Acquired], entered: Acquired | None = None) -> None:
        """Release what was not finished. It was no attempt, but for the one whose handler had been entered."""

    def drain_counts(self) -> Counts:
        """What a front did since the last call, by name."""

    def close(self) -> None:
        """Close what `begin` and its like opened; leases stay as they are."""

    def close_renewal(self) -> None:
        """Close what `renew` opened, from its thread."""


class InDatabase:
    """Leases in the consumer database, with Redis in front of it or without."""

    def __init__(
        self,
        connect: Connect,
        group: str,
        *,
        lease: timedelta,
        retry_after: timedelta,
        owner_host: str | None,
        front: Front | None = None,
    ) -> None:
        self._store = KeptConnection(connect, "consumer database")
        self._renewals = KeptConnection(connect, "consumer database")
        self._group, self._seconds = group, lease.total_seconds()
        self._retry_after, self._owner_host = retry_after, owner_host
        self._front = front
        self._arrivals: dict[Acquired, Arrival] = {}
        """Of the leases of the last `begin`: what the front is to be told of them."""

    @property
    def store(self) -> KeptConnection:
        return self._store

    def begin(self, arrivals: Sequence[Arrival]) -> list[Begun]:
        early = self._front.look(arrivals) if self._front else [None] * len(arrivals)
        asked = [arrival for arrival, known in zip(arrivals, early, strict=True) if known is None]
        if not asked:
            return [known for known in early if known is not None]
        asked_at = time.monotonic()
        found = self._store.retried(
            lambda connection: guard.grant_many(
                connection,
                self._group,
                asked,
                lease_seconds=self._seconds,
                owner_host=self._owner_host,
            ),
            is_one_statement=True,
        )
        found |= self._refused([arrival for arrival in asked if arrival.key not in found])
        if time.monotonic() - asked_at > _LATE * self._seconds:
            found = self._still_ours(found)
        # A row that was purged in between has no answer: the message comes again, nothing is assumed.
        unknown = Busy(self._retry_after)
        answers = [found.get(arrival.key, unknown) for arrival in asked]
        if self._front:
            granted = {a: asked[n] for n, a in enumerate(answers) if isinstance(a, Acquired)}
            self._arrivals = granted
            self._front.held(list(granted.items()))
        rest = iter(answers)
        return [next(rest) if known is None else known for known in early]

    def _still_ours(self, found: dict[tuple[str, str], Begun]) -> dict[tuple[str, str], Begun]:
        """Without those that another worker took while the commit of their grant, or what came after it, waited."""
        leases = [one for one in found.values() if isinstance(one, Acquired)]
        if not leases:
            return found
        held: set[Acquired] = set()
        try:
            with self._store.one_statement() as connection:
                held = guard.renew_many(
                    connection, self._group, leases, lease_seconds=self._seconds
                )
        except StoreUnavailable as error:
            log.warning(
                "Leases that waited could not be renewed, and nothing of them is begun. %s", error
            )
        return {
            key: one for key, one in found.items() if not isinstance(one, Acquired) or one in held
        }

    def _refused(self, arrivals: Sequence[Arrival]) -> dict[tuple[str, str], Begun]:
        """Why these got no lease. What was granted beside them is committed: without an answer here they are busy, and come again."""
        if not arrivals:
            return {}
        try:
            with self._store.one_statement() as connection:
                return guard.refused_many(connection, self._group, arrivals, self._retry_after)
        except StoreUnavailable:
            return {}

    def renew(self, leases: Sequence[Acquired]) -> set[Acquired]:
        with self._renewals.one_statement() as connection:
            held = guard.renew_many(connection, self._group, leases, lease_seconds=self._seconds)
        if self._front:
            known = dict(self._arrivals)  # another thread's: one look
            self._front.held([(lease, known[lease]) for lease in held if lease in known])
        return held

    @contextmanager
    def completing(self, lease: Acquired) -> Iterator[Connection]:
        with self._store.transaction() as connection:
            guard.open_work(connection)
            yield connection
            guard.close_work(connection)
            guard.complete(connection, lease)
        self._tell(lease, done=True)

    def complete(self, lease: Acquired) -> None:
        self._store.after_idling(
            lambda connection: guard.complete(connection, lease), is_one_statement=True
        )
        self._tell(lease, done=True)

    def fail(self, lease: Acquired, error: str) -> None:
        self._store.after_idling(
            lambda connection: guard.fail(connection, lease, error), is_one_statement=True
        )
        self._tell(lease, done=False)

    def give_back(self, leases: Sequence[Acquired], entered: Acquired | None = None) -> None:
        def give_back(connection: Connection) -> None:
            for lease in leases:
                guard.give_back(connection, lease, was_entered=lease == entered)

        self._store.after_idling(give_back)  # twice is once: afterwards nobody has the token
        for lease in leases:
            self._tell(lease, done=False)

    def drain_counts(self) -> Counts:
        return self._front.drain_counts() if self._front else Counts()

    def close(self) -> None:
        self._store.close()
        if self._front:
            self._front.close()

    def close_renewal(self) -> None:
        self._renewals.close()

    def _tell(self, lease: Acquired, *, done: bool) -> None:
        arrival = self._arrivals.pop(lease, None)
        if self._front and arrival:
            (self._front.done if done else self._front.free)([(lease, arrival)])


class InRedis:
    """Leases in Redis alone."""

    def __init__(self, guard: RedisGuard) -> None:
        self._guard = guard

    def begin(self, arrivals: Sequence[Arrival]) -> list[Begun]:
        return self._guard.begin_many(arrivals)

    def renew(self, leases: Sequence[Acquired]) -> set[Acquired]:
        return self._guard.renew_many(leases)

    def completing(self, lease: Acquired) -> AbstractContextManager[Connection]:
        raise ConfigurationError(
            "A handler in one transaction with its end needs a consumer database, and its leases are in Redis alone.",
            unaffected="The handler was not called.",
            next_step="Give `connect`, or declare the handler `leased`.",
        )

    def complete(self, lease: Acquired) -> None:
        self._guard.complete(lease)

    def fail(self, lease: Acquired, error: str) -> None:
        self._guard.fail(lease, error)

    def give_back(self, leases: Sequence[Acquired], entered: Acquired | None = None) -> None:
        self._guard.give_back_many([lease for lease in leases if lease != entered])
        if entered in leases:
            self._guard.give_back_many(
                [lease for lease in leases if lease == entered], was_entered=True
            )

    def drain_counts(self) -> Counts:
        return Counts()

    def close(self) -> None:
        self._guard.close()

    def close_renewal(self) -> None:
        """Nothing of its own: connections are the guard's pool."""


def lease_store(
    connect: Connect | None,
    group: str,
    way: Way,
    redis: Front | RedisGuard | None,
    lease: timedelta,
    retry_after: timedelta,
    owner_host: str | None,
) -> LeaseStore:
    """The store that these stand for. Raises ConfigurationError for what does not fit together."""
    if isinstance(redis, RedisGuard):
        if connect is not None or not isinstance(way, Leased):
            raise _refused(
                "A RedisGuard holds leases in Redis alone: it takes no `connect`, and the handler must be `leased`.",
                "Give a Front instead of the RedisGuard to keep the database, or mark the handler with @leased.",
            )
        if redis.group != group or redis.lease != lease:
            raise _refused("The RedisGuard is of another group or lease.", "Give both the same.")
        return InRedis(redis)
    if connect is None:
        raise _refused(
            "There is neither a consumer database nor a RedisGuard.",
            "Give `connect`, or a RedisGuard as `redis`.",
        )
    if redis is not None and isinstance(way, RowLock):
        raise _refused(
            "A row_lock handler asks its business row, never a Front.", "Leave `redis` out."
        )
    if redis is not None and (redis.group != group or redis.lease != lease):
        raise _refused("The Front is of another group or lease.", "Give both the same.")
    return InDatabase(
        connect, group, lease=lease, retry_after=retry_after, owner_host=owner_host, front=redis
    )


def _refused(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, unaffected="Nothing was started.", next_step=next_step)
