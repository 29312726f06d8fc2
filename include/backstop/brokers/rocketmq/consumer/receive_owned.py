"""Receives for one consumer of a group that owns its queues, in RocketMQ's own protocol of sharing them.

The brokers allot queues to the members of a group as to Java's; the owner's row in the consumer database is taken after that. A
queue that is allotted to somebody else is drained first: until it is released, the others are told that it is still in use.
They wait for ten seconds, so a handover must drain within that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from backstop.brokers.owned import Queue
from backstop.brokers.protocol import Received
from backstop.brokers.rocketmq.consumer.members import MessageQueue
from backstop.brokers.rocketmq.consumer.receive import RocketMQSubscription
from backstop.brokers.rocketmq.message.names import decode, queue_number


class OwnedRocketMQSubscription:
    """One consumer over the queues that it owns. Not shared between threads."""

    assigns = True

    def __init__(
        self, inner: RocketMQSubscription, topics: Sequence[str], brokers: tuple[str, ...] | None
    ) -> None:
        self._inner, self._topics, self._brokers = inner, tuple(topics), brokers
        self._assigned: dict[Queue, MessageQueue] = {}
        self._fences: dict[Queue, int] = {}
        """Under which fence each queue was read last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def queues(self) -> dict[str, list[int]]:
        named = {
            (decode(one.topic), queue_number(one.broker, one.number, self._brokers)): one
            for one in self._inner.assigned()
        }
        self._assigned |= named
        found: dict[str, list[int]] = {topic: [] for topic in self._topics}
        for topic, number in sorted(named):
            found[topic].append(number)
        return found

    def fetch(self, queue: Queue, fence: int, limit: int) -> list[Received] | None:
        """None: this consumer has read under a higher fence. What others read RocketMQ does not tell: their rows do."""
        last = self._fences.get(queue)
        if last is not None and last > fence:
            return None
        if queue not in self._assigned:
            return []
        if (
            last != fence
        ):  # what an earlier owner left unfinished lies above the place that it committed
            self._inner.restart(self._assigned[queue])
            self._fences[queue] = fence
        return self._inner.fetch_of(self._assigned[queue], limit)

    def acknowledge(self, received: Sequence[Received]) -> None:
        self._inner.acknowledge(received)

    def bury(self, received: Received, error: str) -> bool:
        """`error` is not kept: RocketMQ has no place for it."""
        return self._inner.bury(received)

    def forget(self, queue: Queue) -> None:
        self._fences.pop(queue, None)
        place = self._assigned.pop(queue, None)
        if place is not None:
            self._inner.release(place)

    def close(self) -> None:
        self._inner.close()
