"""Reads what waits for a group outside the topic: in its retry topics, and scheduled on the way there.

A message that failed goes round: scheduled, in the retry topic, in a consumer's hands, scheduled again. So the group's commit in
its retry topics is read first, then what is scheduled, then the ends of the retry topics: at worst one message is seen twice, and
none that goes round is missed. What could not be read counts as waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
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


_End = tuple[str, str, int, int, int]
"""A queue of a topic: broker, address, queue, first, next."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A group of a topic, by RocketMQ's names."""

    group: str
    retry_topics: tuple[str, ...]

    @classmethod
    def of(cls, topic: str, group: str) -> _Wanted:
        """Raises ContractBroken for names that RocketMQ cannot have."""
        return cls(encode_group(group), (retry_topic(group), *pop_retry_topics(group, topic)))


class RetryReader:
    """Reads for one adapter. Safe to share between threads; they wait for each other."""

    def __init__(
        self, pool: Pool, reader: ProgressReader, schedule: Schedule, *, seconds: float
    ) -> None:
        self._pool, self._reader, self._schedule, self._seconds = pool, reader, schedule, seconds

    def pending(self, topic: str, group: str) -> int:
        """Messages that wait for the group, at most. BrokerUnavailable when a master does not answer."""
        return self._read([(topic, group)])[0].count

    def listed(self, topic: str, group: str, since: Places | None) -> Retries:
        """The same by id; as the protocol has it."""
        return self.listed_together({(topic, group): since})[topic, group]

    def listed_together(
        self, wanted: Mapping[tuple[str, str], Places | None]
    ) -> dict[tuple[str, str], Retries]:
        """The same for each (topic, group), by one look at what is scheduled: that waits until the broker has indexed everything
        that it stored. Raises BrokerUnavailable when anything of any of them was not read."""
        found: dict[tuple[str, str], Retries] = {}
        read: dict[tuple[tuple[_Queue, int], ...], set[str] | None] = {}
        for pair, seen in zip(wanted, self._read(list(wanted)), strict=True):
            places = {queue.key: queue.at for queue in seen.queues}
            if seen.left:
                found[pair] = Retries(seen.count, None, places)
                continue
            starts = tuple(
                (queue, start)
                for queue in seen.queues
                if (start := queue.start(wanted[pair])) < queue.next
            )
            if starts not in read:  # a group has one retry topic for all of its topics
                try:
                    read[starts] = self._ids(dict(starts), seen.doing)
                except BrokerUnavailable:  # this login may count there, and not read
                    read[starts] = None
            ids = read[starts]
            if ids is not None:
                # Perhaps of another topic of the group: what a message tells of where it came from is its sender's word.
                ids = ids | {entry.message_id for entry in seen.scheduled if entry.message_id}
            found[pair] = Retries(seen.count, None if ids is None else frozenset(ids), places)
        return found

    def _read(self, pairs: Sequence[tuple[str, str]]) -> list[_Seen]:
        """Every master is asked: a client that cannot hand a message back sends it to the retry topic of another one."""
        topic, group = pairs[0]
        doing = f"looking for the retries of the group {group!r} of {topic!r}"
        if len(pairs) > 1:
            doing += f" and {len(pairs) - 1} others"
        deadline = time.monotonic() + self._seconds
        try:
            wanted = [_Wanted.of(topic, group) for topic, group in pairs]
        except ContractBroken as error:
            raise unavailable(doing, error.what) from error
        # Of a topic that is not there nothing is known.
        names = {
            topic: self._reader.find(topic, doing, deadline)[0]
            for topic in dict.fromkeys(topic for topic, _ in pairs)
        }
        masters = self._reader.masters(doing, deadline)
        # By group, too: two groups may have one name for a retry topic of popped messages.
        used = list(dict.fromkeys((one.group, name) for one in wanted for name in one.retry_topics))
        begun = self._places(used, masters, doing, deadline)
        with self._schedule.lock:
            left = self._schedule.read(masters, doing, deadline)
            scheduled: dict[str, list[Entry]] = {}
            for entry in self._schedule.entries(masters):
                scheduled.setdefault(entry.goes_to, []).append(entry)
                left += entry.cut_off  # where it goes may be among what is missing
        ends = self._ends([name for _, name in used], masters, doing, deadline)
        queues = {at: _ended(at[1], begun[at], ends[at[1]]) for at in used}
        return [
            _Seen(
                doing,
                [queue for name in pair.retry_topics for queue in queues[pair.group, name]],
                [
                    entry
                    for name in (*pair.retry_topics, names[topic])
                    for entry in scheduled.get(name, ())
                ],
                left,
                set(pair.retry_topics),
            )
            for (topic, _), pair in zip(pairs, wanted, strict=True)
        ]

    def _places(
        self,
        used: Sequence[tuple[str, str]],
        masters: Mapping[str, str],
        doing: str,
        deadline: float,
    ) -> dict[tuple[str, str], list[_Queue]]:
        """Where each group is in each queue of each of its retry topics; `used`: (group, retry topic)."""
        ends = self._ends([name for _, name in used], masters, doing, deadline)
        found: dict[tuple[str, str], list[_Queue]] = {}
        for group, topic in used:
            there = ends[topic]
            committed = self._reader.committed(
                group, topic, [(b, a, q) for b, a, q, _, _ in there], doing, deadline
            )
            found[group, topic] = [
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
        return found

    def _ends(
        self, topics: Iterable[str], masters: Mapping[str, str], doing: str, deadline: float
    ) -> dict[str, list[_End]]:
        """Each queue of each topic, on all masters that have it."""
        wanted = [(topic, broker) for topic in dict.fromkeys(topics) for broker in masters]
        asked = [
            (masters[broker], Request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}))
            for topic, broker in wanted
        ]
        answers = require_answers(
            self._pool, asked, deadline, doing, also=(ResponseCode.TOPIC_NOT_EXIST,)
        )
        found: dict[str, list[_End]] = {topic: [] for topic, _ in wanted}
        for (topic, broker), answer in zip(wanted, answers, strict=True):
            if answer.code == ResponseCode.SUCCESS:
                found[topic] += [
                    (broker, masters[broker], queue_id, first, following)
                    for queue_id, first, following in read_stats(answer, doing)
                ]
        return found

    def _ids(self, starts: Mapping[_Queue, int], doing: str) -> set[str] | None:
        """The ids that lie in these queues from their places on; null: more than may be read, or than half the time of a
        look is enough for, or one cannot be read."""
        ids: set[str] = set()
        entries, room, deadline = LISTED, LISTED_BYTES, time.monotonic() + self._seconds
        reading = dict(starts)
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


def _ended(topic: str, begun: Sequence[_Queue], ends: Sequence[_End]) -> list[_Queue]:
    """The queues of a retry topic, where the group was when the look began and with the ends that they have now."""
    left = {(broker, queue_id): end for end in ends for broker, _, queue_id, _, _ in [end]}
    queues = []
    for queue in begun:
        now = left.pop((queue.broker, queue.queue_id), None)
        first, following = (queue.first, queue.next) if now is None else now[3:]
        # A commit beyond the end is of another life of the topic.
        at = max(first, queue.at) if queue.at <= following else first
        queues.append(replace(queue, first=first, at=at, next=following))
    queues += [  # it came meanwhile
        _Queue(topic, broker, address, queue_id, first, first, following)
        for broker, address, queue_id, first, following in left.values()
    ]
    return queues


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look found: of the retry topics, and of what is scheduled to go there or into the topic itself."""

    doing: str
    queues: list[_Queue]
    scheduled: list[Entry]
    left: int
    """Scheduled messages that were not read, or not whole."""
    topics: set[str]

    @property
    def count(self) -> int:
        waiting = sum(queue.next - queue.at for queue in self.queues)
        return waiting + self.left + sum(entry.goes_to in self.topics for entry in self.scheduled)
