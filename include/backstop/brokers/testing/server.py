"""What a test gives the suite: a server of its broker, an adapter on it, and the faults that a hand could cause there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from backstop.brokers.protocol import Broker, Subscription
from backstop.model.records import Outcome

VISIBILITY = timedelta(milliseconds=400)
"""How long a consumer may hold a message before another gets it."""
DELIVERY_LIMIT = 3
SEND_TIMEOUT = timedelta(seconds=5)
"""Longer than a busy machine stands still: else each client of its own could be refused at any moment of a test."""


class ServerUnderTest(Protocol):
    """A running server and an adapter on it: what the suite needs beside the protocol is administration, and faults.

    Its adapters are opened with DELIVERY_LIMIT, and with VISIBILITY where the broker has such a thing. Those of `another` and
    `refusing` have SEND_TIMEOUT; `broker` should wait longer than a busy machine stands still. A method for what the broker
    cannot do (`wipe` without epochs, `move_group` without offsets) is not called; it may raise.
    """

    @property
    def broker(self) -> Broker: ...

    deletes_one: bool
    """Whether a single message can be taken out of the middle of a queue."""
    silence: Outcome
    """What a server's silence makes of a batch: REFUSED where the commit, which was not asked for yet, is a step of its own."""

    def another(self) -> Broker:
        """A second client of the same server, as another process would have. Each publish ends within SEND_TIMEOUT."""
        ...

    def create_topic(
        self, topic: str, queues: int, max_message_bytes: int | None = None
    ) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def create_group(self, group: str, topic: str) -> None: ...
    def subscribe(self, group: str, topics: Sequence[str], consumer: str) -> Subscription: ...
    def stored(self, topic: str) -> dict[tuple[int, int], str]:
        """What the server holds: (queue, offset) -> message id, read past the adapter."""
        ...

    def delete_message(self, topic: str, queue: int, offset: int) -> None: ...
    def move_group(self, group: str, topic: str, queue: int, next_offset: int) -> None: ...
    def add_unreadable_dead_letter(self, group: str, topic: str) -> None: ...
    def refusing(self, topic: str) -> Any:
        """A context with a client whose login the server does not let write to this topic."""
        ...

    def wipe(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def stall(self) -> None:
        """The server takes connections and bytes, and does nothing."""
        ...

    def wake(self) -> None: ...
    def close(self) -> None: ...
