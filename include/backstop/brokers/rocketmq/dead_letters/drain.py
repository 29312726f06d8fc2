"""Hands out dead letters whole, a bounded page at a time; acknowledged is what lies below the offset that the drain committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from backstop.brokers.protocol import LETTER_PAGE_BYTES, DeadLetter, DeadLetterRef
from backstop.brokers.rocketmq.dead_letters.dead_queue import DeadQueue, DeadQueues
from backstop.brokers.rocketmq.message.names import dead_letter_topic, group_of_dead_letters
from backstop.brokers.rocketmq.message.read_dead_letter import (
    place_of,
    read_dead_letter,
    ref_of,
    topic_of,
)
from backstop.brokers.rocketmq.message.stored import Stored
from backstop.brokers.rocketmq.routes.find_origins import Dead, Origins
from backstop.brokers.rocketmq.routes.route import Routes
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.model.errors import ConfigurationError, ContractBroken

DRAIN_GROUP = "BACKSTOP_DRAIN"


class Drain:
    """Finds the dead-letter topics of one adapter, looks into them, and opens readers of them."""

    def __init__(
        self,
        pool: Pool,
        routes: Routes,
        *,
        seconds: float,
        drain_group: str = DRAIN_GROUP,
        pull_batch: int = 32,
    ) -> None:
        """`seconds`: of one question or acknowledgement. `drain_group`: by which it is committed how far they are stored."""
        self._queues = DeadQueues(
            pool, routes, drain_group=drain_group, pull_batch=pull_batch, seconds=seconds
        )
        self._origins = Origins(pool, routes, seconds=seconds)

    def queues(self, groups: Sequence[str]) -> list[str]:
        """The dead-letter topics of these groups in which there ever was a letter."""
        topics = filter(None, map(_topic_of, sorted(set(groups))))
        return [topic for topic in dict.fromkeys(topics) if self._queues.find(topic)]

    def letters(self, group: str, since: Mapping[str, str]) -> Iterator[DeadLetterRef]:
        """What the drain has not stored yet, to the end that there is at the call. Below it all is in the control database."""
        topic = _topic_of(group)
        found = [] if topic is None else self._queues.find(topic)
        return (
            ref_of(queue.broker, group, stored)
            for queue in found
            for some in self._queues.read(queue, _from(queue, since))
            for stored in some
        )

    def open(self, queue: str) -> RocketMQLetters:
        """Raises ConfigurationError for a name that is no dead-letter topic."""
        group = group_of_dead_letters(queue)
        if not group:
            raise ConfigurationError(
                f"{queue!r} is not a dead-letter topic of RocketMQ.",
                unaffected="Nothing was read or acknowledged.",
                next_step="Use a name that its list of dead-letter queues gives.",
            )
        return RocketMQLetters(self._queues, self._origins, queue, group)


def _topic_of(group: str) -> str | None:
    """None: nothing of this group ever died here, for RocketMQ cannot have its name. It may be one of another broker."""
    try:
        return dead_letter_topic(group)
    except ContractBroken:
        return None


@dataclass(slots=True)
class _Reading:
    """One queue of the topic in a reader's hands."""

    queues: DeadQueues
    queue: DeadQueue
    at: int
    """The first entry that has not arrived."""
    entries: Iterator[list[Stored]] | None = None
    arrived: deque[Stored] = field(default_factory=deque)
    out: deque[tuple[str, int, datetime]] = field(default_factory=deque)
    """Handed out and not below the committed offset: the letter's id, its offset, and when it was stored."""
    acknowledged: set[str] = field(default_factory=set)
    """Of these."""

    def fill(self) -> bool:
        """Whether something has arrived; false: that was the end."""
        if not self.arrived:
            if self.entries is None:
                self.entries = self.queues.read(self.queue, self.at)
            entries, self.entries = self.entries, None
            some = next(
                entries, None
            )  # when this raises, the next one begins again from where this one was
            self.entries = entries
            if some is not None:
                self.arrived.extend(some)
                self.at = some[-1].offset + 1
        return bool(self.arrived)


class RocketMQLetters:
    """One reader: from where the drain is to the end that the topic had when this was opened, so that it ends while others fill
    it. Where several brokers have letters, one broker's come after the other's."""

    def __init__(self, queues: DeadQueues, origins: Origins, topic: str, group: str) -> None:
        self._queues, self._origins, self._topic, self._group = queues, origins, topic, group
        self._readings = [_Reading(queues, queue, queue.start) for queue in queues.find(topic)]
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True

    def read(self, limit: int) -> list[DeadLetter]:
        """Fewer than `limit` where they are large, none at the end."""
        page: list[tuple[_Reading, Stored]] = []
        try:
            self._fill(page, limit)
            return self._hand_out(page)
        except BaseException:
            for reading, one in reversed(page):
                reading.arrived.appendleft(one)
            raise

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        """Commits, for each queue, the lowest offset that is not acknowledged."""
        ids = {letter.broker_id for letter in letters}
        for reading in self._readings:
            reading.acknowledged.update(ids.intersection(name for name, _, _ in reading.out))
            done = 0
            for name, _, _ in reading.out:
                if name not in reading.acknowledged:
                    break
                done += 1
            if done:
                _, offset, stored_at = reading.out[done - 1]
                self._queues.commit(reading.queue, offset + 1, stored_at)
                for _ in range(done):
                    reading.acknowledged.discard(reading.out.popleft()[0])

    def _fill(self, page: list[tuple[_Reading, Stored]], limit: int) -> None:
        size = 0
        for reading in self._readings if not self._closed else ():
            while len(page) < limit and reading.fill():
                size += _size(reading.arrived[0])
                if page and size > LETTER_PAGE_BYTES:
                    return
                page.append((reading, reading.arrived.popleft()))

    def _hand_out(self, page: Sequence[tuple[_Reading, Stored]]) -> list[DeadLetter]:
        positions = self._origins.find(
            [
                Dead(topic_of(one, self._group), reading.queue.broker, reading.queue.master, one)
                for reading, one in page
            ]
        )
        letters = []
        for (reading, one), position in zip(page, positions, strict=True):
            letter = read_dead_letter(self._topic, reading.queue.broker, self._group, one, position)
            reading.out.append((letter.broker_id, one.offset, one.stored_at))
            letters.append(letter)
        return letters


def _from(queue: DeadQueue, since: Mapping[str, str]) -> int:
    """The first entry to read. A queue that ends before the place was rebuilt."""
    place = place_of(queue.broker, queue.queue_id)
    after = int(since[place]) + 1 if place in since else queue.start
    return max(queue.start, after) if after <= queue.end else queue.start


def _size(stored: Stored) -> int:
    content, _ = stored.unpack()
    return len(stored.body if content is None else content)
