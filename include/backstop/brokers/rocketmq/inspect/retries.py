"""Reads what waits for a group outside the topic: in its retry topics, and scheduled on the way there.

A message that failed goes round: scheduled, in the retry topic, in a consumer's hands, scheduled again. So the group's commit in
its retry topics is read first, then what is scheduled, then the ends of the retry topics: at worst one message is seen twice, and
none that goes round is missed. What could not be read counts as waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backstop.brokers.protocol import Places, Retries
from backstop.brokers.rocketmq.inspect.read_progress import ProgressReader
from backstop.brokers.rocketmq.inspect.schedule import Entry, Schedule
from backstop.brokers.rocketmq.message.names import encode_group, pop_retry_topics, retry_topic
from backstop.brokers.rocketmq.message.properties import own_headers
from backstop.brokers.rocketmq.message.stored import read_stored
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.requests import NOTHING_THERE, number, pull, read_stats
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.records import id_in

LISTED = 20_000
"""Messages of a group's retry topics that one look reads at most."""
LISTED_BYTES = 64 * 1024 * 1024
"""And so much of them: the broker gives no header without its content."""
_PULL = 32


@dataclass(frozen=True, slots=True)
class _Queue:
    """One queue of a retry topic on one master, from the place where the group is to the end that was stored."""

    topic: str
    broker: str
    address: str
    queue_id: int
    first: int
    at: int
    next: int

    @property
    def key(self) -> str:
        """Its name in `places`."""
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    def start(self, since: Places | None) -> int:
        """From where on it is listed."""
        if since is None:
            return self.at
        then = since.get(self.key, self.first)
        # A place beyond the end is of another life of the topic.
        return self.first if then > self.next else max(self.first, min(then, self.at))


