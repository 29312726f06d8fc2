"""Consume in order: messages with one ordering key one after the other, different keys at once.

Each round: renew the owned queues | read them | begin the heads of lanes, commit | in the pool, for each: handler, fence
and complete, commit | acknowledge. A failed head is tried again in place. After `attempts` its key is parked: the head and
its followers are logged PARKED with their contents, acknowledged, and the queue moves on; a person answers.
A crash at any `|` leaves messages that the next owner of the queue adopts before it reads on; the log stops what was done.
"""

import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from backstop.brokers.owned import OwnedSubscription
from backstop.client.acknowledge import Acknowledgements
from backstop.client.blame import Blame
from backstop.client.check_message import check_text
from backstop.client.downstream import Downstream
from backstop.client.finished import FinishedOffsets
from backstop.client.keep_books import BookKeeper
from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.keep_leases import LeaseKeeper
from backstop.client.keep_queues import QueueKeeper
from backstop.client.lanes import Lane, Lanes
from backstop.client.lease_store import InDatabase
from backstop.client.own_queues import OwnQueues
from backstop.client.read_headers import Copy
from backstop.client.read_owned import QueueReader, ordering_key
from backstop.client.retries import Retries
from backstop.client.settle_heads import HeadSettler
from backstop.client.suspects import Suspects
from backstop.client.try_head import Result, Tried, try_head
from backstop.client.ways import Handler, RowLock, Way, Work, way_of
from backstop.client.worker_pool import Results, WorkerPool
from backstop.leases import parking, queue_owner
from backstop.leases.lease import (
    LEASE,
    RETRY_AFTER,
    Acquired,
    Busy,
)
from backstop.leases.parking import InOrder, Limits
from backstop.leases.queue_owner import DRAIN_TIMEOUT, QueueLost
from backstop.model.errors import (
    BrokerUnavailable,
    ConfigurationError,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.log_limit import LimitedLog
from backstop.model.records import GROUP_BYTES, Counts

log = logging.getLogger(__name__)

NOW = timedelta(0)
IDLE = (0.005, 0.1)
"""Seconds between two reads of queues that are empty: from, and up to."""
GATHER = 0.02
"""Seconds that the end of a message may wait for others, while all threads have work."""
LOOK_FOR_ANSWERS = 1.0
"""Seconds between two looks for parked keys that a person has answered."""
MOST_OF_LEASE = 0.9
"""Of a queue's lease, for draining it: who drains as long as the lease lasts may no longer own it."""


class OrderedConsumer:
    """One consumer of a group that owns its queues. Driven by one thread; handlers run in a pool of `workers` threads.

    `subscription` reads owned queues (`RedisStreams.subscribe_owned`), `connect` opens connections to the consumer
    database, `member` names this consumer among the group's living ones. `handler` is a bare function of a connection, a
    message and its Work, or one marked as `leased`. A queue that is handed over is drained within `drain_within`, and within nine
    tenths of `queue_lease` if that is shorter: afterwards another member may take it. Within a group, either all consumers of a
    topic are ordered or none.

    `strict`: the messages of a queue are done one after the other, whatever their keys, and a failed one is tried until it is
    done: nothing is parked.
    """

    def __init__(
        self,
        subscription: OwnedSubscription,
        connect: Connect,
        group: str,
        handler: Handler | Way,
        *,
        member: str,
        workers: int = 8,
        lease: timedelta = LEASE,
        queue_lease: timedelta = queue_owner.LEASE,
        drain_within: timedelta = DRAIN_TIMEOUT,
        beat: timedelta = timedelta(seconds=1),
        retry_after: timedelta = RETRY_AFTER,
        retries: Retries | None = None,
        limits: Limits | None = None,
        strict: bool = False,
        fetch: int = 500,
        blame: Blame | None = None,
        owner_host: str | None = None,
    ) -> None:
        check_text("group", group, GROUP_BYTES)
        retries = retries or Retries()
        if (
            min(lease, queue_lease, drain_within, beat, retry_after) <= NOW
            or min(workers, fetch, retries.attempts) < 1
        ):
            raise _refused("Durations, workers, fetch and attempts must be above zero.")
        if beat * 3 > queue_lease:
            raise _refused(
                f"A beat of {beat} does not renew a queue's lease of {queue_lease} in time."
            )
        way = way_of(handler)
        if isinstance(way, RowLock):
            raise _refused("A row_lock handler has no lease, which order needs.")
        self._way, self._group, self._host = way, group, owner_host
        self._lease, self._retry_after, self._retries = lease, retry_after, retries
        self._limits, self._fetch, self._beat = limits or Limits(), fetch, beat.total_seconds()
        self._strict = strict
        self._store = KeptConnection(connect, "consumer database")
        self._pool = WorkerPool(connect, workers)
        self._workers, self._at_once = workers, 2 * workers
        drain_within = min(drain_within, queue_lease * MOST_OF_LEASE)
        self._queues = OwnQueues(self._store, group, member, queue_lease, drain_within)
        renewals = InDatabase(
            connect, group, lease=lease, retry_after=retry_after, owner_host=owner_host
        )
        self._leases = LeaseKeeper(renewals, lease)
        self._downstream = Downstream(
            self._store, group, member, self._retries.after, blame or Blame()
        )
        self._lanes = Lanes(most_of_one=fetch if strict else max(1, fetch // 8))
        self._ledger = BookKeeper(self._store, group, member)
        self.books = self._ledger.books
        self._results: Results[Result] = Results()
        self._in_pool: set[Lane] = set()
        self._suspects = Suspects()
        self._looked_at = float("-inf")
        self._finished = FinishedOffsets()
        self._limited = LimitedLog(log)
        self._acknowledgements = Acknowledgements(
            subscription, self._finished, retry_after, self._limited
        )
        self._keeper = QueueKeeper(
            subscription,
            self._store,
            self._queues,
            self._lanes,
            self._finished,
            self.books,
            beat,
            self._limited,
        )
        self._reader = QueueReader(
            subscription,
            self._keeper,
            self._lanes,
            self._finished,
            self._acknowledgements,
            self.books,
            group,
            self._limited,
            retries=retries,
            fetch=fetch,
            strict=strict,
        )
        self._settler = HeadSettler(
            self._store,
            self._keeper,
            self._lanes,
            self._finished,
            self._acknowledgements,
            self._downstream,
            self.books,
            self._limited,
            retries=retries,
            retry_after=retry_after,
            limits=self._limits,
            strict=strict,
        )
        self.stopping = threading.Event()

    def run(self, stop: threading.Event | None = None, *, counts: Counts | None = None) -> Counts:
        """Work until `stop` is set; then what is in handlers is finished, acknowledged, and the queues are released.

        A database or broker that is away is waited for; every other error of our own is raised. Adds to `counts`.
        """
        self.stopping = stop or self.stopping
        counts = Counts() if counts is None else counts
        idle = IDLE[0]
        while not self.stopping.is_set():
            try:
                moved = self.step(counts)
            except Unavailable as error:
                counts.add("unavailable")
                self._limited.warning(str(error))
                self._keeper.forget_finished()
                self.stopping.wait(min(self._retry_after.total_seconds(), 1.0))
                continue
            idle = IDLE[0] if moved else min(idle * 2, IDLE[1])
            if moved:
                self._gather()
            else:
                self._wait_for_result(idle)
        self._hand_over(counts)
        return counts

    def step(self, counts: Counts) -> bool:
        """One round; whether anything moved. Raises StoreUnavailable or BrokerUnavailable; no received message is lost by it."""
        self._keeper.keep(counts)
        moved = self._collect(counts)
        found, unread = self._reader.read(counts, busy=bool(self._in_pool))
        self._look_for_answers(counts)
        moved |= self._start(counts)
        try:
            self._acknowledgements.send()
        except BrokerUnavailable as error:
            if not self._keeper.is_unheard:
                raise
            unread = (
                error  # what it does not hear comes again to the next owner, which its log stops
            )
        self._keeper.release_drained()
        if self._ledger.is_due():
            self._ledger.write(self.in_process())
        if unread is not None:
            raise unread
        return moved or found

    def in_process(self) -> int:
        """Messages that were taken in and have no end yet."""
        tried = sum(lane.releases or not self._lanes.has(lane) for lane in self._in_pool)
        return self._lanes.waiting() + tried

    def close(self) -> None:
        """Ends the threads and closes the connections; the subscription is its owner's to close."""
        self._pool.close()
        self._leases.close()
        self._store.close()

    def _hand_over(self, counts: Counts) -> None:
        """A graceful stop: nothing new is started; what is in handlers is finished, acknowledged and released.

        A database that is away is waited for as long as a handover may take. A broker is not: what it does not hear comes again.
        """
        until = time.monotonic() + self._queues.drain_within.total_seconds()
        while True:
            try:
                self._finish(counts)
                return
            except StoreUnavailable as error:
                counts.add("unavailable")
                self._keeper.forget_finished()
                if time.monotonic() >= until:
                    log.warning("The queues are free when their lease ends. %s", error)
                    return
                self._limited.warning(str(error))
                self._wait_for_result(IDLE[1])

    def _finish(self, counts: Counts) -> None:
        self._keeper.keep(counts, leaving=True)
        while self._in_pool:
            self._wait_for_result(1.0)
            self._collect(counts)
            self._acknowledge_if_heard(counts)
            self._keeper.release_drained()
        self._acknowledge_if_heard(counts)
        self._keeper.release_drained()
        self._downstream.say_back()
        self._ledger.write(self.in_process(), has_ended=True)

    def _acknowledge_if_heard(self, counts: Counts) -> None:
        try:
            self._acknowledgements.send()
        except BrokerUnavailable as error:
            counts.add("unavailable")
            self._limited.warning(
                f"What was done last comes again, and is stopped by its log. {error}"
            )

    def _look_for_answers(self, counts: Counts) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_FOR_ANSWERS:
            return
        self._looked_at = now
        self._queues.take_left(list(self._keeper.topics), self._fetch)
        left = [holding for holding in self._queues.held.values() if holding.releases_only]
        for holding in left:
            if not holding.is_adopted:
                self._keeper.adopt(holding)
                counts.add("queues_taken_to_release")
        live = [
            holding.queue
            for holding in self._queues.held.values()
            if self._queues.is_live(holding.queue)
        ]
        with self._store.short_transaction() as connection:
            released = parking.releasing(connection, self._group, live, self._fetch)
        for queue, key in released:
            self._lanes.add(queue, key, None, releases=True)
        wanted = {queue for queue, _ in released}
        for holding in left:
            if holding.queue not in wanted and not self._lanes.in_work(holding.queue):
                self._keeper.let_go(holding)

    def _start(self, counts: Counts) -> bool:
        if self.stopping.is_set() or self._downstream.is_waited_for() or self._suspects.hold_up():
            return False
        ready = self._lanes.start(time.monotonic(), self._at_once - len(self._in_pool))
        lanes = self._suspects.choose(ready, is_idle=not self._in_pool)
        live = [lane for lane in lanes if self._queues.is_live(lane.queue)]
        for lane in ready:
            if lane not in live:
                self._settler.again(lane, self._beat if lane in lanes else 0.0)
        releases = [lane for lane in live if lane.releases]
        try:
            self._begin([lane for lane in live if not lane.releases], counts)
            while releases:
                self._begin_released(releases.pop(0), counts)
        except StoreUnavailable:
            for lane in releases:
                self._settler.again(lane, self._retry_after.total_seconds())
            raise
        return bool(live)

    def _begin(self, lanes: Sequence[Lane], counts: Counts) -> None:
        asked: dict[tuple[str, str], tuple[Lane, InOrder]] = {}
        for lane in lanes:
            copy: Copy = lane.waiting[0]
            if (
                copy.arrival.key in asked
            ):  # a second copy in another queue: it meets the log of the first
                self._settler.again(lane, 0.0)
                continue
            head = InOrder(lane.queue, ordering_key(copy), copy.received.message, copy.arrival)
            asked[copy.arrival.key] = (lane, head)
        if not asked:
            return
        try:
            with self._store.short_transaction() as connection:
                begun = parking.begin_in_order(
                    connection,
                    self._group,
                    [head for _, head in asked.values()],
                    self._limits,
                    lease=self._lease,
                    owner_host=self._host,
                    retry_after=self._retry_after,
                )
        except StoreUnavailable:
            for lane, _ in asked.values():
                self._settler.again(lane, self._retry_after.total_seconds())
            raise
        lost = self._leases.hold(outcome for outcome in begun if isinstance(outcome, Acquired))
        failed: StoreUnavailable | None = None
        for (lane, head), outcome in zip(asked.values(), begun, strict=True):
            try:
                if isinstance(outcome, Acquired):
                    self._try(lane, head, outcome, lost[outcome], counts)
                else:
                    self._settler.answer(lane, outcome, counts)
            except StoreUnavailable as error:  # the others must not wait for it: they have leases
                self._settler.again(lane, self._retry_after.total_seconds())
                failed = error
        if failed:
            raise failed

    def _begin_released(self, lane: Lane, counts: Counts) -> None:
        try:
            with self._store.short_transaction() as connection:
                begun = parking.begin_released(
                    connection,
                    lane.queue,
                    lane.key,
                    lease=self._lease,
                    owner_host=self._host,
                    retry_after=self._retry_after,
                )
        except QueueLost:
            self._keeper.lose(lane.queue, counts)
            self._settler.again(lane, 0.0)
            return
        except StoreUnavailable:
            self._settler.again(lane, self._retry_after.total_seconds())
            raise
        if begun is None:
            self._lanes.ended(lane)
        elif isinstance(begun, Busy):
            self._settler.again(lane, begun.retry_after.total_seconds())
        else:
            head, lease = begun
            self.books.add("released")
            self._submit(lane, head, lease, self._leases.hold([lease])[lease], lease.attempts)

    def _try(
        self, lane: Lane, head: InOrder, lease: Acquired, lost: threading.Event, counts: Counts
    ) -> None:
        # Nobody lived to say that it failed: it may have killed its workers.
        tries = lease.attempts - lane.excused
        if tries > 1 and not (lane.failures or lane.is_suspect or self._strict):
            lane.is_suspect = True
            try:
                self._settler.give_back(Result(lane, head, lease, Tried.LEASE_LOST), None)
            finally:
                self._leases.release(lease)
            self._settler.again(lane, 0.0)
        elif tries > self._retries.attempts and not self._strict:
            try:
                self._settler.park(Result(lane, head, lease, Tried.FAILED), None, counts)
            finally:
                self._leases.release(lease)
        else:
            self._submit(lane, head, lease, lost, lane.waiting[0].received.deliveries)

    def _submit(
        self, lane: Lane, head: InOrder, lease: Acquired, lost: threading.Event, deliveries: int
    ) -> None:
        work = Work(lease.fence, deliveries, lost, self.stopping, lease.attempts)
        self._in_pool.add(lane)
        self._suspects.entered(lane)
        way, database = self._way, self._keeper.database

        def task(store: KeptConnection) -> None:
            if not self._may_begin(lane, lost):
                self._results.put(Result(lane, head, lease, Tried.NOT_TRIED))
                return
            result = try_head(store, way, lane, head, lease, work, database)
            if result.tried is Tried.PROCESSED:
                self._leases.release(lease)  # what is done is not renewed, and so not found lost
            self._results.put(result)

        self._pool.submit(task)

    def _may_begin(self, lane: Lane, lost: threading.Event) -> bool:
        """Asked in the pool's thread, for which the head has waited: its handler would not hear of what happened meanwhile before it has
        begun."""
        return not (lost.is_set() or self.stopping.is_set() or not self._queues.is_live(lane.queue))

    def _wait_for_result(self, seconds: float) -> None:
        self._results.wait(1, seconds)

    def _gather(self) -> None:
        """Each round is round trips for all that has ended: while the pool has tasks that wait for a thread, several are one round."""
        waiting = len(self._in_pool) - self._workers
        if waiting > 1:
            self._results.wait(waiting // 2, GATHER)

    def _collect(self, counts: Counts) -> bool:
        number = len(self._results)
        for _ in range(number):
            result = self._results.take()
            self._in_pool.discard(result.lane)
            self._suspects.ended(result.lane)
            counts.add(result.tried.value)
            outcome = "handed_back"  # of one that is released: its content is kept until it is done
            try:
                outcome = self._settler.end(result, counts)
            except StoreUnavailable:
                self._settler.again(result.lane, self._retry_after.total_seconds())
                raise
            finally:
                if result.lane.releases:
                    self.books.add(outcome)
                self._leases.release(result.lease)
        return number > 0


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        what, unaffected="Nothing was started.", next_step="Choose other values."
    )
