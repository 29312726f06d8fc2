"""Reads what brokers keep for later: messages with a delay, and what failed and waits for its next try.

What it read of one queue of the schedule it keeps, so that a look reads only what is new.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backstop.brokers.rocketmq.inspect.clock import Clock, Runtime, as_datetime
from backstop.brokers.rocketmq.message.properties import own_headers
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.requests import NOTHING_THERE, number, pull, read_stats
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.records import id_in

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
"""A queue for each delay level, in the order of time: what comes again later lies here, also what failed."""
TIMER = "rmq_sys_wheel_timer"
"""Messages with a time of their own; no retry is among them."""
SHARED_SECONDS = 1.0
"""How old a look's time may be: T is older by so much, and never wrong by it."""
SCANNED = 20_000
"""Scheduled messages that one look reads at most."""
_PULL = 32
"""The broker gives no more at once."""
_TOPIC_AFTERWARDS = "REAL_TOPIC"


@dataclass(frozen=True, slots=True)
class Entry:
    """One scheduled message: the topic that it goes to, and when: milliseconds since 1970 by its broker's clock."""

    goes_to: str
    due: int
    message_id: str | None = None
    """Null: it carries none, so it is no copy of ours."""
    cut_off: bool = False
    """It was not stored whole: its id and its topic may be missing."""


@dataclass(slots=True)
class _Level:
    """What is scheduled in one level of one master, as far as it was read."""

    entries: dict[int, Entry] = field(default_factory=dict)
    """By offset; only what had not gone where it goes."""
    read_to: int = 0
    last_due: int = 0
    """Of the last entry that was read: what comes behind it is not due sooner."""


