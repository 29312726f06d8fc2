"""Keep the queues that this consumer owns: renewed, adopted, stopped at a limit, given up or lost; and what is known of them."""

import logging
import time
from datetime import timedelta

from backstop.brokers.owned import OwnedSubscription
from backstop.client.finished import FinishedOffsets
from backstop.client.keep_connection import KeptConnection
from backstop.client.lanes import Lane, Lanes
from backstop.client.own_queues import Holding, OwnQueues
from backstop.leases import parking, queue_owner
from backstop.leases.books import Books
from backstop.leases.queue_owner import OwnedQueue
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog
from backstop.model.records import Counts
from backstop.sql.run import Connection

log = logging.getLogger(__name__)


class QueueKeeper:
    """Of one consumer. Not shared between threads."""

    def __init__(
        self,
        subscription: OwnedSubscription,
        store: KeptConnection,
        queues: OwnQueues,
        lanes: Lanes,
        finished: FinishedOffsets,
        books: Books,
        beat: timedelta,
        limited: LimitedLog,
    ) -> None:
        self._subscription, self._store, self.queues = subscription, store, queues
        self._lanes, self._finished, self._books, self._limited = lanes, finished, books, limited
        self._beat = beat.total_seconds()
        self._beat_at = float("-inf")
        self.topics: dict[str, list[int]] = {}
        """The queues that the broker has, or assigns to this member, by topic."""
        self.database = 0
        """How often the consumer database was away, or became another server, so far."""
        self._server_life: str | None = None
        self._heard_at = time.monotonic()
        self.is_unheard = False
        """The broker has not answered this consumer for the time of a lease: others, who may reach it, are to have its queues."""

    def heard(self) -> None:
        """The broker answered."""
        self._heard_at = time.monotonic()

    def keep(self, counts: Counts, *, leaving: bool = False) -> None:
        """Once a beat: renews what is owned, takes its share, adopts what it took, stops what it gives up.

        `leaving`: all is given up, without waiting for a broker.
        """
        now = time.monotonic()
        if not leaving:
            if now - self._beat_at < self._beat:
                return
            self._look_for_queues(counts)
        self.compare_server()
        for lost in self.queues.beat(
            self.topics,
            assigned=self._subscription.assigns,
            leaving=leaving,
            unheard=self.is_unheard,
        ):
            counts.add("queues_lost")
            self._limited.warning(
                f"Queue {lost.queue.queue_id} of {lost.queue.topic!r} was taken by another consumer."
            )
            self._forget(lost.queue)
        for holding in self.queues.held.values():
            if holding.draining:
                self._drop(holding.queue)
            elif not holding.is_adopted:
                self.adopt(holding)
                counts.add("queues_taken")
        self._beat_at = now

    def _look_for_queues(self, counts: Counts) -> None:
        try:
            self.topics = self._subscription.queues()
            self.heard()
        except BrokerUnavailable as error:  # what is owned stays owned for the time of a lease
            self._limited.warning(str(error))
        was_unheard, lease = self.is_unheard, self.queues.lease
        self.is_unheard = time.monotonic() - self._heard_at > lease.total_seconds()
        if self.is_unheard and not was_unheard:
            counts.add("broker_unheard")
            log.warning(
                "The broker has not answered for %s: the queues are released for the consumers that reach it, and taken again"
                " once it answers.",
                lease,
            )

    def adopt(self, holding: Holding) -> None:
        """It was taken: where it stopped and what was finished of it is ours to say."""
        queue = holding.queue
        with self._store.one_statement() as connection:
            parking.go_on(connection, queue)
        with self._store.one_statement() as connection:
            finished = queue_owner.finished(connection, queue)
        self._finished.adopt((queue.topic, queue.queue_id), finished)
        holding.is_adopted = True

    def release_drained(self) -> None:
        """Those of which nothing is in work any more."""
        for holding in list(self.queues.held.values()):
            if holding.draining and not self._lanes.in_work(holding.queue):
                if holding.stopped_by is not None:  # its next owner, if there is one, says so again
                    with self._store.one_statement() as connection:
                        parking.go_on(connection, holding.queue)
                self.let_go(holding)

    def let_go(self, holding: Holding) -> None:
        """Nothing of it is in work."""
        queue = holding.queue

        def finished(connection: Connection) -> str | None:
            # Another server may not have the logs of what was finished while the queue drained.
            self._compare(queue_owner.server_life(connection))
            return self._finished.saved((queue.topic, queue.queue_id))

        self.queues.release(holding, finished)
        self._forget(queue)

    def lose(self, queue: OwnedQueue, counts: Counts) -> None:
        """Another member has the queue: what is left of it here is its own."""
        place = (queue.topic, queue.queue_id)
        holding = self.queues.held.get(place)
        if holding is not None and holding.queue == queue:
            counts.add("queues_lost")
            del self.queues.held[place]
        self._forget(queue)

    def taken_away(self, holding: Holding) -> None:
        """Somebody reads it under a higher fence: the row will say so too."""
        self.queues.held.pop((holding.queue.topic, holding.queue.queue_id))
        self._forget(holding.queue)

    def stop(self, lane: Lane, reached: str) -> None:
        """A limit of parking is reached: the queue is not read on, and goes on once its head has an end."""
        holding = self.queues.held.get((lane.queue.topic, lane.queue.queue_id))
        if holding is not None and holding.queue == lane.queue and holding.stopped_by is None:
            log.error(
                "Queue %d of %r stops: the limit of %s is reached.",
                lane.queue.queue_id,
                lane.queue.topic,
                reached,
            )
            with self._store.one_statement() as connection:
                parking.stop_queue(connection, lane.queue, lane.key, reached)
            holding.stopped_by = lane.key

    def let_read_on(self, lane: Lane) -> None:
        """The head that stopped its queue has an end."""
        holding = self.queues.held.get((lane.queue.topic, lane.queue.queue_id))
        if holding is not None and holding.stopped_by == lane.key:
            with self._store.one_statement() as connection:
                parking.go_on(connection, lane.queue)
            holding.stopped_by = None

    def forget_finished(self) -> None:
        """A database or broker may come back as an older self: the log answers for each message, and queues are declared again."""
        self.database += 1
        self._finished.forget()
        self.queues.forget_declared()

    def compare_server(self) -> None:
        """Behind a pooler a database may be restored without one broken connection: it is another server then."""
        with self._store.short_transaction() as connection:
            life = queue_owner.server_life(connection)
        self._compare(life)

    def _compare(self, life: str) -> None:
        if life != self._server_life:
            self._server_life = life
            self.forget_finished()

    def _forget(self, queue: OwnedQueue) -> None:
        """What is left of the queue here is its next owner's."""
        place = (queue.topic, queue.queue_id)
        self._drop(queue)
        if place not in self.queues.held:
            self._subscription.forget(place)
            self._finished.leave(place)

    def _drop(self, queue: OwnedQueue) -> None:
        self._books.add("handed_back", self._lanes.drop(queue))
