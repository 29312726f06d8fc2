"""Consume: log at first receipt, do the work and complete in one transaction, then acknowledge.

Per batch: fetch | begin, commit | for each message: handler and complete, commit | acknowledge. A crash
at any `|` is repaired by the broker's redelivery, which meets the log: BUSY until the lease ends, then
ours; or DONE. Nothing is acknowledged that is not done, and no silence of the database is taken for a new
message.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from backstop.brokers.protocol import Received, Subscription
from backstop.client.check_message import GROUP_BYTES, check_text
from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.keep_leases import LeaseKeeper
from backstop.client.read_headers import Copy, read_headers
from backstop.errors import ConfigurationError, ContractBroken, LeaseLost, StoreUnavailable, Unavailable
from backstop.leases import guard
from backstop.leases.guard import Acquired, Begun, Busy, Conflict, Done, Parked, Superseded
from backstop.records import Counts, Message
from backstop.run_sql import Connection

log = logging.getLogger(__name__)

NOW = timedelta(0)
LONGEST_PAUSE = timedelta(seconds=5)
"""Between two tries while a database or the broker is away."""
ACKNOWLEDGE_EVERY = 1.0
"""Seconds: slow messages are not all acknowledged at the end of their batch, or the broker would
redeliver."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a handler may know of its lease."""

    fence: int
    """Grows with every grant: a downstream system can refuse a smaller one."""
    deliveries: int
    """How often the broker has delivered this message to the group."""
    lost: threading.Event
    """Set when the lease was lost: the result will be rolled back, so a long handler may give up."""
    stopping: threading.Event
    """Set when the consumer is to stop."""


Handler = Callable[[Connection, Message, Work], None]
"""Does the work through the connection it is given, without commit or rollback; an exception is a failure."""


