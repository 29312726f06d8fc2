"""RocketMQ's process queue: what this consumer pulled from one queue, and the lowest offset that is not acknowledged.

Everything below the next offset to pull that is not held here was acknowledged, sent back or left out by the group's filter. So
a commit of the lowest one passes nothing that somebody still has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from backstop.brokers.protocol import Received
from backstop.brokers.rocketmq.consumer.members import MessageQueue
from backstop.brokers.rocketmq.message.stored import Stored

_lives = count(1)


@dataclass(slots=True, eq=False)
class Held:
    """One message that was pulled and is not done with. `received`: as it was handed out last; null: not yet."""

    process_queue: ProcessQueue
    stored: Stored
    received: Received | None = None
    due_at: float | None = None
    """When it is handed out again, where it was handed back."""


class ProcessQueue:
    """One queue from the offset on that the group had committed. Not shared between threads."""

    def __init__(self, queue: MessageQueue, start: int, committed: int | None) -> None:
        self.queue, self.life = queue, next(_lives)
        """`life`: no other taking of a queue, and no other move, has this number."""
        self.next_offset = start
        """The next to be pulled."""
        self.committed = committed
        """What the broker has; null: nothing, or something that is not true any more."""
        self.moved = False
        """It went on from another place than the broker has, or nobody knows what that has after a commit without an answer: to be
        committed before the broker's word is believed again."""
        self.pulling: int | None = None
        """Of a pull that the broker holds: the number of its request."""
        self.pulling_from = start
        """The offset that it asked for; an answer counts only while that is the next one."""
        self.pulling_until = 0.0
        """When its silence means that the broker is gone."""
        self._held: dict[int, Held] = {}
        """By offset, rising: they are pulled in order, and an entry keeps its place."""
        self._fresh: deque[Held] = deque()
        self.bytes = 0

    @property
    def lowest(self) -> int:
        """The lowest offset not acknowledged: what may be committed."""
        return next(iter(self._held), self.next_offset)

    @property
    def size(self) -> int:
        return len(self._held)

    @property
    def fresh(self) -> int:
        """Pulled and not handed out."""
        return len(self._fresh)

    def pulled(self, messages: Sequence[Stored], next_offset: int) -> None:
        """What a pull gave; messages below the place, which a pull begun before a move may bring, are left out."""
        for stored in messages:
            if stored.offset < self.next_offset:
                continue
            held = Held(self, stored)
            self._held[stored.offset] = held
            self._fresh.append(held)
            self.bytes += len(stored.body)
            self.next_offset = stored.offset + 1
        self.next_offset = max(self.next_offset, next_offset)

    def take(self, limit: int) -> list[Held]:
        """The next ones that were not handed out."""
        return [self._fresh.popleft() for _ in range(min(limit, len(self._fresh)))]

    def put_back(self, taken: Sequence[Held]) -> None:
        """They could not be handed out."""
        self._fresh.extendleft(held for held in reversed(taken) if self.has(held))

    def done(self, held: Held) -> None:
        """It is acknowledged, or the broker has it elsewhere."""
        if self.has(held):
            del self._held[held.stored.offset]
            self.bytes -= len(held.stored.body)

    def has(self, held: Held) -> bool:
        return self._held.get(held.stored.offset) is held

    def skip_to(self, offset: int) -> None:
        """The broker has nothing below this any more; what was pulled before stays."""
        self.next_offset = offset

    def move(self, offset: int, *, committed: int | None) -> None:
        """The group's offset was moved: what was pulled is dropped, and pulling goes on from there. `committed`: what the
        broker has; None: not this offset, so it must be committed."""
        self._held.clear()
        self._fresh.clear()
        self.bytes, self.life = 0, next(_lives)
        self.next_offset, self.committed, self.pulling = offset, committed, None
        self.moved = committed is None
