"""Waits for the member that had a queue before: asked by way of the broker, until it has let the queue go.

So a queue changes hands after the commit, and nothing is skipped or repeated. A member that does not answer, or needs longer than
HANDOVER_SECONDS, is not waited for: then what it still has in hand comes twice, as always with RocketMQ. (The broker's locks are
no means for this: while a group has one, whatever is sent to its retry topic goes to its dead letters.)
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from backstop.brokers.rocketmq.codes import Said
from backstop.brokers.rocketmq.lines import Lines
from backstop.brokers.rocketmq.members import MessageQueue, ask_running_info, queues_in

HANDOVER_SECONDS = 10.0
ASK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Wait:
    since: float
    holder: str | None
    """The member that had it before, as far as can be reckoned; null: nobody that is to be waited for."""


class Handover:
    """The queues that are allotted to one consumer and not yet taken. Not shared between threads."""

    def __init__(self, lines: Lines, group: str) -> None:
        self._lines, self._group = lines, group
        self._waiting: dict[MessageQueue, _Wait] = {}
        self._asked: dict[str, tuple[str, int]] = {}
        """Members that were asked what they have: the broker and the number of the request."""
        self._ask_at = 0.0

    @property
    def queues(self) -> list[MessageQueue]:
        return list(self._waiting)

    @property
    def due_at(self) -> float | None:
        """When it is to be looked at again; null: nothing waits."""
        return self._ask_at if self._waiting else None

    def want(self, wanted: dict[MessageQueue, str | None]) -> None:
        """These and no others, each with the member that had it, where that one is a member still."""
        now = time.monotonic()
        since = {queue: wait.since for queue, wait in self._waiting.items()}
        self._waiting = {queue: _Wait(since.get(queue, now), holder) for queue, holder in wanted.items()}

    def ready(self) -> list[MessageQueue]:
        """Those that nobody has any more, or can be waited for; they stay until they were `taken`."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._ask_holders()
        told = self._told()
        return [
            queue
            for queue, wait in self._waiting.items()
            if wait.holder is None
            or now - wait.since > HANDOVER_SECONDS
            or (wait.holder in told and queue not in told[wait.holder])
        ]

    def taken(self, queue: MessageQueue) -> None:
        self._waiting.pop(queue, None)

    def forget(self, broker: str) -> None:
        """Its connection is over."""
        self._waiting = {queue: wait for queue, wait in self._waiting.items() if queue.broker != broker}
        self._asked = {member: asked for member, asked in self._asked.items() if asked[0] != broker}

    def _ask_holders(self) -> None:
        for queue, wait in self._waiting.items():
            if wait.holder is not None and wait.holder not in self._asked:
                number = self._lines.start(queue.broker, ask_running_info(self._group, wait.holder))
                if number is not None:
                    self._asked[wait.holder] = (queue.broker, number)

    def _told(self) -> dict[str, Collection[MessageQueue]]:
        """What those have that answered just now: nothing, where one is gone or does not tell."""
        told: dict[str, Collection[MessageQueue]] = {}
        for member, (broker, number) in list(self._asked.items()):
            answer = self._lines.taken(broker, number)
            if answer is not None:
                del self._asked[member]
                told[member] = queues_in(answer) if answer.code == Said.SUCCESS else ()
        return told
