"""Which queues this consumer owns now: take a fair share, renew, hand over what is too much.

A handover drains: the owner stops starting messages of the queue, finishes those in its handlers, commits, acknowledges
and releases. The next owner adopts what was left. A queue that the broker has no more is drained as well; if a person releases
a key that was parked in it, any member takes the queue for the time of that release.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from backstop.brokers.owned import Queue
from backstop.client.keep_connection import KeptConnection
from backstop.leases import queue_owner
from backstop.leases.queue_owner import OwnedQueue
from backstop.sql.run import Connection


@dataclass(slots=True)
class Holding:
    """A queue of ours, as this consumer knows it."""

    queue: OwnedQueue
    until: float
    """Monotonic: from then on others may take it."""
    is_adopted: bool = False
    """What its last owner left to be known was read."""
    draining: bool = False
    stopped_by: str | None = None
    """The ordering key at which a limit of parking stopped the queue."""
    releases_only: bool = False
    """Nobody is to read it, perhaps because the broker has it no more: taken to release what is parked in it."""
    unread_until: float = float("-inf")
    """Monotonic: it was empty, or its broker refused to read it while it answered for others."""
    refusals: int = 0
    """How often in a row."""


@dataclass(slots=True)
class OwnQueues:
    """The queues of one member of a group. Not shared between threads."""

    store: KeptConnection
    group: str
    member: str
    lease: timedelta = queue_owner.LEASE
    drain_within: timedelta = queue_owner.DRAIN_TIMEOUT
    held: dict[Queue, Holding] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    """Monotonic: when this member started."""
    _declared: dict[str, list[int]] = field(default_factory=dict)

    def beat(
        self,
        queues: dict[str, list[int]],
        *,
        assigned: bool = False,
        leaving: bool = False,
        unheard: bool = False,
    ) -> list[Holding]:
        """Renews, and moves one step towards the fair share; the holdings that were lost. Raises StoreUnavailable.

        `assigned`: `queues` are this member's by the word of the broker: all are taken, and others drained. `leaving`: takes
        nothing, drains everything, and is counted as a member no more. `unheard`: the same, but for queues that are released
        from what is kept, for which no broker is needed.
        """
        asked_at = time.monotonic()
        drained: list[Holding] = []
        taken: list[OwnedQueue] = []
        with self.store.short_transaction() as connection:
            mine = [holding.queue for holding in self.held.values()]
            kept = queue_owner.renew(connection, self.group, self.member, mine, self.lease)
            if leaving or unheard:  # or the others would leave it its share until its lease ends
                queue_owner.leave(connection, self.group, self.member)
                drained += [one for one in self._kept(kept) if leaving or not one.releases_only]
                queues = {}
            for topic, numbers in queues.items():
                if self._declared.get(topic) != numbers:
                    queue_owner.declare(connection, self.group, topic, numbers)
                members = queue_owner.join(
                    connection, self.group, topic, self.member, numbers, self.lease
                )
                owned = []
                for holding in self._kept(kept):
                    if holding.queue.topic == topic:
                        is_there = holding.queue.queue_id in numbers
                        # Another's, gone, or there again: then it is taken as any other.
                        if is_there is holding.releases_only:
                            drained.append(holding)
                        elif is_there:
                            owned.append(holding)
                if assigned:
                    share = len(owned) + len(numbers)
                else:
                    share = queue_owner.share_of(
                        self.member, {**members, self.member: len(owned)}, len(numbers)
                    )
                    drained += owned[share:]
                if len(owned) < share:
                    others = [number for number in numbers if (topic, number) not in self.held]
                    taken += queue_owner.take(
                        connection,
                        self.group,
                        topic,
                        self.member,
                        others,
                        share - len(owned),
                        self.lease,
                    )
            for holding in drained:
                queue_owner.drain(connection, self.member, holding.queue, self.drain_within)
        self._declared = dict(queues)
        for holding in drained:
            holding.draining = True
            holding.until = asked_at + self.drain_within.total_seconds()
        lost = [holding for holding in self.held.values() if holding.queue not in kept]
        for holding in lost:
            del self.held[_place(holding.queue)]
        until = asked_at + self.lease.total_seconds()
        for holding in self.held.values():
            if not holding.draining:
                holding.until = until
        self.held |= {_place(queue): Holding(queue, until) for queue in taken}
        return lost

    def forget_declared(self) -> None:
        """The next beat declares every queue again: a database that came back as an older self may lack some of the rows."""
        self._declared = {}

    def take_left(self, topics: Sequence[str], limit: int) -> None:
        """Takes queues that nobody wants although a key of theirs was released. Raises StoreUnavailable.

        Nothing within the first lease: a broker that assigns the queues may not have done so yet.
        """
        asked_at = time.monotonic()
        if asked_at < self.since + self.lease.total_seconds():
            return
        with self.store.short_transaction() as connection:
            taken = queue_owner.take_left(
                connection, self.group, topics, self.member, limit, self.lease
            )
        until = asked_at + self.lease.total_seconds()
        self.held |= {_place(queue): Holding(queue, until, releases_only=True) for queue in taken}

    def is_live(self, queue: OwnedQueue) -> bool:
        """Whether a message of the queue may be started: it is owned under this fence, renewed in time, not handed over."""
        holding = self.held.get(_place(queue))
        return (
            holding is not None
            and holding.queue == queue
            and not holding.draining
            and time.monotonic() < holding.until
        )

    def release(self, holding: Holding, finished: Callable[[Connection], str | None]) -> None:
        """Nothing of the queue is in work any more; `finished`, in the release's own transaction: for its next owner."""
        with self.store.short_transaction() as connection:
            queue_owner.release(connection, self.member, holding.queue, finished(connection))
        self.held.pop(_place(holding.queue), None)

    def _kept(self, kept: set[OwnedQueue]) -> list[Holding]:
        return [
            holding
            for holding in self.held.values()
            if holding.queue in kept and not holding.draining
        ]


def _place(queue: OwnedQueue) -> Queue:
    return (queue.topic, queue.queue_id)
