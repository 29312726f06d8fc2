"""Waits for the members that may have a queue still: asked by way of the broker, until they have let the queue go.

So a queue changes hands after the commit, and nothing is skipped or repeated. A member that does not answer, or needs longer than
HANDOVER_SECONDS, is not waited for: then what it has pulled is delivered twice, as always with RocketMQ. (The broker's locks are
no means for this: while a group has one, whatever is sent to its retry topic goes to its dead letters.)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from backstop.brokers.rocketmq.consumer.members import MessageQueue, ask_running_info, queues_in
from backstop.brokers.rocketmq.wire.codes import ResponseCode
from backstop.brokers.rocketmq.wire.connections import MasterConnections

HANDOVER_SECONDS = 10.0
ASK_SECONDS = 0.1
ASKED_AT_MOST = 8
"""In a larger group only the one is asked that should have had the queue: a broker waits for one that does not answer."""


@dataclass(frozen=True, slots=True)
class _Wait:
    since: float
    holders: frozenset[str]
    """Members that may have it, and have not yet said that they have not."""


class Handover:
    """The queues that are allotted to one consumer and not yet taken. Not shared between threads."""

    def __init__(self, connections: MasterConnections, group: str) -> None:
        self._connections, self._group = connections, group
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

    def want(self, wanted: Mapping[MessageQueue, str | None], others: Collection[str]) -> None:
        """These and no others, each with the member that had it, as far as can be reckoned; `others`: all other members."""
        now = time.monotonic()
        since = {queue: wait.since for queue, wait in self._waiting.items()}
        few = len(others) <= ASKED_AT_MOST
        self._waiting = {
            queue: _Wait(
                since.get(queue, now), frozenset(one for one in others if few or one == had)
            )
            for queue, had in wanted.items()
        }

    def ready(self) -> list[MessageQueue]:
        """Those that nobody has any more, or can be waited for; they stay until they were `taken`."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._ask_holders()
        queues_of = self._read_answers()
        for queue, wait in self._waiting.items():
            free = {
                member
                for member in wait.holders
                if member in queues_of and queue not in queues_of[member]
            }
            self._waiting[queue] = _Wait(wait.since, wait.holders - free)
        return [
            queue
            for queue, wait in self._waiting.items()
            if not wait.holders or now - wait.since > HANDOVER_SECONDS
        ]

    def taken(self, queue: MessageQueue) -> None:
        self._waiting.pop(queue, None)

    def forget(self, broker: str) -> None:
        """Its connection is over."""
        self._waiting = {
            queue: wait for queue, wait in self._waiting.items() if queue.broker != broker
        }
        self._asked = {member: asked for member, asked in self._asked.items() if asked[0] != broker}

    def _ask_holders(self) -> None:
        to_ask = {
            member: queue.broker for queue, wait in self._waiting.items() for member in wait.holders
        }
        for member, broker in to_ask.items():
            if member not in self._asked:
                number = self._connections.start(broker, ask_running_info(self._group, member))
                if number is not None:
                    self._asked[member] = (broker, number)

    def _read_answers(self) -> dict[str, Collection[MessageQueue]]:
        """What those have that answered just now: nothing, where one is gone or does not tell."""
        queues_of: dict[str, Collection[MessageQueue]] = {}
        for member, (broker, number) in list(self._asked.items()):
            answer = self._connections.taken(broker, number)
            if answer is not None:
                del self._asked[member]
                queues_of[member] = queues_in(answer) if answer.code == ResponseCode.SUCCESS else ()
        return queues_of
