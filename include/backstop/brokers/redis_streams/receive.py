"""Receives for one consumer of a group: redeliveries first, then new messages; hands back without losing the
place.

Whatever is handed out stays in the group's pending entries until it is acknowledged or dead-lettered, also
while it is held for later: progress never passes it, and any consumer of the group takes it over when its
holder dies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from redis.exceptions import ResponseError

from backstop.brokers.protocol import Received
from backstop.brokers.redis_streams.decode import entry_of, received
from backstop.brokers.redis_streams.exchange import Command, Exchange, Script, no_answer
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.read_progress import ProgressReader, no_topic
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)

REDELIVER = Script.load("bury", "redeliver")
HAND_BACK = Script.load("another", "bury", "hand_back")
ACKNOWLEDGE = Script.load("another", "acknowledge")
LEAVE = Script.load("leave")

POLL_SECONDS = 0.1
"""How often a waiting consumer looks for what is due again; a handed back message is late by at most this."""
QUEUES_SECONDS = 5.0
"""How often it looks for new queues of its topics."""
ERROR_CHARACTERS = 2000

Queue = tuple[str, int]


class RedisSubscription:
    """One consumer of a group over all queues of its topics. Not shared between threads."""

    def __init__(
        self,
        exchange: Exchange,
        keys: Keys,
        reader: ProgressReader,
        *,
        group: str,
        topics: Sequence[str],
        consumer: str,
        visibility: timedelta,
        delivery_limit: int | None,
    ) -> None:
        self._exchange, self._keys, self._reader = exchange, keys, reader
        self._group, self.topics, self._consumer = group, tuple(topics), consumer
        self._visibility_ms = max(1, int(visibility.total_seconds() * 1000))
        self._limit = delivery_limit or 0
        self._scan_every = min(max(self._visibility_ms / 4000, POLL_SECONDS), QUEUES_SECONDS)
        self._queues: list[Queue] = []
        self._silent: dict[Queue, BrokerUnavailable] = {}
        """Queues that answered the last look with an error: the others go on without them."""
        self._limited = LimitedLog(log)
        self._turn = 0
        self._read_queues_at = self._looked_at = self._scanned_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def fetch(self, limit: int, wait: timedelta) -> list[Received]:
        """Up to `limit` messages; BrokerUnavailable when no queue can be read. A topic that is not there, or without the group, stops
        no other."""
        try:
            return self._fetch(limit, time.monotonic() + wait.total_seconds())
        except BrokerUnavailable:
            # The topic may have changed under us: look again next time.
            self._read_queues_at = self._looked_at = self._scanned_at = float("-inf")
            raise

    def _fetch(self, limit: int, deadline: float) -> list[Received]:
        while True:
            self._refresh_queues()
            found = self._and_new(self._redeliveries(limit), limit)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            found = self._new(limit, block=min(left, POLL_SECONDS))
            if found:
                # The first one woke us up; others may have come with it.
                return self._and_new(found, limit)

    def acknowledge(self, received: Sequence[Received]) -> None:
        commands = acknowledgements(self._keys, self._group, received)
        if commands:
            self._exchange.ask(commands, "acknowledging")

    def hand_back(
        self, received: Received, *, after: timedelta, counts: bool, error: str | None = None
    ) -> None:
        doing = "handing a message back"
        [answer] = self._exchange.run(
            [self._hand_back(received, after, counts, self._limit, error)]
        )
        if isinstance(answer, ResponseError) and counts and 0 < self._limit <= received.deliveries:
            # No dead letter could be stored (no memory). It keeps its deliveries and waits: what is due at its limit is tried again
            # without a handler, and holds up no other.
            self._limited.warning(str(no_answer(answer, doing)))
            [answer] = self._exchange.run([self._hand_back(received, after, counts, 0, error)])
        silence = no_answer(answer, doing)
        if silence is not None:
            raise silence

    def close(self) -> None:
        """Forgets this consumer where it holds nothing; what it holds is delivered again after the
        visibility."""
        commands = [
            LEAVE.call((self._keys.stream(*queue),), self._group.encode(), self._consumer.encode())
            for queue in self._queues
        ]
        self._queues = []
        # A broker that is away keeps the name of an idle consumer, which costs nothing and harms nobody.
        self._exchange.run(commands)

    def _refresh_queues(self) -> None:
        now = time.monotonic()
        if now - self._read_queues_at >= QUEUES_SECONDS:
            counts = self._reader.find_queue_counts(self.topics)
            wrong = [
                count or no_topic(topic)
                for topic, count in counts.items()
                if not isinstance(count, int)
            ]
            if wrong and len(wrong) == len(counts):
                raise wrong[0]
            for error in wrong:
                self._limited.warning(str(error))
            # A topic that is refused has the queues that it had.
            had = [
                queue for queue in self._queues if isinstance(counts[queue[0]], BrokerUnavailable)
            ]
            self._queues = had + [
                (topic, q)
                for topic, count in counts.items()
                if isinstance(count, int)
                for q in range(count)
            ]
            self._silent = {q: error for q, error in self._silent.items() if q in self._queues}
            self._read_queues_at = now

    def _redeliveries(self, limit: int) -> list[Received]:
        now = time.monotonic()
        if now - self._looked_at < POLL_SECONDS:
            return []
        scan = now - self._scanned_at >= self._scan_every
        self._looked_at = now
        self._scanned_at = now if scan else self._scanned_at
        found: list[Received] = []
        turn = self._next_turn()
        # A pipeline over the queues would take `limit` from each: so many queues at a time that the limit
        # holds.
        while turn and len(found) < limit:
            room = limit - len(found)
            some, turn = turn[:room], turn[room:]
            share = max(1, room // len(some))
            answers = self._exchange.run([self._redeliver(queue, share, scan) for queue in some])
            for queue, taken in zip(some, answers, strict=True):
                silence = no_answer(taken, "receiving")
                if silence is not None:
                    self._silent[queue] = silence
                    continue
                if scan or taken:  # else it has not met the group
                    self._silent.pop(queue, None)
                found += [received(*queue, i, fields, count) for i, fields, count in taken]
        if self._silent and len(self._silent) == len(self._queues):
            raise next(iter(self._silent.values()))
        for error in self._silent.values():
            self._limited.warning(str(error))
        return found

    def _hand_back(
        self, received: Received, after: timedelta, counts: bool, limit: int, error: str | None
    ) -> Command:
        topic = received.message.topic
        queue, entry_id, mark = entry_of(received)
        return HAND_BACK.call(
            self._of((topic, queue)),
            self._group.encode(),
            self._consumer.encode(),
            entry_id,
            mark,
            received.deliveries,
            int(counts),
            max(0, int(after.total_seconds() * 1000)),
            limit,
            topic.encode(),
            queue,
            (error or "")[:ERROR_CHARACTERS].encode(errors="replace"),
        )

    def _redeliver(self, queue: Queue, at_most: int, scan: bool) -> tuple[str | bytes | int, ...]:
        topic, number = queue
        return REDELIVER.call(
            self._of(queue),
            self._group.encode(),
            self._consumer.encode(),
            at_most,
            self._visibility_ms,
            self._limit,
            topic.encode(),
            number,
            int(scan),
        )

    def _and_new(self, found: list[Received], limit: int) -> list[Received]:
        """New messages behind what was found. That has spent a delivery: an error behind it does not keep it back."""
        if len(found) >= limit:
            return found
        try:
            return found + self._new(limit - len(found), block=0.0)
        except BrokerUnavailable as error:
            if not found:
                raise
            self._limited.warning(str(error))  # the next call meets it again
            return found

    def _new(self, limit: int, *, block: float) -> list[Received]:
        """New messages, fairly over the queues: COUNT is for each stream, so the share keeps the sum below
        `limit`."""
        found: list[Received] = []
        queues = [queue for queue in self._next_turn() if queue not in self._silent][:limit]
        while queues and limit > len(found):
            queues = queues[: limit - len(found)]
            share = (limit - len(found)) // len(queues)
            streams = {self._keys.stream(*queue).encode(): queue for queue in queues}
            wait = ("BLOCK", max(1, int(block * 1000))) if block > 0 else ()
            command = (
                "XREADGROUP",
                "GROUP",
                self._group.encode(),
                self._consumer.encode(),
                "COUNT",
                share,
                *wait,
                "STREAMS",
                *streams,
                *([">"] * len(streams)),
            )
            [answer] = self._exchange.run([command], blocking=block)
            silence = no_answer(answer, "receiving")
            if silence is not None:
                if not found:
                    raise silence
                self._limited.warning(str(silence))
                return found
            full: list[Queue] = []
            for stream, entries in answer or ():
                topic, number = streams[stream]
                found += [
                    received(topic, number, entry_id, fields, 1) for entry_id, fields in entries
                ]
                if len(entries) == share:
                    full.append((topic, number))
            # Only those that gave their whole share may have more; a wait ends with the first answer.
            queues = [] if block > 0 else full
        return found

    def _next_turn(self) -> list[Queue]:
        """All queues, each time beginning at the next one, so that no busy queue starves the others."""
        if not self._queues:
            return []
        self._turn = (self._turn + 1) % len(self._queues)
        return self._queues[self._turn :] + self._queues[: self._turn]

    def _of(self, queue: Queue) -> tuple[str, str, str, str]:
        topic, number = queue
        return (
            self._keys.stream(topic, number),
            self._keys.life(topic, number),
            self._keys.held(topic, number, self._group),
            self._keys.dead(topic, self._group),
        )


def acknowledgements(keys: Keys, group: str, received: Sequence[Received]) -> list[Command]:
    """One command for each queue."""
    entries: dict[Queue, list[str]] = {}
    for one in received:
        number, entry_id, mark = entry_of(one)
        entries.setdefault((one.message.topic, number), []).extend((entry_id, mark))
    return [
        ACKNOWLEDGE.call((keys.stream(*queue), keys.held(*queue, group)), group.encode(), *named)
        for queue, named in entries.items()
    ]
