"""Reads queues, groups' progress and dead letters: one script call a queue, all in one pipeline, without message contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from backstop.brokers.protocol import DeadLetterRef, GroupPosition, QueueState, Retries
from backstop.brokers.redis_streams.decode import headers_of
from backstop.brokers.redis_streams.exchange import (
    Command,
    Exchange,
    Script,
    no_answer,
    unavailable,
)
from backstop.brokers.redis_streams.keys import Keys, encode, id_of, offset_of
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.records import id_in

LOOK_QUEUE = Script.load("look_queue")
LOOK_GROUP = Script.load("entry_time", "look_group")
LOOK_PENDING = Script.load("entry_time", "look_pending")
LOOK_TIME = Script.load("entry_time", "look_time")
READ_DEAD = Script.load("read_dead")
DEAD_PAGE = 500
LISTED = 1_000
"""Unacknowledged messages of a group that one call lists in a queue; the server does nothing else meanwhile."""

_START = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of(instant: datetime) -> int:
    return (instant - _START) // timedelta(microseconds=1)


def instant_of(micros: bytes | int) -> datetime:
    return _START + timedelta(microseconds=int(micros))


class ProgressReader:
    """Reads for one adapter; every method raises BrokerUnavailable rather than leave a queue out."""

    def __init__(self, exchange: Exchange, keys: Keys) -> None:
        self._exchange, self._keys = exchange, keys

    def clock(self) -> datetime:
        [(seconds, micros)] = self._exchange.ask([("TIME",)], "reading its clock")
        return instant_of(int(seconds) * 1_000_000 + int(micros))

    def queue_count(self, topic: str) -> int:
        queues = self.find_queue_counts([topic])[topic]
        if isinstance(queues, BrokerUnavailable):
            raise queues
        if queues is None:
            raise no_topic(topic)
        return queues

    def find_queue_counts(self, topics: Sequence[str]) -> dict[str, int | BrokerUnavailable | None]:
        """Of each topic, asked for at once; None: there is no such topic. Raises nothing: an error is the answer of its topic."""
        doing = {topic: f"looking for the topic {topic!r}" for topic in topics}
        found: dict[str, int | BrokerUnavailable | None] = {}
        commands: dict[str, Command] = {}
        for topic in doing:
            try:
                commands[topic] = ("HGET", self._keys.topic(topic), "queues")
            except ContractBroken as error:
                found[topic] = unavailable(doing[topic], str(error))
        answers = self._exchange.run(list(commands.values()))
        for topic, queues in zip(commands, answers, strict=True):
            silence = no_answer(queues, doing[topic])
            found[topic] = silence or (None if queues is None else int(queues))
        return found

    def queues(self, topic: str) -> list[QueueState]:
        count = self.queue_count(topic)
        answers = self._exchange.ask(
            [LOOK_QUEUE.call(self._of(topic, queue)) for queue in range(count)],
            f"looking at the queues of {topic!r}",
        )
        states = []
        for queue, (now, epoch, next_offset, first_id) in enumerate(answers):
            # With no entry left, or none but a foreign one behind them, everything below the next offset is gone.
            following = int(next_offset)
            first = min(offset_of(first_id), following) if first_id else following
            states.append(QueueState(queue, epoch.decode(), first, following, instant_of(now)))
        return states

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        count = self.queue_count(topic)
        answers = self._exchange.ask(
            [LOOK_GROUP.call(self._of(topic, queue), group.encode()) for queue in range(count)],
            f"looking at the group {group!r} of {topic!r}",
        )
        return [
            GroupPosition(queue, epoch.decode(), int(passed), instant_of(time or now), pending)
            for queue, (now, epoch, passed, time, pending) in enumerate(answers)
        ]

    def in_hand(self, topic: str, group: str) -> Retries:
        """What the group has not acknowledged, and how far it is but for that."""
        count = self.queue_count(topic)
        answers = self._exchange.ask(
            [
                LOOK_PENDING.call(self._of(topic, queue), group.encode(), LISTED)
                for queue in range(count)
            ],
            f"reading the unacknowledged messages of the group {group!r} of {topic!r}",
        )
        # A place without its entry may be in somebody's hands still.
        if any(len(headers) < pending for *_, pending, headers in answers):
            return Retries(0, None, {})
        found = {id_in(headers_of(raw)) for *_, headers in answers for raw in headers}
        return Retries(
            0,
            frozenset(one for one in found if one is not None),
            {},
            [
                GroupPosition(
                    queue, epoch.decode(), int(delivered), instant_of(time or now), pending
                )
                for queue, (now, epoch, delivered, time, pending, _) in enumerate(answers)
            ],
        )

    def passed_until(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        if not offsets:
            return {}
        answers = self._exchange.ask(
            [
                LOOK_TIME.call(self._of(topic, queue), id_of(max(offset, 0)))
                for queue, offset in offsets.items()
            ],
            f"looking for times in {topic!r}",
        )
        return {
            queue: instant_of(time or now)
            for queue, (now, time) in zip(offsets, answers, strict=True)
        }

    def dead_letters(self, group: str, since: Mapping[str, str]) -> Iterator[DeadLetterRef]:
        doing = f"reading the dead letters of {group!r}"
        [topics] = self._exchange.ask([("SMEMBERS", self._keys.group(group))], doing)
        names = sorted(topic.decode() for topic in topics)
        keys = [self._keys.dead(topic, group) for topic in names]
        ends = (
            self._exchange.ask([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys], doing)
            if keys
            else []
        )
        there = [
            (topic, key, end[0][0])
            for topic, key, end in zip(names, keys, ends, strict=True)
            if end
        ]
        return self._read_dead(group, there, since, doing)

    def _read_dead(
        self, group: str, there: list[tuple[str, str, bytes]], since: Mapping[str, str], doing: str
    ) -> Iterator[DeadLetterRef]:
        for topic, key, end in there:
            # A stream that ends before the place may be another one.
            known = since.get(key)
            start = (
                b"-"
                if known is None or _numbers_of(end) < _numbers_of(known.encode())
                else b"(" + known.encode()
            )
            while True:
                page: list[Any]
                [page] = self._exchange.ask([READ_DEAD.call((key,), start, end, DEAD_PAGE)], doing)
                for entry_id, headers, origin_topic, origin_group in page:
                    yield DeadLetterRef(
                        group=origin_group.decode(errors="replace") or group,
                        topic=origin_topic.decode(errors="replace") or topic,
                        message_id=id_in(headers_of(headers)),
                        broker_id=f"{encode(topic)}/{entry_id.decode()}",
                        died_at=_time_of(entry_id),
                        place=(key, entry_id.decode()),
                    )
                if len(page) < DEAD_PAGE:
                    break
                start = b"(" + page[-1][0]

    def _of(self, topic: str, queue: int) -> tuple[str, str]:
        return self._keys.stream(topic, queue), self._keys.life(topic, queue)


def _time_of(entry_id: bytes) -> datetime | None:
    """The server's time when it stored the entry; null: somebody wrote an id that is no time."""
    try:
        return datetime.fromtimestamp(int(entry_id.split(b"-")[0]) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _numbers_of(entry_id: bytes) -> tuple[int, int]:
    """An entry's id, as the server orders them."""
    first, _, second = entry_id.partition(b"-")
    return int(first), int(second)


def no_topic(topic: str) -> BrokerUnavailable:
    """The error of whoever asks for a topic that is not there."""
    return unavailable(
        f"looking for the topic {topic!r}",
        f"NOTOPIC there is no such topic (`backstop topics create {topic}`)",
        refused=True,
    )
