"""Read the owned queues: each message into the lane of its ordering key, or to its end at once if nothing is to be done with it."""

import logging
import time
from collections.abc import Sequence

from backstop.brokers.owned import OwnedSubscription
from backstop.brokers.protocol import Received
from backstop.client.acknowledge import SILENT_AFTER, Acknowledgements
from backstop.client.finished import FinishedOffsets
from backstop.client.keep_queues import QueueKeeper
from backstop.client.lanes import Lanes
from backstop.client.own_queues import Holding
from backstop.client.process import error_text
from backstop.client.read_headers import Copy, check_holdable, read_headers
from backstop.client.retries import Retries
from backstop.leases.books import Books
from backstop.leases.queue_owner import OwnedQueue
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.log_limit import LimitedLog
from backstop.model.records import ORDERING_KEY_BYTES, Counts

log = logging.getLogger(__name__)

WHOLE_QUEUE = ""
"""The one lane of a queue whose messages are done in strict order."""
EMPTY = 0.02
"""Seconds before a queue that was empty is read again, while handlers are in work."""
MOST_HELD = 10
"""At most this many times `fetch` messages of a queue are read and not done, however few keys they have."""
MOST_GAPS = 10_000
"""A queue with more unfinished intervals than this is not read on."""


class QueueReader:
    """Of one consumer. Not shared between threads."""

    def __init__(
        self,
        subscription: OwnedSubscription,
        keeper: QueueKeeper,
        lanes: Lanes,
        finished: FinishedOffsets,
        acknowledgements: Acknowledgements,
        books: Books,
        group: str,
        limited: LimitedLog,
        *,
        retries: Retries,
        fetch: int,
        strict: bool,
    ) -> None:
        self._subscription, self._keeper, self._lanes = subscription, keeper, lanes
        self._finished, self._acknowledgements, self._books = finished, acknowledgements, books
        self._group, self._limited = group, limited
        self._retries, self._fetch, self._strict = retries, fetch, strict

    def read(self, counts: Counts, *, busy: bool) -> tuple[bool, BrokerUnavailable | None]:
        """Whether anything came; the error where no queue could be read. One that is refused holds up no other.

        `busy`: handlers are in work, so that an empty queue need not be asked again at once.
        """
        found = answered = False
        refused: list[tuple[Holding, BrokerUnavailable]] = []
        for place, holding in list(self._keeper.queues.held.items()):
            room = min(
                self._fetch - self._lanes.load(holding.queue),
                MOST_HELD * self._fetch - self._lanes.held(holding.queue),
            )
            now = time.monotonic()
            if (
                room < max(1, self._fetch // 4)  # each read is a round trip: none for a few
                or holding.releases_only
                or holding.stopped_by is not None
                or now < holding.unread_until
                or self._finished.gaps(place) > MOST_GAPS
                or not self._keeper.queues.is_live(holding.queue)
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
            if received:
                self._keeper.heard()
            if received is None:
                counts.add("reads_refused")
                self._keeper.taken_away(holding)
                continue
            self._books.add("received", len(received))
            try:
                if any(self._finished.knows(one) for one in received):
                    self._keeper.compare_server()
            except BaseException:
                self._keeper.forget_finished()  # the log answers
                raise
            finally:  # the subscription does not give them out again: none may be overtaken
                for one in received:
                    self._sort(holding.queue, one, counts)
            found |= bool(received)
            if not received and busy:
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
            self._books.add("failed")
            self._acknowledgements.unusable(received, error_text(error))
            return
        if not copy.is_for(self._group):
            counts.add("not_for_us")
            self._books.add("not_for_us")
            self._finished.add(received)
            self._acknowledgements.done(received)
        elif self._finished.knows(received):
            counts.add("done_before")
            self._books.add("duplicates")
            self._finished.add(received)  # its place, too: else it stays a gap
            self._acknowledgements.done(received)
        else:
            self._lanes.add(queue, WHOLE_QUEUE if self._strict else key, copy)


def ordering_key(copy: Copy) -> str:
    """A message without a key is a key of its own. Raises ContractBroken for one that a database cannot hold."""
    key = copy.received.message.partition_key
    if key is None:
        return copy.received.message.message_id
    check_holdable("ordering key", key, ORDERING_KEY_BYTES)
    return key
