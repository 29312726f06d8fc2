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
from dataclasses import dataclass
from datetime import timedelta

from backstop.brokers.owned import OwnedSubscription
from backstop.brokers.protocol import Received
from backstop.client.blame import Blame
from backstop.client.check_message import check_text
from backstop.client.downstream import Downstream
from backstop.client.finished import FinishedOffsets
from backstop.client.keep_books import BookKeeper
from backstop.client.keep_connection import Connect, KeptConnection
from backstop.client.keep_leases import LeaseKeeper
from backstop.client.lanes import Lane, Lanes
from backstop.client.lease_store import InDatabase
from backstop.client.own_queues import Holding, OwnQueues
from backstop.client.process import told
from backstop.client.read_headers import Copy, read_headers
from backstop.client.suspects import Suspects
from backstop.client.try_head import Result, Tried, try_head
from backstop.client.ways import Handler, RowLock, Way, Work, way_of
from backstop.client.worker_pool import Results, WorkerPool
from backstop.leases import guard, parking, queue_owner
from backstop.leases.lease import (
    LEASE,
    RETRY_AFTER,
    Acquired,
    Busy,
    Conflict,
    Done,
    Parked,
    Superseded,
)
from backstop.leases.parking import Full, InOrder, Kept, Limits, NotOwner, ParkingFull
from backstop.leases.queue_owner import DRAIN_TIMEOUT, OwnedQueue, QueueLost
from backstop.model.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ContractBroken,
    LeaseLost,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.log_limit import LimitedLog
from backstop.model.records import GROUP_BYTES, Counts

log = logging.getLogger(__name__)

NOW = timedelta(0)
KEY_BYTES = 1024
WHOLE_QUEUE = ""
"""The one lane of a queue whose messages are done in strict order."""
IDLE = (0.005, 0.1)
"""Seconds between two reads of queues that are empty: from, and up to."""
GATHER = 0.02
"""Seconds that the end of a message may wait for others, while all threads have work."""
EMPTY = 0.02
"""Seconds before a queue that was empty is read again, while handlers are in work."""
LOOK_FOR_ANSWERS = 1.0
"""Seconds between two looks for parked keys that a person has answered."""
SILENT_AFTER = 1.0
"""Seconds: a read that failed later than this was not refused: nothing else is asked of the broker in this round."""
MOST_GAPS = 10_000
"""A queue with more unfinished intervals than this is not read on."""
CRASHED = "Its worker ended, or lost its lease, each time it was tried."
CONFLICT = "Conflict: its id came with another content than before; it was not applied"


@dataclass(frozen=True, slots=True)
class Retries:
    """How a failed head is tried again in place."""

    attempts: int = 3
    """Then its key is parked."""
    backoff: timedelta = timedelta(seconds=1)
    """Before the second try, doubled before each further one."""
    longest: timedelta = timedelta(seconds=30)
    """Also between two tries of a downstream that is away."""

    def after(self, failures: int) -> float:
        """Seconds before the next try."""
        return min(
            self.longest.total_seconds(),
            self.backoff.total_seconds() * 2.0 ** min(failures - 1, 30),
        )