class RetryReader:
    """Reads for one adapter. Safe to share between threads; they wait for each other."""

    def __init__(
        self, pool: Pool, reader: ProgressReader, schedule: Schedule, *, seconds: float
    ) -> None:
        self._pool, self._reader, self._schedule, self._seconds = pool, reader, schedule, seconds

    def pending(self, topic: str, group: str) -> int:
        """Messages that wait for the group, at most. BrokerUnavailable when a master does not answer."""
        return self._read(topic, group).count

    def listed(self, topic: str, group: str, since: Places | None) -> Retries:
        """The same by id; as the protocol has it."""
        seen = self._read(topic, group)
        places = {queue.key: queue.at for queue in seen.queues}
        if seen.left:
            return Retries(seen.count, None, places)
        try:
            ids = self._ids(seen.queues, since, seen.doing, seen.deadline)
        except BrokerUnavailable:  # this login may count there, and not read
            ids = None
        if ids is not None:
            # Perhaps of another topic of the group: what a message tells of where it came from is its sender's word.
            ids |= {entry.message_id for entry in seen.scheduled if entry.message_id}
        return Retries(seen.count, None if ids is None else frozenset(ids), places)

    def _read(self, topic: str, group: str) -> _Seen:
        """Every master is asked: a client that cannot hand a message back sends it to the retry topic of another one."""
        doing = f"looking for the retries of the group {group!r} of {topic!r}"
        deadline = time.monotonic() + self._seconds
        try:
            name, topics = (
                encode_group(group),
                (retry_topic(group), *pop_retry_topics(group, topic)),
            )
        except ContractBroken as error:
            raise unavailable(doing, error.what) from error
        topic_name, _, _ = self._reader.find(
            topic, doing, deadline
        )  # of a topic that is not there nothing is known
        masters = self._reader.masters(doing, deadline)
        begun = [
            queue for one in topics for queue in self._places(name, one, masters, doing, deadline)
        ]
        with self._schedule.lock:
            left = self._schedule.read(masters, doing, deadline)
            entries = list(self._schedule.entries(masters))
            scheduled = [entry for entry in entries if entry.goes_to in (*topics, topic_name)]
            left += sum(
                entry.cut_off for entry in entries
            )  # where it goes may be among what is missing
        ends = {
            (one, broker, queue_id): (address, first, following)
            for one in topics
            for broker, address, queue_id, first, following in self._ends(
                one, masters, doing, deadline
            )
        }
        queues = []
        for queue in begun:
            _, first, following = ends.pop(
                (queue.topic, queue.broker, queue.queue_id), (None, queue.first, queue.next)
            )
            # A commit beyond the end is of another life of the topic.
            at = max(first, queue.at) if queue.at <= following else first
            queues.append(replace(queue, first=first, at=at, next=following))
        queues += [  # it came meanwhile
            _Queue(one, broker, address, queue_id, first, first, following)
            for (one, broker, queue_id), (address, first, following) in ends.items()
        ]
        return _Seen(doing, deadline, queues, scheduled, left, set(topics))

    def _places(
        self, group: str, topic: str, masters: Mapping[str, str], doing: str, deadline: float
    ) -> list[_Queue]:
        """Where the group is in each queue of one of its retry topics."""
        there = list(self._ends(topic, masters, doing, deadline))
        committed = self._reader.committed(
            group, topic, [(b, a, q) for b, a, q, _, _ in there], doing, deadline
        )
        return [
            _Queue(
                topic,
                broker,
                address,
                queue_id,
                first,
                committed.get((broker, queue_id), first),
                following,
            )
            for broker, address, queue_id, first, following in there
        ]

    def _ends(
        self, topic: str, masters: Mapping[str, str], doing: str, deadline: float
    ) -> Iterator[tuple[str, str, int, int, int]]:
        """(broker, address, queue, first, next) of each queue of a topic, on all masters that have it."""
        asked = [
            (address, Request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}))
            for address in masters.values()
        ]
        answers = require_answers(
            self._pool, asked, deadline, doing, also=(ResponseCode.TOPIC_NOT_EXIST,)
        )
        for (broker, address), answer in zip(masters.items(), answers, strict=True):
            for queue_id, first, following in (
                read_stats(answer, doing) if answer.code == ResponseCode.SUCCESS else ()
            ):
                yield broker, address, queue_id, first, following

    def _ids(
        self, queues: Sequence[_Queue], since: Places | None, doing: str, deadline: float
    ) -> set[str] | None:
        """The ids that lie in the retry topics from their places on; null: more than may be read, or than half the time of the
        look is enough for, or one cannot be read."""
        ids: set[str] = set()
        entries, room = LISTED, LISTED_BYTES
        reading = {queue: start for queue in queues if (start := queue.start(since)) < queue.next}
        while reading:
            asked = [
                (queue.address, pull(queue.topic, queue.queue_id, at, _PULL))
                for queue, at in reading.items()
            ]
            answers = require_answers(self._pool, asked, deadline, doing, also=NOTHING_THERE)
            for (queue, at), answer in zip(list(reading.items()), answers, strict=True):
                if answer.code == ResponseCode.SUCCESS:
                    try:
                        messages = read_stored(answer.body)
                    except Malformed:
                        return None
                    if any(one.cut_off for one in messages):
                        return None
                    ids |= {
                        found for one in messages if (found := id_in(own_headers(one.properties)))
                    }
                    following = max((message.offset + 1 for message in messages), default=at)
                    room -= len(answer.body)
                else:  # removed by retention, or not to be seen yet: then the same again
                    following = number(answer, "nextBeginOffset", doing)
                    if following > max(at, number(answer, "minOffset", doing)):
                        return None  # it goes over what is there
                entries -= max(1, following - at)
                if entries < 0 or room < 0 or time.monotonic() > deadline - self._seconds / 2:
                    return None
                reading[queue] = max(at, following)
            reading = {queue: at for queue, at in reading.items() if at < queue.next}
        return ids


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look found: of the retry topics, and of what is scheduled to go there or into the topic itself."""

    doing: str
    deadline: float
    queues: list[_Queue]
    scheduled: list[Entry]
    left: int
    """Scheduled messages that were not read, or not whole."""
    topics: set[str]

    @property
    def count(self) -> int:
        waiting = sum(queue.next - queue.at for queue in self.queues)
        return waiting + self.left + sum(entry.goes_to in self.topics for entry in self.scheduled)
