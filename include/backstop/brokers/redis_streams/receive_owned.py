"""Receives for one consumer of a group that owns its queues: each in order, and only while no higher fence has read.

What an earlier owner fetched and did not acknowledge is adopted before anything new is read, so no message of a key
overtakes one before it. Entries are never handed back: their owner tries them in place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from backstop.brokers.budget import has_room
from backstop.brokers.owned import Queue
from backstop.brokers.protocol import Received
from backstop.brokers.redis_streams.decode import entry_of, received
from backstop.brokers.redis_streams.exchange import Exchange, Script
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.read_progress import ProgressReader, no_topic
from backstop.brokers.redis_streams.receive import (
    ERROR_CHARACTERS,
    HAND_BACK,
    LEAVE,
    QUEUES_SECONDS,
    acknowledgements,
)
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)

READ_OWNED = Script.load("read_owned")
_ALL_ADOPTED, _NONE_ADOPTED = b"", b"-"
MOST_BYTES_AT_ONCE = 8 * 1024 * 1024
"""What one read brings, and a few entries more: its answer must come within `answer_timeout`."""
MOST_BYTES_IN_HAND = 64 * 1024 * 1024
"""A consumer that holds more reads only queues of which it holds less than their share."""


class OwnedRedisSubscription:
    """One consumer over the queues that it owns. Not shared between threads."""

    assigns = False

    def __init__(
        self,
        exchange: Exchange,
        keys: Keys,
        reader: ProgressReader,
        *,
        group: str,
        topics: Sequence[str],
        consumer: str,
    ) -> None:
        self._exchange, self._keys, self._reader = exchange, keys, reader
        self._group, self._topics, self._consumer = group, tuple(topics), consumer
        self._queues: dict[str, list[int]] = {}
        self._read_queues_at = float("-inf")
        self._adopted: dict[tuple[Queue, int], bytes] = {}
        """For each queue and fence, how far the entries of earlier owners were adopted."""
        self._in_hand: dict[Queue, dict[str, int]] = {}
        """The bytes of each message that was fetched and is not done with, by its broker_id: an entry that is given an id
        again is another message."""
        self._left: set[Queue] = set()
        self._limited = LimitedLog(log)

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
        """A topic that is not there has none; one that is refused has those that it had. Neither holds up another. Raises
        BrokerUnavailable if no topic was answered."""
        now = time.monotonic()
        if now - self._read_queues_at >= QUEUES_SECONDS:
            found = self._reader.find_queue_counts(self._topics)
            answered: dict[str, list[int]] = {}
            for topic, number in found.items():
                if isinstance(number, BrokerUnavailable):
                    self._limited.warning(str(number))
                    continue
                if number is None:
                    self._limited.warning(str(no_topic(topic)))
                answered[topic] = list(range(number or 0))
            errors = [error for error in found.values() if isinstance(error, BrokerUnavailable)]
            if errors and not answered:
                raise errors[0]
            self._queues = self._queues | answered
            self._read_queues_at = now
        return self._queues

    def fetch(self, queue: Queue, fence: int, limit: int) -> list[Received] | None:
        topic, number = queue
        adopted = self._adopted.get((queue, fence))
        if (
            adopted is None
        ):  # a new fence: what this consumer had received under an earlier one is not its own any more
            self.forget(queue)
            adopted = _NONE_ADOPTED
        in_hand = self._in_hand.setdefault(queue, {})
        if not has_room(
            sum(in_hand.values()),
            (sum(its.values()) for its in self._in_hand.values()),
            MOST_BYTES_IN_HAND,
            len(self._in_hand),
        ):
            return []
        self._left.add(queue)
        command = READ_OWNED.call(
            (
                self._keys.stream(*queue),
                self._keys.held(topic, number, self._group),
                self._fence(queue),
            ),
            self._group.encode(),
            self._consumer.encode(),
            fence,
            limit,
            adopted,
            MOST_BYTES_AT_ONCE,
        )
        # When the answer is lost, entries are pending for us that we never saw: they are adopted again.
        self._adopted[queue, fence] = _NONE_ADOPTED
        try:
            [answer] = self._exchange.ask([command], "receiving")
        except BrokerUnavailable:
            self._read_queues_at = float("-inf")  # the topic may have changed
            raise
        if answer is None:
            self.forget(queue)
            return None
        self._adopted[queue, fence], entries, pending = answer
        found: list[Received] = []
        for entry_id, fields, deliveries in entries:
            one = received(topic, number, entry_id, fields, deliveries)
            if one.broker_id not in in_hand:
                in_hand[one.broker_id] = sum(map(len, fields))
                found.append(one)
        if self._adopted[queue, fence] == _ALL_ADOPTED and pending > len(in_hand):
            # A failover lost acknowledgements that this consumer had an answer to: these entries are adopted again.
            self._adopted[queue, fence] = _NONE_ADOPTED
        return found

    def acknowledge(self, received: Sequence[Received]) -> None:
        commands = acknowledgements(self._keys, self._group, received)
        if commands:
            self._exchange.ask(commands, "acknowledging")
        for one in received:
            self._done(one)

    def bury(self, received: Received, error: str) -> bool:
        number, entry_id, mark = entry_of(received)
        topic = received.message.topic
        queue = (topic, number)
        command = HAND_BACK.call(
            (
                self._keys.stream(*queue),
                self._keys.life(*queue),
                self._keys.held(*queue, self._group),
                self._keys.dead(topic, self._group),
            ),
            self._group.encode(),
            self._consumer.encode(),
            entry_id,
            mark,
            received.deliveries,
            1,
            0,
            1,
            topic.encode(),
            number,
            error[:ERROR_CHARACTERS].encode(errors="replace"),
        )
        [answer] = self._exchange.ask([command], "moving a message to the dead letters")
        self._done(received)
        if (
            answer == b"gone"
        ):  # it was adopted again meanwhile, or is its next owner's: whoever fetches it buries it
            for known in [place for place in self._adopted if place[0] == queue]:
                self._adopted[known] = _NONE_ADOPTED
        return bool(answer == b"dead")

    def forget(self, queue: Queue) -> None:
        self._in_hand.pop(queue, None)
        for known in [place for place in self._adopted if place[0] == queue]:
            del self._adopted[known]

    def close(self) -> None:
        """Leaves the group where nothing is pending for this consumer; the next owner adopts the rest."""
        commands = [
            LEAVE.call((self._keys.stream(*queue),), self._group.encode(), self._consumer.encode())
            for queue in sorted(self._left)
        ]
        self._left.clear()
        self._in_hand.clear()
        self._adopted.clear()
        self._exchange.run(commands)

    def _done(self, received: Received) -> None:
        number, _, _ = entry_of(received)
        self._in_hand.get((received.message.topic, number), {}).pop(received.broker_id, None)

    def _fence(self, queue: Queue) -> str:
        return self._keys.fence(*queue, self._group)