class OrderedConsumer:
    """One consumer of a group that owns its queues. Driven by one thread; handlers run in a pool of `workers` threads.

    `subscription` reads owned queues (`RedisStreams.subscribe_owned`), `connect` opens connections to the consumer
    database, `member` names this consumer among the group's living ones. `handler` is a bare function of a connection, a
    message and its Work, or one marked as `leased`. Within a group, either all consumers of a topic are ordered or none.

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
        self._way = way
        self._subscription, self._group, self._member, self._host = (
            subscription,
            group,
            member,
            owner_host,
        )
        self._lease, self._retry_after, self._retries = lease, retry_after, retries
        self._limits, self._fetch, self._beat = limits or Limits(), fetch, beat.total_seconds()
        self._strict = strict
        self._store = KeptConnection(connect, "consumer database")
        self._pool = WorkerPool(connect, workers)
        self._workers, self._at_once = workers, 2 * workers
        self._queues = OwnQueues(self._store, group, member, queue_lease, drain_within)
        renewals = InDatabase(
            connect, group, lease=lease, retry_after=retry_after, owner_host=owner_host
        )
        self._keeper = LeaseKeeper(renewals, lease)
        self._downstream = Downstream(
            self._store, group, member, self._retries.after, blame or Blame()
        )
        self._lanes = Lanes()
        self._ledger = BookKeeper(self._store, group, member)
        self.books = self._ledger.books
        self._results: Results[Result] = Results()
        self._in_pool: set[Lane] = set()
        self._suspects = Suspects()
        self._done: list[Received] = []
        self._unusable: list[tuple[Received, str]] = []
        """To become dead letters."""
        self._bury_at = 0.0
        """By the monotonic clock: before it, no broker is asked again to take a dead letter that one refused."""
        self._topics: dict[str, list[int]] = {}
        self._finished = FinishedOffsets()
        self._server_life: str | None = None
        self._database = 0
        """How often the consumer database was away, or became another server, so far."""
        self._beat_at = self._looked_at = float("-inf")
        self._limited = LimitedLog(log)
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
                self._forget_finished()
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
        self._keep_queues(counts)
        moved = self._collect(counts)
        found, unread = self._read(counts)
        self._look_for_answers(counts)
        moved |= self._start(counts)
        self._acknowledge()
        self._release_drained()
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
        self._keeper.close()
        self._store.close()

    # Queues

    def _keep_queues(self, counts: Counts, *, leaving: bool = False) -> None:
        now = time.monotonic()
        if now - self._beat_at < self._beat and not leaving:
            return
        try:
            self._topics = self._subscription.queues()
        except BrokerUnavailable as error:  # what is owned stays owned
            self._limited.warning(str(error))
        self._compare_server()
        for lost in self._queues.beat(
            self._topics, assigned=self._subscription.assigns, leaving=leaving
        ):
            counts.add("queues_lost")
            self._limited.warning(
                f"Queue {lost.queue.queue_id} of {lost.queue.topic!r} was taken by another consumer."
            )
            self._forget(lost.queue)
        for holding in self._queues.held.values():
            if holding.draining:
                self._drop(holding.queue)
            elif not holding.is_adopted:
                self._adopt(holding)
                counts.add("queues_taken")
        self._beat_at = now

    def _adopt(self, holding: Holding) -> None:
        """It was taken: where it stopped and what was finished of it is ours to say."""
        queue = holding.queue
        with self._store.short_transaction() as connection:
            parking.go_on(connection, queue)
            finished = queue_owner.finished(connection, queue)
        self._finished.adopt((queue.topic, queue.queue_id), finished)
        holding.is_adopted = True

    def _let_go(self, holding: Holding) -> None:
        """Nothing of it is in work."""
        queue = holding.queue
        self._queues.release(holding, self._finished.saved((queue.topic, queue.queue_id)))
        self._forget(queue)

    def _forget(self, queue: OwnedQueue) -> None:
        """What is left of the queue here is its next owner's."""
        place = (queue.topic, queue.queue_id)
        self._drop(queue)
        if place not in self._queues.held:
            self._subscription.forget(place)
            self._finished.leave(place)

    def _drop(self, queue: OwnedQueue) -> None:
        self.books.add("handed_back", self._lanes.drop(queue))

    def _release_drained(self) -> None:
        for holding in list(self._queues.held.values()):
            if holding.draining and not self._lanes.in_work(holding.queue):
                if holding.stopped_by is not None:  # its next owner, if there is one, says so again
                    with self._store.short_transaction() as connection:
                        parking.go_on(connection, holding.queue)
                self._let_go(holding)

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
                self._forget_finished()
                if time.monotonic() >= until:
                    log.warning("The queues are free when their lease ends. %s", error)
                    return
                self._limited.warning(str(error))
                self._wait_for_result(IDLE[1])

    def _finish(self, counts: Counts) -> None:
        self._keep_queues(counts, leaving=True)
        self._queues.leave()  # or the others would leave it its share until its lease ends
        while self._in_pool:
            self._wait_for_result(1.0)
            self._collect(counts)
            self._acknowledge_if_heard(counts)
            self._release_drained()
        self._acknowledge_if_heard(counts)
        self._release_drained()
        self._downstream.say_back()
        self._ledger.write(self.in_process(), has_ended=True)

    def _acknowledge_if_heard(self, counts: Counts) -> None:
        try:
            self._acknowledge()
        except BrokerUnavailable as error:
            counts.add("unavailable")
            self._limited.warning(
                f"What was done last comes again, and is stopped by its log. {error}"
            )

    # Reading

    def _read(self, counts: Counts) -> tuple[bool, BrokerUnavailable | None]:
        """Whether anything came; the error where no queue could be read. One that is refused holds up no other."""
        found = answered = False
        refused: list[tuple[Holding, BrokerUnavailable]] = []
        for place, holding in list(self._queues.held.items()):
            room = self._fetch - self._lanes.held(holding.queue)
            now = time.monotonic()
            if (
                room < max(1, self._fetch // 4)  # each read is a round trip: none for a few
                or holding.releases_only
                or holding.stopped_by is not None
                or now < holding.unread_until
                or self._finished.gaps(place) > MOST_GAPS
                or not self._queues.is_live(holding.queue)
            ):
                continue
            try:
                received = self._subscription.fetch(place, holding.queue.fence, room)
            except BrokerUnavailable as error:
                refused.append((holding, error))
                if time.monotonic() - now > SILENT_AFTER:
                    break
                continue
            answered, holding.refusals = True, 0
            if received is None:  # somebody reads under a higher fence: the row will say so too
                counts.add("reads_refused")
                self._queues.held.pop(place)
                self._forget(holding.queue)
                continue
            self.books.add("received", len(received))
            try:
                if any(self._finished.knows(one) for one in received):
                    self._compare_server()
            except BaseException:
                self._forget_finished()  # the log answers
                raise
            finally:  # the subscription does not give them out again: none may be overtaken
                for one in received:
                    self._sort(holding.queue, one, counts)
            found |= bool(received)
            if not received and self._in_pool:
                holding.unread_until = now + EMPTY
        return found, self._rest_refused(refused, answered, counts)

    def _rest_refused(
        self,
        refused: Sequence[tuple[Holding, BrokerUnavailable]],
        answered: bool,
        counts: Counts,
    ) -> BrokerUnavailable | None:
        """A queue that cannot be read while others can rests, longer each time. Else the broker is away: its error."""
        new = [error for holding, error in refused if not holding.refusals]
        if new and not answered:
            return new[0]
        for holding, error in refused:
            holding.refusals += 1
            holding.unread_until = time.monotonic() + self._retries.after(holding.refusals)
            counts.add("queues_unread")
            self._limited.warning(f"Queue {holding.queue.queue_id} is not read. {error}")
        return None

    def _sort(self, queue: OwnedQueue, received: Received, counts: Counts) -> None:
        self._finished.fetched(received)
        try:
            copy = read_headers(received)
            key = ordering_key(copy)
        except ContractBroken as error:
            counts.add("broken")
            log.error("A message of %r (%s): %s", received.message.topic, received.broker_id, error)
            self.books.add("failed")
            self._unusable.append((received, told(error)))
            return
        if not copy.is_for(self._group):
            counts.add("not_for_us")
            self.books.add("not_for_us")
            self._finished.add(received)
            self._done.append(received)
        elif self._finished.knows(received):
            counts.add("done_before")
            self.books.add("duplicates")
            self._done.append(received)
        else:
            self._lanes.add(queue, WHOLE_QUEUE if self._strict else key, copy)

    def _look_for_answers(self, counts: Counts) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_FOR_ANSWERS:
            return
        self._looked_at = now
        self._queues.take_left(list(self._topics), self._fetch)
        left = [holding for holding in self._queues.held.values() if holding.releases_only]
        for holding in left:
            if not holding.is_adopted:
                self._adopt(holding)
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
                self._let_go(holding)

    # Beginning

    def _start(self, counts: Counts) -> bool:
        if self.stopping.is_set() or self._downstream.is_waited_for() or self._suspects.hold_up():
            return False
        ready = self._lanes.start(time.monotonic(), self._at_once - len(self._in_pool))
        lanes = self._suspects.choose(ready, is_idle=not self._in_pool)
        live = [lane for lane in lanes if self._queues.is_live(lane.queue)]
        for lane in ready:
            if lane not in live:
                self._again(lane, self._beat if lane in lanes else 0.0)
        releases = [lane for lane in live if lane.releases]
        try:
            self._begin([lane for lane in live if not lane.releases], counts)
            while releases:
                self._begin_released(releases.pop(0), counts)
        except StoreUnavailable:
            for lane in releases:
                self._again(lane, self._retry_after.total_seconds())
            raise
        return bool(live)

    def _begin(self, lanes: Sequence[Lane], counts: Counts) -> None:
        asked: dict[tuple[str, str], tuple[Lane, InOrder]] = {}
        for lane in lanes:
            copy: Copy = lane.waiting[0]
            if (
                copy.arrival.key in asked
            ):  # a second copy in another queue: it meets the log of the first
                self._again(lane, 0.0)
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
                self._again(lane, self._retry_after.total_seconds())
            raise
        lost = self._keeper.hold(outcome for outcome in begun if isinstance(outcome, Acquired))
        failed: StoreUnavailable | None = None
        for (lane, head), outcome in zip(asked.values(), begun, strict=True):
            try:
                if isinstance(outcome, Acquired):
                    self._try(lane, head, outcome, lost[outcome], counts)
                else:
                    self._answer(lane, outcome, counts)
            except StoreUnavailable as error:  # the others must not wait for it: they have leases
                self._again(lane, self._retry_after.total_seconds())
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
            self._lose(lane.queue, counts)
            self._again(lane, 0.0)
            return
        except StoreUnavailable:
            self._again(lane, self._retry_after.total_seconds())
            raise
        if begun is None:
            self._lanes.ended(lane)
        elif isinstance(begun, Busy):
            self._again(lane, begun.retry_after.total_seconds())
        else:
            head, lease = begun
            self.books.add("released")
            self._submit(lane, head, lease, self._keeper.hold([lease])[lease], lease.attempts)

    def _try(
        self, lane: Lane, head: InOrder, lease: Acquired, lost: threading.Event, counts: Counts
    ) -> None:
        # Nobody lived to say that it failed: it may have killed its workers.
        tries = lease.attempts - lane.excused
        if tries > 1 and not (lane.failures or lane.is_suspect or self._strict):
            lane.is_suspect = True
            try:
                self._give_back(Result(lane, head, lease, Tried.LEASE_LOST), None)
            finally:
                self._keeper.release(lease)
            self._again(lane, 0.0)
        elif tries > self._retries.attempts and not self._strict:
            try:
                self._park(Result(lane, head, lease, Tried.FAILED), CRASHED, counts)
            finally:
                self._keeper.release(lease)
        else:
            self._submit(lane, head, lease, lost, lane.waiting[0].received.deliveries)

    def _submit(
        self, lane: Lane, head: InOrder, lease: Acquired, lost: threading.Event, deliveries: int
    ) -> None:
        work = Work(lease.fence, deliveries, lost, self.stopping, lease.attempts)
        self._in_pool.add(lane)
        self._suspects.entered(lane)
        way, database = self._way, self._database

        def task(store: KeptConnection) -> None:
            result = try_head(store, way, lane, head, lease, work, database)
            if result.tried is Tried.PROCESSED:
                self._keeper.release(lease)  # what is done is not renewed, and so not found lost
            self._results.put(result)

        self._pool.submit(task)

    def _answer(self, lane: Lane, outcome: object, counts: Counts) -> None:
        """What becomes of a head whose lease was not granted."""
        copy: Copy = lane.waiting[0]
        counts.add(type(outcome).__name__.lower())
        match outcome:
            case Done() | Parked():
                self._settle(lane, copy, "duplicates")
            case Superseded():
                self._settle(lane, copy, "superseded")
            case Kept():
                self._settle(lane, copy, "parked")
            case Busy(retry_after=after):
                self._again(lane, after.total_seconds())
            case Full(reached=reached):
                self._stop_queue(lane, reached)
            case NotOwner():
                self._lose(lane.queue, counts)
                self._again(lane, 0.0)
            case Conflict():
                log.error(
                    "%r in %r came with another content than before; it was not applied.",
                    *reversed(copy.arrival.key),
                )
                self._unusable.append((copy.received, CONFLICT))
                self.books.add("conflicts")
                self._let_read_on(lane)
                self._lanes.ended(lane)

    # Ending

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
                outcome = self._end(result, counts)
            except StoreUnavailable:
                self._again(result.lane, self._retry_after.total_seconds())
                raise
            finally:
                if result.lane.releases:
                    self.books.add(outcome)
                self._keeper.release(result.lease)
        return number > 0

    def _end(self, result: Result, counts: Counts) -> str:
        """What became of this try, as the books name it."""
        lane = result.lane
        if result.tried is Tried.PROCESSED:
            self._downstream.succeeded(lane.queue.topic, lane.key)
            if lane.releases:
                self._again(lane, 0.0)  # the next one of the key
            else:
                self._settle(lane, lane.waiting[0], "done", result.database)
            return "done"
        if result.tried is Tried.FAILED:
            assert result.error is not None
            return self._fail(result, result.error, counts)
        if result.tried is Tried.FENCED:
            self._lose(lane.queue, counts)
            self._give_back(result, None)
            self._again(lane, 0.0, "fenced_off")
            return "fenced_off"
        if result.tried is Tried.UNAVAILABLE:
            self._forget_finished()
            try:
                if lane.cut_off >= self._retries.attempts and result.error is not None:
                    # The database answers whenever it is not this head's turn: a failure like any other.
                    return self._fail(result, result.error, counts)
                self._give_back(result, None)  # nothing, if its end was committed after all
                lane.cut_off += 1
            except StoreUnavailable:
                lane.excused += 1
        self._again(lane, self._retry_after.total_seconds())
        return "handed_back"

    def _fail(self, result: Result, error: BaseException, counts: Counts) -> str:
        """It is the downstream: all wait, and nothing is counted. Or the message: it is tried again, and then parked."""
        lane, text = result.lane, told(error)
        if self._downstream.is_to_blame(lane.queue.topic, lane.key, error, text):
            counts.add("downstream_away")
            self._give_back(result, text)
            self._again(lane, 0.0)
            return "handed_back"
        tries = result.lease.attempts - lane.excused
        if lane.releases or (tries >= self._retries.attempts and not self._strict):
            return self._park(result, text, counts)
        lane.failures += 1
        if tries >= self._retries.attempts:
            counts.add("suspended")
            self._limited.warning(
                f"Queue {lane.queue.queue_id} of {lane.queue.topic!r} is suspended: {text}"
            )
        try:
            with self._store.short_transaction() as connection:
                guard.fail(connection, result.lease, text)
        except LeaseLost as lost:
            log.warning("%s", lost)
        self._again(lane, self._retries.after(lane.failures))
        return "handed_back"

    def _park(self, result: Result, error: str, counts: Counts) -> str:
        lane = result.lane
        try:
            with self._store.short_transaction() as connection:
                if lane.releases:
                    parking.park_again(connection, result.head, result.lease, error)
                else:
                    parking.park(connection, result.head, result.lease, error, self._limits)
        except ParkingFull as full:
            self._give_back(result, error)
            self._stop_queue(lane, full.reached)
        except QueueLost:
            self._lose(lane.queue, counts)
            self._give_back(result, None)  # or its next owner waits until the lease ends
            self._again(lane, 0.0)
        except LeaseLost as lost:
            log.warning("%s", lost)
            self._again(lane, self._retry_after.total_seconds())
        else:
            counts.add("parked_keys")
            log.error("The key %r of %r is parked. %s", lane.key, lane.queue.topic, error)
            if lane.releases:
                self._lanes.ended(lane)
            else:
                self._settle(lane, lane.waiting[0], "parked")
            return "parked"
        return "handed_back"

    def _give_back(self, result: Result, error: str | None) -> None:
        with self._store.short_transaction() as connection:
            parking.set_back(connection, result.lease, error, released=result.lane.releases)

    def _settle(self, lane: Lane, copy: Copy, outcome: str, database: int | None = None) -> None:
        """The log has the head's end, or its content is kept: acknowledge, and on with the lane.

        `database`: the life of the database that it was committed to; None: the present one."""
        received = copy.received
        self._done.append(received)
        self._finished.add(received, is_certain=database in (None, self._database))
        self._let_read_on(lane)
        self.books.add(outcome)
        self._lanes.ended(lane)

    def _let_read_on(self, lane: Lane) -> None:
        """The head that stopped its queue has an end."""
        holding = self._queues.held.get((lane.queue.topic, lane.queue.queue_id))
        if holding is not None and holding.stopped_by == lane.key:
            with self._store.short_transaction() as connection:
                parking.go_on(connection, lane.queue)
            holding.stopped_by = None

    def _stop_queue(self, lane: Lane, reached: str) -> None:
        """A limit of parking is reached: the queue is not read on, and its head is tried again until there is room."""
        holding = self._queues.held.get((lane.queue.topic, lane.queue.queue_id))
        if holding is not None and holding.queue == lane.queue and holding.stopped_by is None:
            log.error(
                "Queue %d of %r stops: the limit of %s is reached.",
                lane.queue.queue_id,
                lane.queue.topic,
                reached,
            )
            with self._store.short_transaction() as connection:
                parking.stop_queue(connection, lane.queue, lane.key, reached)
            holding.stopped_by = lane.key
        self._again(lane, self._retry_after.total_seconds())

    def _lose(self, queue: OwnedQueue, counts: Counts) -> None:
        """Another member has the queue: what is left of it here is its own."""
        place = (queue.topic, queue.queue_id)
        holding = self._queues.held.get(place)
        if holding is not None and holding.queue == queue:
            counts.add("queues_lost")
            del self._queues.held[place]
        self._forget(queue)

    def _forget_finished(self) -> None:
        """A database or broker may come back as an older self: the log answers for each message."""
        self._database += 1
        self._finished.forget()

    def _compare_server(self) -> None:
        """Behind a pooler a database may be restored without one broken connection: it is another server then."""
        with self._store.short_transaction() as connection:
            life = queue_owner.server_life(connection)
        if life != self._server_life:
            self._server_life = life
            self._forget_finished()

    def _acknowledge(self) -> None:
        if self._done:
            self._subscription.acknowledge(self._done)
            self._done = []
        if time.monotonic() < self._bury_at:
            return
        for _ in range(len(self._unusable)):
            received, error = self._unusable.pop(0)
            try:
                is_buried = self._subscription.bury(received, error)
            except BrokerUnavailable as refused:  # it holds up no other message
                self._unusable.append((received, error))
                self._bury_at = time.monotonic() + self._retry_after.total_seconds()
                self._limited.warning(str(refused))
                continue
            if is_buried:  # else it comes again, and must not be taken for finished then
                self._finished.add(received)

    def _again(self, lane: Lane, seconds: float, otherwise: str = "handed_back") -> None:
        """The head is tried once more, if its queue is still ours."""
        if not self._lanes.again(lane, time.monotonic() + seconds) and not lane.releases:
            self.books.add(otherwise)


def ordering_key(copy: Copy) -> str:
    """A message without a key is a key of its own. Raises ContractBroken for one that a database cannot hold."""
    key = copy.received.message.partition_key
    if key is None:
        return copy.received.message.message_id
    if "\x00" in key or len(key.encode(errors="replace")) > KEY_BYTES:
        raise ContractBroken(
            f"Its ordering key has a NUL or more than {KEY_BYTES} bytes.",
            unaffected="The message was not processed.",
            next_step="Look for it in the group's dead-letter queue, and fix the program that sent it.",
        )
    return key


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        what, unaffected="Nothing was started.", next_step="Choose other values."
    )
