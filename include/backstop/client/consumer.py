"""Consume: log at first receipt, do the work in its way, then acknowledge.

Per batch: fetch | begin, commit | for each message: handler and complete, commit | acknowledge. A crash
at any `|` is repaired by the broker's redelivery, which meets the log: BUSY until the lease ends, then
ours; or DONE. Nothing is acknowledged that is not done, and no silence of the database is taken for a new
message.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain

from backstop.brokers.protocol import Received, Subscription
from backstop.client.check_message import check_text
from backstop.client.finished import FinishedDeliveries
from backstop.client.keep_books import BookKeeper
from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.keep_leases import LeaseKeeper
from backstop.client.lease_store import lease_store
from backstop.client.ordered_peers import OrderedPeers
from backstop.client.process import Ended, error_text
from backstop.client.read_headers import Copy, read_headers
from backstop.client.tries import Tries
from backstop.client.ways import Handler, Leased, RowLock, Transactional, Way, Work, way_of
from backstop.leases import queue_owner
from backstop.leases.front import Front
from backstop.leases.lease import (
    LEASE,
    RETRY_AFTER,
    Acquired,
    Begun,
    Busy,
    Conflict,
    Done,
    Parked,
    Superseded,
)
from backstop.leases.redis_guard import RedisGuard
from backstop.model.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ContractBroken,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.log_limit import LimitedLog
from backstop.model.records import GROUP_BYTES, Counts

log = logging.getLogger(__name__)

NOW = timedelta(0)
LONGEST_PAUSE = timedelta(seconds=5)
"""Between two tries while a database or the broker is away."""
ACKNOWLEDGE_EVERY = 1.0
"""Seconds: slow messages are not all acknowledged at the end of their batch, or the broker would
redeliver."""
CONFLICT = "Conflict: its id came with another content than before; it was not applied"
"""What a dead letter says of it."""
_OUTCOMES = {
    "processed": "done",
    "done": "duplicates",
    "done_before": "duplicates",
    "superseded": "superseded",
    "conflict": "conflicts",
    "failed": "failed",
    "broken": "failed",
    "lease_lost": "fenced_off",
    "not_for_us": "not_for_us",
    "busy": "handed_back",
    "parked": "handed_back",
    "given_back": "handed_back",
}
"""What is counted of a batch, as the books name it."""


class Consumer:
    """One worker of a consumer group, over one subscription and its leases. Not shared between threads.

    `connect` opens a connection to the consumer database (autocommit off); the consumer keeps two to four. `redis` is
    a Front beside it (recommended: what is done or busy is answered without the database) or, with `connect=None`, a
    RedisGuard: leases in Redis alone. `handler` is a bare function of a connection, a message and its Work, or one
    marked as `leased` or `row_lock`: docs/how-to/process-once.md.
    `lease` and `retry_after` are the settings of that name in backstop.yaml. `batch` messages are fetched and
    leased at once: 1 for handlers that take long. `member` names this consumer among the group's living ones: with it
    the books are written to the consumer database every minute.
    """

    def __init__(
        self,
        subscription: Subscription,
        connect: Connect | None,
        group: str,
        handler: Handler | Way,
        *,
        redis: Front | RedisGuard | None = None,
        lease: timedelta = LEASE,
        retry_after: timedelta = RETRY_AFTER,
        batch: int = 20,
        wait: timedelta = timedelta(seconds=1),
        owner_host: str | None = None,
        member: str | None = None,
    ) -> None:
        check_text("group", group, GROUP_BYTES)
        if lease <= NOW or retry_after <= NOW or wait < NOW or batch < 1:
            raise ConfigurationError(
                f"lease {lease}, retry_after {retry_after}, wait {wait} and batch {batch} do not make sense.",
                unaffected="Nothing was started.",
                next_step="Choose durations and a batch above zero.",
            )
        self._subscription = subscription
        self._way = way_of(handler)
        self._rows = KeptConnection(connect, "consumer database") if connect else None
        self._store = lease_store(connect, group, self._way, redis, lease, retry_after, owner_host)
        self._keeper = LeaseKeeper(self._store, lease)
        self._ordered_peers = OrderedPeers(self._rows, group) if self._rows else None
        self._finished = FinishedDeliveries()
        self._server_life: str | None = None
        self._group = group
        self._retry_after, self._batch, self._wait = retry_after, batch, wait
        self._book_rows = (
            KeptConnection(connect, "consumer database") if connect and member else None
        )
        self._ledger = BookKeeper(self._book_rows, group, member or "")
        self.books = self._ledger.books
        self._limited = LimitedLog(log)
        self._tries = Tries(
            self._store, group, self._finished, self._limited, retry_after, owner_host
        )
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
                if self._ledger.is_due():
                    self._ledger.write(0)
            except Unavailable as error:
                counts.add("unavailable")
                self._limited.warning(str(error))
                self.stopping.wait(min(self._retry_after, LONGEST_PAUSE).total_seconds())
        try:
            self._ledger.write(0, has_ended=True)
        except Unavailable as error:
            log.warning("The last books were not written. %s", error)
        return counts

    def run_once(self, counts: Counts | None = None) -> Counts:
        """Fetch one batch and bring every message of it to an end; what was done, by name, added to `counts`.

        Raises ConfigurationError beside ordered consumers of the group; StoreUnavailable or BrokerUnavailable after every
        received message was left to a redelivery.
        """
        counts = Counts() if counts is None else counts
        if self._ordered_peers is not None:  # before it takes anything out of its order
            self._ordered_peers.refuse(self._subscription.topics)
        fetched = self._subscription.fetch(self._batch, self._wait)
        before = Counts(counts)
        try:
            self._process(fetched, counts)
        except BaseException as error:
            if _met_store_away(error):
                self._finished.forget()
            self._book(len(fetched), before, counts, was_cut_short=True)
            raise
        self._book(len(fetched), before, counts, was_cut_short=False)
        return counts

    def _process(self, fetched: Sequence[Received], counts: Counts) -> None:
        try:
            if any(
                received.sequence and (self._server_life is None or self._finished.knows(received))
                for received in fetched
            ):
                self._compare_server()
        except StoreUnavailable:
            self._hand_back_each(fetched, self._retry_after, counts)
            raise
        waiting = list(_runs_of_distinct_keys(self._sort(fetched, counts)))
        try:
            while waiting and not self.stopping.is_set():
                batch = waiting.pop(0)
                if isinstance(self._way, RowLock):
                    self._work_on_rows(self._way, batch, counts)
                else:
                    self._work_on(self._way, batch, counts)
        finally:
            for name, number in self._store.drain_counts().items():
                counts.add(name, number)
            left = [copy.received for copy in chain.from_iterable(waiting)]
            self._hand_back_each(left, NOW, counts)

    def _book(self, received: int, before: Counts, counts: Counts, *, was_cut_short: bool) -> None:
        """What became of one batch; what an error of a server cut short is left to a redelivery."""
        self.books.add("received", received)
        for name, entry in _OUTCOMES.items():
            number = counts.get(name, 0) - before.get(name, 0)
            if not (was_cut_short and entry == "handed_back"):
                self.books.add(entry, number)
                received -= number
        if was_cut_short:
            self.books.add("handed_back", received)

    def close(self) -> None:
        """Stop renewing and close the connections; the subscription is its owner's to close."""
        self._keeper.close()
        self._store.close()
        if self._rows:
            self._rows.close()
        if self._book_rows:
            self._book_rows.close()

    def _sort(self, fetched: Sequence[Received], counts: Counts) -> list[Copy]:
        """Ours to do. A copy for other groups is acknowledged untouched, a broken one will be a dead
        letter."""
        ours: list[Copy] = []
        foreign: list[Received] = []
        broken: list[tuple[Received, str]] = []
        for received in fetched:
            try:
                copy = read_headers(received)
            except ContractBroken as error:
                counts.add("broken")
                log.error(
                    "A message of %r (%s): %s", received.message.topic, received.broker_id, error
                )
                broken.append((received, error_text(error)))
                continue
            if self._finished.knows(received):
                counts.add("done_before")
                foreign.append(received)
            elif copy.is_for(self._group):
                ours.append(copy)
            else:
                counts.add("not_for_us")
                foreign.append(received)
        try:
            for received, text in broken:
                self._subscription.hand_back(
                    received, after=self._retry_after, counts=True, error=text
                )
            if foreign:
                self._subscription.acknowledge(foreign)
        except BaseException:  # of what has ended already, nothing is left to hand back
            self._hand_back_each(fetched, self._retry_after, counts)
            raise
        return ours

    def _compare_server(self) -> None:
        """Before anything is taken for finished: the database is the one that knows it as such."""
        if self._rows is None:
            return
        with self._rows.short_transaction() as connection:
            life = queue_owner.server_life(connection)
        if life != self._server_life:
            self._server_life = life
            self._finished.forget()

    def _note_finished(self, received: Received) -> None:
        """Where leases are in Redis alone, Redis answers: it forgets, and nothing here may remember longer."""
        if self._rows is not None:
            self._finished.add([received])

    def _work_on(self, way: Transactional | Leased, copies: Sequence[Copy], counts: Counts) -> None:
        """Begin all, then one by one; whatever happens, what is done is acknowledged and the rest given
        back."""
        begun = self._begin(copies, counts)
        left = list(zip(copies, begun, strict=True))
        lost = self._keeper.hold(outcome for outcome in begun if isinstance(outcome, Acquired))
        entered: Acquired | None = None
        acknowledged_at = time.monotonic()
        try:
            while left and not self.stopping.is_set():
                copy, outcome = left[0]
                if isinstance(outcome, Acquired) and lost[outcome].is_set():
                    # While it waited for its turn: another worker has it, or will.
                    log.warning(
                        "The lease of %r in %r was lost before its turn.",
                        *reversed(copy.arrival.key),
                    )
                    self._end(copy, Ended.LEASE_LOST, None, counts)
                elif isinstance(outcome, Acquired):
                    entered = outcome
                    work = self._work(copy, outcome, lost[outcome])
                    self._conclude(copy, *self._tries.with_lease(way, copy, outcome, work), counts)
                    self._keeper.release(outcome)
                else:
                    self._answer(copy, outcome, counts)
                left.pop(0)
                if time.monotonic() - acknowledged_at > ACKNOWLEDGE_EVERY:
                    self._acknowledge_done()
                    acknowledged_at = time.monotonic()
        finally:
            for lease in lost:
                self._keeper.release(lease)
            # The database first: the leases are free even when the broker is what failed.
            after = self._give_back_leases([o for _, o in left if isinstance(o, Acquired)], entered)
            try:
                self._acknowledge_done()
            finally:
                self._hand_back_each([copy.received for copy, _ in left], after, counts)

    def _work_on_rows(self, way: RowLock, copies: Sequence[Copy], counts: Counts) -> None:
        """Without leases: one by one, the business row decides."""
        assert self._rows is not None
        left = list(copies)
        try:
            while left and not self.stopping.is_set():
                copy = left[0]
                work = self._work(copy, None, threading.Event())
                ended = self._tries.with_row_lock(self._rows, way, copy, work)
                self._conclude(copy, *ended, counts)
                left.pop(0)
                self._acknowledge_done()
        finally:
            after = NOW if self.stopping.is_set() else self._retry_after
            self._hand_back_each([copy.received for copy in left], after, counts)

    def _work(self, copy: Copy, lease: Acquired | None, lost: threading.Event) -> Work:
        fence, attempts = (lease.fence, lease.attempts) if lease else (0, copy.received.deliveries)
        return Work(fence, copy.received.deliveries, lost, self.stopping, attempts)

    def _begin(self, copies: Sequence[Copy], counts: Counts) -> list[Begun]:
        try:
            return self._store.begin([copy.arrival for copy in copies])
        except StoreUnavailable:
            self._hand_back_each([copy.received for copy in copies], self._retry_after, counts)
            raise

    def _conclude(
        self, copy: Copy, outcome: Ended | Begun, error: str | None, counts: Counts
    ) -> None:
        if isinstance(outcome, Ended):
            self._end(copy, outcome, error, counts)
        else:
            self._answer(copy, outcome, counts)

    def _end(self, copy: Copy, ended: Ended, error: str | None, counts: Counts) -> None:
        counts.add(ended.value)
        if ended is Ended.PROCESSED:
            self._done.append(copy.received)
            self._note_finished(copy.received)
        elif ended is Ended.FAILED:
            self._subscription.hand_back(
                copy.received, after=self._retry_after, counts=True, error=error
            )
        else:  # whoever has it now has the log's word; a broker that lends for good must offer it again
            self._subscription.hand_back(copy.received, after=self._retry_after, counts=False)

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
                self._subscription.hand_back(
                    copy.received, after=self._retry_after, counts=True, error=CONFLICT
                )
        counts.add(type(outcome).__name__.lower())

    def _acknowledge_done(self) -> None:
        done, self._done = self._done, []
        if done:
            self._subscription.acknowledge(done)

    def _give_back_leases(self, leases: Sequence[Acquired], entered: Acquired | None) -> timedelta:
        """Release what was not finished; after how long it may come again. What a handler had entered stays an attempt."""
        if not leases:
            return NOW
        try:
            self._store.give_back(leases, entered)
        except StoreUnavailable as error:
            log.warning("%d messages keep their lease until it ends. %s", len(leases), error)
            self._finished.forget()
            return self._retry_after
        return NOW

    def _hand_back_each(
        self, messages: Sequence[Received], after: timedelta, counts: Counts
    ) -> None:
        """Not finished and not failed: they come again without spending a delivery. One that cannot be handed back holds up no
        other; raises BrokerUnavailable for the first of these at the end."""
        refused: BrokerUnavailable | None = None
        for received in messages:
            try:
                self._subscription.hand_back(received, after=after, counts=False)
            except BrokerUnavailable as error:
                refused = refused or error
            counts.add("given_back")
        if refused is not None:
            raise refused


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


def _met_store_away(error: BaseException | None) -> bool:
    """Whether the database was away: also where what was handed back then met a broker that was away, too."""
    while error is not None and not isinstance(error, StoreUnavailable):
        error = error.__context__
    return error is not None
