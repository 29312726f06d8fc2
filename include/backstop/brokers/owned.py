"""What a consumer that owns its queues asks of a broker: read one queue in order, while nobody else does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from backstop.brokers.protocol import Received

Queue = tuple[str, int]
"""A topic and the number of one of its queues."""


class OwnedSubscription(Protocol):
    """One consumer of a group that reads only queues that it owns. Not shared between threads."""

    @property
    def assigns(self) -> bool:
        """The broker says which queues are this consumer's (RocketMQ, Kafka); else the members share all queues themselves."""
        ...

    def queues(self) -> dict[str, list[int]]:
        """The queues of each of its topics. Where the broker assigns: those assigned to this consumer now. One that appears is
        taken (Kafka's on_assign), one that is missing is drained, and `forget` lets it go (the end of on_revoke)."""
        ...

    def fetch(self, queue: Queue, fence: int, limit: int) -> list[Received] | None:
        """Up to `limit` messages of the queue in order, without waiting: first those that an earlier owner left
        unfinished, then new ones; none twice under one fence. None: somebody has read under a higher fence."""
        ...

    def acknowledge(self, received: Sequence[Received]) -> None:
        """The group is done with these; idempotent."""
        ...

    def bury(self, received: Received, error: str) -> bool:
        """Moves a message that can never be processed to the group's dead letters; false: it is not this consumer's any more, and
        whoever receives it again buries it. Raises BrokerUnavailable."""
        ...

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more: what was fetched and not acknowledged is its next owner's."""
        ...

    def close(self) -> None:
        """What was fetched and not acknowledged is left to the next owner."""
        ...
