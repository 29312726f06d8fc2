"""Processing once for programs with a consumer loop of their own: as a context manager, or around a handler.

once = ProcessOnce(connect, "billing")

with once.holding(message) as held:          # the transaction, and the lease, around the work
    if isinstance(held, Holding):
        apply(held.connection, message)
acknowledge(message) if once.settles(held) else deliver_later(message)

handle = once.around(bill)                   # or a handler marked as leased or row_lock
acknowledge(message) if once.settles(handle(message)) else deliver_later(message)
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from backstop.brokers.protocol import Received
from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.keep_leases import LeaseKeeper
from backstop.client.lease_store import lease_store
from backstop.client.process import Ended, error_text, process, process_under_row_lock
from backstop.client.read_headers import Copy, read_headers
from backstop.client.ways import Handler, Leased, RowLock, Transactional, Way, Work, way_of
from backstop.leases.front import Front
from backstop.leases.lease import LEASE, RETRY_AFTER, Acquired, Begun, Done, Superseded
from backstop.leases.redis_guard import RedisGuard
from backstop.model.errors import ConfigurationError, LeaseLost, StoreUnavailable
from backstop.model.records import Message, Position
from backstop.sql.run import Connection


@dataclass(slots=True)
class Holding:
    """The lease of a message is ours inside the `with`. `connection`: the transaction of the effects; null in Redis alone."""

    connection: Connection | None
    work: Work
    ended: Ended | None = None
    """How it ended, after the `with`; null: it was left by an error of ours, and nothing was acknowledged."""


Outcome = Ended | Begun | Holding


class ProcessOnce:
    """One worker of a consumer group. Not shared between threads; `close` it at the end.

    `connect`, `redis`, `lease` and `retry_after` are as for Consumer. Every method raises StoreUnavailable when nobody
    granted: do not acknowledge, let the message come again.
    """

    def __init__(
        self,
        connect: Connect | None,
        group: str,
        *,
        redis: Front | RedisGuard | None = None,
        lease: timedelta = LEASE,
        retry_after: timedelta = RETRY_AFTER,
        owner_host: str | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        way: Way = (
            Leased(_nothing)
            if isinstance(redis, RedisGuard)
            else Transactional(_nothing_in_transaction)
        )
        self._store = lease_store(connect, group, way, redis, lease, retry_after, owner_host)
        self._rows = KeptConnection(connect, "consumer database") if connect else None
        self._keeper = LeaseKeeper(self._store, lease)
        self._group, self._retry_after, self._owner_host = group, retry_after, owner_host
        self._stopping = stopping or threading.Event()

    @contextmanager
    def holding(
        self, message: Message, *, deliveries: int = 1, position: Position | None = None
    ) -> Iterator[Holding | Begun]:
        """The message's lease, if it is granted, and the transaction of its effects, which ends with the `with`; else why
        not. An exception inside rolls back, is kept in the log and raised; an interrupt gives the lease back.

        Raises LeaseLost when another worker took it over meanwhile (rolled back: do not acknowledge), and ContractBroken
        for a message without a usable id.
        """
        copy = _copy(message, deliveries, position)
        if not copy.is_for(self._group):
            yield Done()
            return
        (begun,) = self._store.begin([copy.arrival])
        if not isinstance(begun, Acquired):
            yield begun
            return
        lost = self._keeper.hold([begun])[begun]
        held = Holding(None, self._work(deliveries, begun, lost))
        try:
            if self._rows is None:
                yield held
                self._store.complete(begun)
            else:
                with self._store.completing(begun) as held.connection:
                    yield held
            held.ended = Ended.PROCESSED
        except LeaseLost:
            held.ended = Ended.LEASE_LOST
            raise
        except StoreUnavailable:
            raise
        except Exception as error:
            held.ended = Ended.FAILED
            self._store.fail(begun, error_text(error))
            raise
        except BaseException:
            self._store.give_back([begun], begun)
            raise
        finally:
            self._keeper.release(begun)

    def around(self, handler: Handler | Way) -> Callable[..., Outcome]:
        """The handler as a function `(message, deliveries=1, position=None)` that never raises for the handler's failure:
        it returns how the message ended, or why no lease was granted. Also a decorator."""
        way = way_of(handler)
        if self._rows is None and not isinstance(way, Leased):
            raise ConfigurationError(
                "With leases in Redis alone there is no transaction for a handler.",
                unaffected="The handler was not called.",
                next_step="Mark it with @leased, or give `connect`.",
            )

        def handle(
            message: Message, deliveries: int = 1, position: Position | None = None
        ) -> Outcome:
            copy = _copy(message, deliveries, position)
            if not copy.is_for(self._group):
                return Done()
            if isinstance(way, RowLock):
                assert self._rows is not None
                return process_under_row_lock(
                    self._rows,
                    way,
                    self._group,
                    message,
                    copy.arrival,
                    self._work(deliveries, None, threading.Event()),
                    self._retry_after,
                    self._owner_host,
                )[0]
            (begun,) = self._store.begin([copy.arrival])
            if not isinstance(begun, Acquired):
                return begun
            lost = self._keeper.hold([begun])[begun]
            try:
                return process(
                    self._store, way, message, begun, self._work(deliveries, begun, lost)
                )[0]
            except StoreUnavailable:
                raise
            except BaseException:
                self._store.give_back([begun], begun)
                raise
            finally:
                self._keeper.release(begun)

        return handle

    @staticmethod
    def settles(outcome: Outcome) -> bool:
        """Whether the message is to be acknowledged. Everything else comes again, without spending a delivery where the
        broker can, but for Ended.FAILED and Conflict, which spend one."""
        ended = outcome.ended if isinstance(outcome, Holding) else outcome
        return ended is Ended.PROCESSED or isinstance(ended, Done | Superseded)

    def close(self) -> None:
        """Stops renewing and closes the connections; a lease that is held ends by itself."""
        self._keeper.close()
        self._store.close()
        if self._rows:
            self._rows.close()

    def _work(self, deliveries: int, lease: Acquired | None, lost: threading.Event) -> Work:
        fence, attempts = (lease.fence, lease.attempts) if lease else (0, deliveries)
        return Work(fence, deliveries, lost, self._stopping, attempts)


def _copy(message: Message, deliveries: int, position: Position | None) -> Copy:
    return read_headers(Received(message, position, "", deliveries))


def _nothing(message: Message, work: Work) -> None:
    """Stands for the body of a `with`, whose way is known before its handler."""


def _nothing_in_transaction(connection: Connection, message: Message, work: Work) -> None:
    """The same, in a transaction."""