@dataclass(slots=True)
class _Master:
    """What is known of one master's schedule; it holds for one life of the broker."""

    booted: int
    levels: dict[int, _Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ends:
    """One queue of the schedule: delivered up to `gone`, stored up to `next`."""

    master: str
    address: str
    queue_id: int
    gone: int
    next: int


@dataclass(frozen=True, slots=True)
class Times:
    """By each broker's clock, in milliseconds since 1970: the time of a look, and up to when all that was due is delivered."""

    now: Mapping[str, int]
    delivered: Mapping[str, int]

    def ahead(self, broker: str) -> timedelta:
        """How far its clock is before that of the broker that is behind all others, by which everything is told."""
        return timedelta(milliseconds=self.now[broker] - min(self.now.values()))

    @property
    def all_delivered(self) -> datetime:
        return min(
            as_datetime(time) - self.ahead(broker) for broker, time in self.delivered.items()
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """What several topics and groups share: asking a master about itself takes a tenth of a second where it has a timer."""

    begun: float
    """Our monotonic time before the first question."""
    now: Mapping[str, int]
    ends: Sequence[_Ends]
    left: int
    """How many scheduled messages were not read."""
    delivered: Mapping[str, int]
    """Up to when messages with a time of their own are delivered."""


class Schedule:
    """Looks for one adapter. Raises BrokerUnavailable. Threads share it and wait for each other: hold `lock` from `read` on."""

    def __init__(self, pool: Pool, clock: Clock, levels: Sequence[timedelta]) -> None:
        """`levels`: the brokers' delay levels."""
        self._pool, self._clock, self._levels = pool, clock, list(levels)
        self.lock = threading.RLock()
        self._masters: dict[str, _Master] = {}
        self._looks: dict[tuple[tuple[str, str], ...], _Look] = {}

    def read(self, masters: Mapping[str, str], doing: str, deadline: float) -> int:
        """Reads what is new, and returns how many it had to leave. What has gone where it goes counts no more.

        Everything that was stored before this began is seen: also what went from here into a topic is in its queue by now. The look
        is a new one, and `times` may share it.
        """
        with self.lock:
            look = self._look(masters, doing, deadline)
            self._looks[_key(masters)] = look
            return look.left

    def entries(self, masters: Mapping[str, str]) -> Iterator[Entry]:
        """Each message that `read` found waiting."""
        for master in masters:
            for level in self._masters[master].levels.values():
                yield from level.entries.values()

    def times(self, topic: str, masters: Mapping[str, str], doing: str, deadline: float) -> Times:
        """The time of each master, at most SHARED_SECONDS ago, of which everything that was stored before it can be seen in the
        queues from now on; and up to when all that was due in the topic has come there. A broker that was down, or is busy,
        delivers late."""
        key = _key(masters)
        with self.lock:
            look = self._looks.get(key)
            if look is None or time.monotonic() - look.begun > SHARED_SECONDS:
                look = self._looks[key] = self._look(masters, doing, deadline)
            delivered = dict(look.delivered)
            for one in look.ends:
                level = self._level(one)
                due = [entry.due for entry in level.entries.values() if entry.goes_to == topic]
                if level.read_to < one.next:
                    due.append(level.last_due)
                delivered[one.master] = min([delivered[one.master], *due])
        return Times(look.now, delivered)

    def _look(self, masters: Mapping[str, str], doing: str, deadline: float) -> _Look:
        begun = time.monotonic()
        now = self._clock.read(masters, deadline)
        runtimes, ends = self._ends(masters, doing, deadline)
        self._forget_delivered(ends)
        left = self._read(ends, doing, deadline)
        return _Look(
            begun,
            now,
            ends,
            left,
            {
                master: self._timed_until(address, runtimes[master], now[master], doing, deadline)
                for master, address in masters.items()
            },
        )

    def _timed_until(
        self, address: str, runtime: Runtime, now: int, doing: str, deadline: float
    ) -> int:
        """Up to when all messages with a time of their own have come to their topics."""
        if runtime.timer_behind > 1:  # in whole seconds: up to one is none
            now -= (runtime.timer_behind + 1) * 1000
        if runtime.timer_unread > 0:
            # Stored, and the timer has not looked when they are due.
            [stats] = self._ask_stats([address], TIMER, doing, deadline)
            for queue_id, _, following in (
                read_stats(stats, doing) if stats.code == ResponseCode.SUCCESS else ()
            ):
                asked = [
                    (address, pull(TIMER, queue_id, max(0, following - runtime.timer_unread), 1))
                ]
                [answer] = require_answers(self._pool, asked, deadline, doing, also=NOTHING_THERE)
                if answer.code == ResponseCode.SUCCESS:
                    now = min([now, *(_milliseconds(one) for one in _messages(answer, doing))])
        return now

    def _ends(
        self, masters: Mapping[str, str], doing: str, deadline: float
    ) -> tuple[dict[str, Runtime], list[_Ends]]:
        """The queues of the schedule on each master that has any. How far they are delivered is asked first, how far they are
        stored when all of it can be seen."""
        asked = [
            (address, Request(RequestCode.GET_ALL_DELAY_OFFSET)) for address in masters.values()
        ]
        offsets = require_answers(self._pool, asked, deadline, doing)
        runtimes = self._clock.settle(masters, deadline)
        found: list[_Ends] = []
        stats = self._ask_stats(list(masters.values()), SCHEDULE, doing, deadline)
        for (master, address), offsets_answer, stored in zip(
            masters.items(), offsets, stats, strict=True
        ):
            if (
                master not in self._masters
                or self._masters[master].booted != runtimes[master].booted
            ):
                self._masters[master] = _Master(runtimes[master].booted)
            if stored.code != ResponseCode.SUCCESS:
                continue
            try:
                delivered = {
                    int(level) - 1: int(offset)
                    for level, offset in offsets_answer.json()["offsetTable"].items()
                }
            except (Malformed, KeyError, TypeError, ValueError, AttributeError) as error:
                raise unavailable(
                    doing, f"delay offsets that cannot be read: {type(error).__name__}: {error}"
                ) from error
            for queue_id, first, following in read_stats(stored, doing):
                gone = delivered.get(queue_id, 0)
                found.append(
                    _Ends(
                        master,
                        address,
                        queue_id,
                        max(first, gone if gone <= following else 0),
                        following,
                    )
                )
        return runtimes, found

    def _ask_stats(
        self, addresses: Sequence[str], topic: str, doing: str, deadline: float
    ) -> list[Answer]:
        asked = [
            (address, Request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}))
            for address in addresses
        ]
        return require_answers(
            self._pool, asked, deadline, doing, also=(ResponseCode.TOPIC_NOT_EXIST,)
        )

    def _forget_delivered(self, ends: Sequence[_Ends]) -> None:
        for one in ends:
            level = self._level(one)
            if one.next < level.read_to:  # not the queue that was read
                level.entries, level.read_to, level.last_due = {}, 0, 0
            level.read_to = max(level.read_to, one.gone)
            level.entries = {
                offset: entry for offset, entry in level.entries.items() if offset >= one.gone
            }

    def _read(self, ends: Sequence[_Ends], doing: str, deadline: float) -> int:
        """Some pages of every level at once; returns how many it had to leave."""
        room = SCANNED
        while room > 0:
            wanted = [one for one in ends if self._level(one).read_to < one.next]
            if not wanted:
                return 0
            asked = [
                (one.address, pull(SCHEDULE, one.queue_id, self._level(one).read_to, _PULL))
                for one in wanted
            ]
            answers = require_answers(self._pool, asked, deadline, doing, also=NOTHING_THERE)
            for one, answer in zip(wanted, answers, strict=True):
                level = self._level(one)
                if answer.code != ResponseCode.SUCCESS:
                    # Removed, or not to be seen yet: what comes next, or the same again while there is room.
                    level.read_to = max(
                        level.read_to, min(number(answer, "nextBeginOffset", doing), one.next)
                    )
                    room -= 1
                    continue
                messages = _messages(answer, doing)
                for message in messages:
                    level.last_due = self._due(one.queue_id, message)
                    level.entries[message.offset] = Entry(
                        message.properties.get(_TOPIC_AFTERWARDS, ""),
                        level.last_due,
                        id_in(own_headers(message.properties)),
                        message.cut_off,
                    )
                    level.read_to = max(level.read_to, message.offset + 1)
                room -= max(1, len(messages))
        return sum(
            one.next - self._level(one).read_to
            for one in ends
            if self._level(one).read_to < one.next
        )

    def _due(self, queue_id: int, message: Stored) -> int:
        """When it was stored, where the settings do not know the level."""
        delay = self._levels[queue_id] if queue_id < len(self._levels) else timedelta(0)
        return _milliseconds(message) + delay // timedelta(milliseconds=1)

    def _level(self, ends: _Ends) -> _Level:
        return self._masters[ends.master].levels.setdefault(ends.queue_id, _Level())


def _key(masters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(masters.items()))


def _messages(answer: Answer, doing: str) -> list[Stored]:
    try:
        return read_stored(answer.body)
    except Malformed as error:
        raise unavailable(doing, f"a scheduled message that cannot be read: {error}") from error


def _milliseconds(message: Stored) -> int:
    return round(message.stored_at.timestamp() * 1000)