class Consumer:
    """One worker of a consumer group, over one subscription and one database. Not shared between threads.

    `connect` opens a connection to the consumer database (autocommit off); the consumer keeps two of them.
    `lease` and `retry_after` are the settings of that name in backstop.yaml. `batch` messages are fetched and
    leased at once: 1 for handlers that take long.
    """

    def __init__(
        self,
        subscription: Subscription,
        connect: Connect,
        group: str,
        handler: Handler,
        *,
        lease: timedelta = guard.LEASE,
        retry_after: timedelta = guard.RETRY_AFTER,
        batch: int = 20,
        wait: timedelta = timedelta(seconds=1),
        owner_host: str | None = None,
    ) -> None:
        check_text("group", group, GROUP_BYTES)
        if lease <= NOW or retry_after <= NOW or wait < NOW or batch < 1:
            raise ConfigurationError(
                f"lease {lease}, retry_after {retry_after}, wait {wait} and batch {batch} do not make sense.",
                kept="Nothing was started.",
                next_step="Choose durations and a batch above zero.",
            )
        self._subscription = subscription
        self._store = KeptConnection(connect, "consumer database")
        self._keeper = LeaseKeeper(connect, group, lease)
        self._group, self._handler, self._lease = group, handler, lease
        self._retry_after, self._batch, self._wait = retry_after, batch, wait
        self._owner_host = owner_host
        self.stopping = threading.Event()
        self._done: list[Received] = []

    def run(self, stop: threading.Event | None = None, *, counts: Counts | None = None) -> Counts:
        """Work until `stop` is set: what is in the handler is finished, the rest of the batch given back.

        A database or broker that is away is waited for; every other error of our own is raised. Adds to
        `counts`.
        """
        self.stopping = stop or self.stopping
        counts = Counts() if counts is None else counts
        while not self.stopping.is_set():
            try:
                self.run_once(counts)
            except Unavailable as error:
                counts.add("unavailable")
                log.warning("%s", error)
                self.stopping.wait(min(self._retry_after, LONGEST_PAUSE).total_seconds())
        return counts

    def run_once(self, counts: Counts | None = None) -> Counts:
        """Fetch one batch and bring every message of it to an end; what was done, by name, added to `counts`.

        Raises StoreUnavailable or BrokerUnavailable after everything in hand was left to a redelivery.
        """
        counts = Counts() if counts is None else counts
        copies = self._sort(self._subscription.fetch(self._batch, self._wait), counts)
        waiting = list(_runs_of_distinct_keys(copies))
        try:
            while waiting and not self.stopping.is_set():
                self._work_on(waiting.pop(0), counts)
        finally:
            for copy in chain.from_iterable(waiting):
                self._hand_back(copy, NOW, counts)
        return counts

    def close(self) -> None:
        """Stop renewing and close the connections; the subscription is its owner's to close."""
        self._keeper.close()
        self._store.close()

    def _sort(self, fetched: Sequence[Received], counts: Counts) -> list[Copy]:
        """Ours to do. A copy for other groups is acknowledged untouched, a broken one will be a dead
        letter."""
        ours: list[Copy] = []
        foreign: list[Received] = []
        for received in fetched:
            try:
                copy = read_headers(received)
            except ContractBroken as error:
                counts.add("broken")
                log.error("A message of %r (%s): %s", received.message.topic, received.broker_id, error)
                self._subscription.hand_back(received, after=self._retry_after, counts=True)
                continue
            if copy.is_for(self._group):
                ours.append(copy)
            else:
                counts.add("not_for_us")
                foreign.append(received)
        if foreign:
            self._subscription.acknowledge(foreign)
        return ours

    def _work_on(self, copies: Sequence[Copy], counts: Counts) -> None:
        """Begin all, then one by one; whatever happens, what is done is acknowledged and the rest given
        back."""
        begun = self._begin(copies, counts)
        left = list(zip(copies, begun, strict=True))
        lost = self._keeper.hold(outcome for outcome in begun if isinstance(outcome, Acquired))
        acknowledged_at = time.monotonic()
        try:
            while left and not self.stopping.is_set():
                copy, outcome = left[0]
                if isinstance(outcome, Acquired):
                    self._process(copy, outcome, lost[outcome.token], counts)
                    self._keeper.release(outcome.token)
                else:
                    self._answer(copy, outcome, counts)
                left.pop(0)
                if time.monotonic() - acknowledged_at > ACKNOWLEDGE_EVERY:
                    self._acknowledge_done()
                    acknowledged_at = time.monotonic()
        finally:
            for token in lost:
                self._keeper.release(token)
            # The database first: the leases are free even when the broker is what failed.
            after = self._give_back_leases([o for _, o in left if isinstance(o, Acquired)])
            self._acknowledge_done()
            for copy, _ in left:
                self._hand_back(copy, after, counts)

    def _begin(self, copies: Sequence[Copy], counts: Counts) -> list[Begun]:
        try:
            with self._store.short_transaction() as connection:
                return guard.begin_many(
                    connection,
                    self._group,
                    [copy.arrival for copy in copies],
                    lease_seconds=self._lease.total_seconds(),
                    owner_host=self._owner_host,
                    retry_after=self._retry_after,
                )
        except StoreUnavailable:
            for copy in copies:
                self._hand_back(copy, self._retry_after, counts)
            raise

    def _process(self, copy: Copy, lease: Acquired, lost: threading.Event, counts: Counts) -> None:
        message = copy.received.message
        work = Work(lease.fence, copy.received.deliveries, lost, self.stopping)
        try:
            with self._store.transaction() as connection:
                self._handler(connection, message, work)
                guard.complete(connection, lease)
        except StoreUnavailable:
            # Whether a commit that was cut off took place is the log's to say, at the next delivery.
            raise
        except LeaseLost as error:
            counts.add("lease_lost")
            log.warning("%s", error)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure, kept in the log
            self._fail(copy, lease, error, counts)
        else:
            counts.add("processed")
            self._done.append(copy.received)

    def _fail(self, copy: Copy, lease: Acquired, error: Exception, counts: Counts) -> None:
        log.warning("The handler failed on %r in %r.", lease.message_id, lease.topic, exc_info=error)
        try:
            with self._store.short_transaction() as connection:
                guard.fail(connection, lease, f"{type(error).__name__}: {error}")
        except LeaseLost as lost:
            counts.add("lease_lost")
            log.warning("%s", lost)
            return
        counts.add("failed")
        self._subscription.hand_back(copy.received, after=self._retry_after, counts=True)

    def _answer(self, copy: Copy, outcome: Begun, counts: Counts) -> None:
        """What to tell the broker about a message whose lease was not granted."""
        match outcome:
            case Done() | Superseded():
                self._done.append(copy.received)
            case Busy(retry_after=after):
                self._subscription.hand_back(copy.received, after=after, counts=False)
            case Parked():
                self._subscription.hand_back(copy.received, after=self._retry_after, counts=False)
            case Conflict():
                log.error(
                    "%r in %r came with another content than before; it was not applied.",
                    copy.arrival.message_id,
                    copy.arrival.topic,
                )
                self._subscription.hand_back(copy.received, after=self._retry_after, counts=True)
        counts.add(type(outcome).__name__.lower())

    def _acknowledge_done(self) -> None:
        done, self._done = self._done, []
        if done:
            self._subscription.acknowledge(done)

    def _give_back_leases(self, leases: Sequence[Acquired]) -> timedelta:
        """Release what was not finished; after how long it may come again."""
        if not leases:
            return NOW
        try:
            with self._store.short_transaction() as connection:
                for lease in leases:
                    guard.give_back(connection, lease)
        except StoreUnavailable as error:
            log.warning("%d messages keep their lease until it ends. %s", len(leases), error)
            return self._retry_after
        return NOW

    def _hand_back(self, copy: Copy, after: timedelta, counts: Counts) -> None:
        """Not finished and not failed: it comes again without spending a delivery."""
        self._subscription.hand_back(copy.received, after=after, counts=False)
        counts.add("given_back")


def _runs_of_distinct_keys(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Two copies of a message are begun one after the other: the second meets the log of the first."""
    run: list[Copy] = []
    for copy in copies:
        if any(copy.arrival.key == other.arrival.key for other in run):
            yield run
            run = []
        run.append(copy)
    if run:
        yield run
