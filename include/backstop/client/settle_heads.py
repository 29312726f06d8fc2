"""What becomes of the head of a lane: settled, tried again, given back, its key parked, or its queue stopped or lost."""

import logging
import time
from datetime import timedelta

from backstop.client.acknowledge import Acknowledgements
from backstop.client.blame import DownstreamAway
from backstop.client.downstream import Downstream
from backstop.client.finished import FinishedOffsets
from backstop.client.keep_connection import KeptConnection
from backstop.client.keep_queues import QueueKeeper
from backstop.client.lanes import Lane, Lanes
from backstop.client.process import error_text
from backstop.client.read_headers import Copy
from backstop.client.retries import Retries
from backstop.client.try_head import Result, Tried
from backstop.leases import guard, parking
from backstop.leases.books import Books
from backstop.leases.lease import Busy, Conflict, Done, Parked, Superseded
from backstop.leases.parking import Full, Kept, Limits, NotOwner, ParkingFull
from backstop.leases.queue_owner import QueueLost
from backstop.model.errors import LeaseLost, StoreUnavailable
from backstop.model.log_limit import LimitedLog
from backstop.model.records import Counts

log = logging.getLogger(__name__)

CONFLICT = "Conflict: its id came with another content than before; it was not applied"


class HeadSettler:
    """Of one consumer. Not shared between threads."""

    def __init__(
        self,
        store: KeptConnection,
        keeper: QueueKeeper,
        lanes: Lanes,
        finished: FinishedOffsets,
        acknowledgements: Acknowledgements,
        downstream: Downstream,
        books: Books,
        limited: LimitedLog,
        *,
        retries: Retries,
        retry_after: timedelta,
        limits: Limits,
        strict: bool,
    ) -> None:
        self._store, self._keeper, self._lanes, self._finished = store, keeper, lanes, finished
        self._acknowledgements, self._downstream = acknowledgements, downstream
        self._books, self._limited = books, limited
        self._retries, self._retry_after = retries, retry_after.total_seconds()
        self._limits, self._strict = limits, strict

    def answer(self, lane: Lane, outcome: object, counts: Counts) -> None:
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
                self.again(lane, after.total_seconds())
            case Full(reached=reached):
                self._stop(lane, reached)
            case NotOwner():
                self._keeper.lose(lane.queue, counts)
                self.again(lane, 0.0)
            case Conflict():
                log.error(
                    "%r in %r came with another content than before; it was not applied.",
                    *reversed(copy.arrival.key),
                )
                self._acknowledgements.unusable(copy.received, CONFLICT)
                self._books.add("conflicts")
                self._keeper.let_read_on(lane)
                self._lanes.ended(lane)

    def end(self, result: Result, counts: Counts) -> str:
        """What became of this try, as the books name it."""
        lane = result.lane
        if result.tried is Tried.PROCESSED:
            self._downstream.succeeded(lane.queue.topic, lane.key)
            if lane.releases:
                self.again(lane, 0.0)  # the next one of the key
            else:
                self._settle(lane, lane.waiting[0], "done", result.database)
            return "done"
        if result.tried is Tried.FAILED:
            assert result.error is not None
            return self._fail(result, result.error, counts)
        if result.tried is Tried.FENCED:
            self._keeper.lose(lane.queue, counts)
            self.give_back(result, None)
            self.again(lane, 0.0, "fenced_off")
            return "fenced_off"
        if result.tried is Tried.NOT_TRIED:
            try:
                self.give_back(result, None)  # nothing, if another has it
            except StoreUnavailable:
                lane.excused += 1
            self.again(lane, 0.0)
            return "handed_back"
        if result.tried is Tried.UNAVAILABLE:
            self._keeper.forget_finished()
            if not result.was_cut_off:
                self._limited.warning(f"Messages of {lane.queue.topic!r} wait. {result.error}")
            try:
                if (
                    result.was_cut_off
                    and result.error is not None
                    and lane.cut_off >= self._retries.attempts
                ):
                    # The database answers whenever it is not this head's turn: a failure like any other.
                    return self._fail(result, result.error, counts)
                text = None
                if not result.was_cut_off and result.error is not None:
                    # Perhaps another database, of the handler: with many keys it is a downstream like any other.
                    text = error_text(result.error)
                    if self._downstream.is_to_blame(lane.queue.topic, lane.key, result.error, text):
                        counts.add("downstream_away")
                self.give_back(result, text)  # nothing, if its end was committed after all
                lane.cut_off += result.was_cut_off
            except StoreUnavailable:
                lane.excused += 1
        self.again(lane, self._retry_after)
        return "handed_back"

    def again(self, lane: Lane, seconds: float, otherwise: str = "handed_back") -> None:
        """The head is tried once more, if its queue is still ours."""
        if not self._lanes.again(lane, time.monotonic() + seconds) and not lane.releases:
            self._books.add(otherwise)

    def park(self, result: Result, error: str | None, counts: Counts) -> str:
        """Its key, in place of another try; what became of this one. `error`: null: nobody here saw it fail; never of a release."""
        lane = result.lane
        try:
            with self._store.short_transaction() as connection:
                if lane.releases:
                    parking.park_again(connection, result.head, result.lease, error or "")
                else:
                    parking.park(connection, result.head, result.lease, error, self._limits)
        except ParkingFull as full:
            lane.is_poison = True
            self.give_back(result, error)
            self._stop(lane, full.reached)
        except QueueLost:
            self._keeper.lose(lane.queue, counts)
            self.give_back(result, None)  # or its next owner waits until the lease ends
            self.again(lane, 0.0)
        except LeaseLost as lost:
            log.warning("%s", lost)
            self.again(lane, self._retry_after)
        else:
            counts.add("parked_keys")
            log.error(
                "The key %r of %r is parked. %s",
                lane.key,
                lane.queue.topic,
                error or "Its head was begun too often.",
            )
            if lane.releases:
                self._lanes.ended(lane)
            else:
                self._settle(lane, lane.waiting[0], "parked")
            return "parked"
        return "handed_back"

    def give_back(self, result: Result, error: str | None) -> None:
        """Its lease is free at once, and the try is not counted. Raises StoreUnavailable."""
        with self._store.one_statement() as connection:
            parking.set_back(connection, result.lease, error, released=result.lane.releases)

    def _fail(self, result: Result, error: BaseException, counts: Counts) -> str:
        """It is the downstream: all wait, and nothing is counted. Or the message: it is tried again, and then parked."""
        lane, text = result.lane, error_text(error)
        # Where every queue stands at a limit, nothing but poison is tried: it would look like a downstream, and never be parked.
        is_poison = lane.is_poison and not isinstance(error, DownstreamAway)
        if not is_poison and self._downstream.is_to_blame(lane.queue.topic, lane.key, error, text):
            counts.add("downstream_away")
            self.give_back(result, text)
            self.again(lane, 0.0)
            return "handed_back"
        tries = result.lease.attempts - lane.excused
        if lane.releases or (tries >= self._retries.attempts and not self._strict):
            return self.park(result, text, counts)
        lane.failures += 1
        if tries >= self._retries.attempts:
            counts.add("suspended")
            self._limited.warning(
                f"Queue {lane.queue.queue_id} of {lane.queue.topic!r} is suspended: {text}"
            )
        try:
            with self._store.one_statement() as connection:
                guard.fail(connection, result.lease, text)
        except LeaseLost as lost:
            log.warning("%s", lost)
        self.again(lane, self._retries.after(lane.failures))
        return "handed_back"

    def _settle(self, lane: Lane, copy: Copy, outcome: str, database: int | None = None) -> None:
        """The log has the head's end, or its content is kept: acknowledge, and on with the lane.

        `database`: the life of the database that it was committed to; None: the present one."""
        received = copy.received
        self._acknowledgements.done(received)
        self._finished.add(received, is_certain=database in (None, self._keeper.database))
        self._keeper.let_read_on(lane)
        self._books.add(outcome)
        self._lanes.ended(lane)

    def _stop(self, lane: Lane, reached: str) -> None:
        """Its queue is not read on, and the head is tried again until there is room."""
        self._keeper.stop(lane, reached)
        self.again(lane, self._retry_after)
