"""Counts what waits for a group outside the topic: in its retry topics, and scheduled on the way there.

A message that failed goes round: scheduled, in the retry topic, in a consumer's hands, scheduled again. So what is scheduled is
looked at before the retry topics and after them, and whatever was scheduled at any moment of the look counts: at worst one
message counts twice, and none that goes round is missed. What could not be read counts as waiting.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backstop.brokers.rocketmq.clock import Clock
from backstop.brokers.rocketmq.codes import Ask, Said
from backstop.brokers.rocketmq.frames import Malformed, Request
from backstop.brokers.rocketmq.look import NOTHING_THERE, Looker, number, pull, read_stats
from backstop.brokers.rocketmq.names import encode_group, pop_retry_topics, retry_topic
from backstop.brokers.rocketmq.pool import Pool
from backstop.brokers.rocketmq.require_answers import require_answers
from backstop.brokers.rocketmq.stored import read_stored
from backstop.brokers.rocketmq.unavailable import unavailable
from backstop.errors import ContractBroken

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
"""A queue for each delay level: what comes again later lies here, also what failed. (Messages with a time of their own lie in
the timer's topic; no retry does.)"""
SCANNED = 20_000
"""Scheduled messages that one look reads at most; the rest counts as waiting for everybody."""
_PULL = 32
"""The broker gives no more at once."""
_TOPIC_AFTERWARDS = "REAL_TOPIC"


@dataclass(slots=True)
class _Level:
    """What is scheduled in one level of one master, as far as it was read."""

    entries: dict[int, str] = field(default_factory=dict)
    """offset -> the topic that it goes to; only what had not gone there."""
    read_to: int = 0


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


class Retries:
    """Counts for one adapter. Keeps what it read of the schedule, so that a look reads only what is new. Safe to share between
    threads; they wait for each other."""

    def __init__(self, pool: Pool, looker: Looker, *, seconds: float) -> None:
        self._pool, self._looker, self._seconds = pool, looker, seconds
        self._clock = Clock(pool)
        self._lock = threading.Lock()
        self._masters: dict[str, _Master] = {}

    def pending(self, topic: str, group: str) -> int:
        """Messages that wait for the group, at most. BrokerUnavailable when a master does not answer."""
        doing = f"looking for the retries of the group {group!r} of {topic!r}"
        deadline = time.monotonic() + self._seconds
        _, masters, _ = self._looker.find(topic, doing, deadline)
        try:
            name, retry = encode_group(group), retry_topic(group)
            topics = (retry, *pop_retry_topics(group, topic))
        except ContractBroken as error:
            raise unavailable(doing, error.what) from error
        with self._lock:
            before = self._schedule(masters, doing, deadline)
            self._forget_delivered(before)
            left = self._read(before, doing, deadline)
            waiting = sum(self._depth(name, one, masters, doing, deadline) for one in topics)
            if not left:
                left = self._read(self._schedule(masters, doing, deadline), doing, deadline)
            scheduled = Counter(
                goes_to for master in masters for level in self._masters[master].levels.values()
                for goes_to in level.entries.values()
            )  # fmt: skip
        return waiting + left + sum(scheduled[one] for one in topics)

    def _depth(self, group: str, topic: str, masters: Mapping[str, str], doing: str, deadline: float) -> int:
        """What is in the group's retry topic and not committed, on all masters that have it."""
        asked = [(address, Request(Ask.GET_TOPIC_STATS_INFO, {"topic": topic})) for address in masters.values()]
        answers = require_answers(self._pool, asked, deadline, doing, also=(Said.TOPIC_NOT_EXIST,))
        there = [
            (broker, address, queue_id, first, following)
            for (broker, address), answer in zip(masters.items(), answers, strict=True) if answer.code == Said.SUCCESS
            for queue_id, first, following in read_stats(answer, doing) if following > first
        ]  # fmt: skip
        committed = self._looker.committed(group, topic, [(b, a, q) for b, a, q, _, _ in there], doing, deadline)
        # A commit beyond the end is of another life of the topic.
        depth = 0
        for broker, _, queue_id, first, following in there:
            at = committed.get((broker, queue_id), first)
            depth += following - (first if at > following else max(at, first))
        return depth

    def _schedule(self, masters: Mapping[str, str], doing: str, deadline: float) -> list[_Ends]:
        """The queues of the schedule on each master that has any."""
        requests = [
            (address, request) for address in masters.values()
            for request in (Request(Ask.GET_ALL_DELAY_OFFSET), Request(Ask.GET_TOPIC_STATS_INFO, {"topic": SCHEDULE}))
        ]  # fmt: skip
        answers = require_answers(self._pool, requests, deadline, doing, also=(Said.TOPIC_NOT_EXIST,))
        lives = self._clock.lives(masters, deadline)
        found: list[_Ends] = []
        for place, (master, address) in enumerate(masters.items()):
            if master not in self._masters or self._masters[master].booted != lives[master]:
                self._masters[master] = _Master(lives[master])
            offsets, stats = answers[2 * place : 2 * place + 2]
            if stats.code != Said.SUCCESS:
                continue
            try:
                delivered = {int(level) - 1: int(offset) for level, offset in offsets.json()["offsetTable"].items()}
            except (Malformed, KeyError, TypeError, ValueError, AttributeError) as error:
                raise unavailable(doing, f"delay offsets that cannot be read: {type(error).__name__}: {error}") from error
            for queue_id, first, following in read_stats(stats, doing):
                gone = delivered.get(queue_id, 0)
                found.append(_Ends(master, address, queue_id, max(first, gone if gone <= following else 0), following))
        return found

    def _forget_delivered(self, ends: Sequence[_Ends]) -> None:
        for one in ends:
            level = self._level(one)
            if one.next < level.read_to:  # not the queue that was read
                level.entries, level.read_to = {}, 0
            level.read_to = max(level.read_to, one.gone)
            level.entries = {offset: to for offset, to in level.entries.items() if offset >= one.gone}

    def _read(self, ends: Sequence[_Ends], doing: str, deadline: float) -> int:
        """Reads what is new, some pages of every level at once; returns how many it had to leave."""
        room = SCANNED
        while room > 0:
            wanted = [one for one in ends if self._level(one).read_to < one.next]
            if not wanted:
                return 0
            asked = [(one.address, pull(SCHEDULE, one.queue_id, self._level(one).read_to, _PULL)) for one in wanted]
            answers = require_answers(self._pool, asked, deadline, doing, also=NOTHING_THERE)
            for one, answer in zip(wanted, answers, strict=True):
                level = self._level(one)
                if answer.code != Said.SUCCESS:
                    # Removed, or not to be seen yet: what comes next, or the same again while there is room.
                    level.read_to = max(level.read_to, min(number(answer, "nextBeginOffset", doing), one.next))
                    room -= 1
                    continue
                try:
                    messages = read_stored(answer.body)
                except Malformed as error:
                    raise unavailable(doing, f"a scheduled message that cannot be read: {error}") from error
                for message in messages:
                    level.entries[message.offset] = message.properties.get(_TOPIC_AFTERWARDS, "")
                    level.read_to = max(level.read_to, message.offset + 1)
                room -= max(1, len(messages))
        return sum(one.next - self._level(one).read_to for one in ends if self._level(one).read_to < one.next)

    def _level(self, ends: _Ends) -> _Level:
        return self._masters[ends.master].levels.setdefault(ends.queue_id, _Level())
