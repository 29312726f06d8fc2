"""Tells a master's time, and from when on everything that was stored before it can be seen in the queues.

No request asks for the time. A look at the delay of a group that never committed anything reckons from the time "one millisecond
before 1970", which makes the delay the time; the broker's runtime information, in whole seconds, must agree with it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable

TOPIC = "SELF_TEST_TOPIC"
"""Every broker makes it, and nobody sends to it."""
GROUP = "BACKSTOP_CLOCK"
"""Never commits anything; nobody needs to create it."""
PROVED_SECONDS = 60.0
"""How long a time that the runtime information agreed with is believed to go on by itself."""
START = datetime(1970, 1, 1, tzinfo=UTC)
_RUNTIME = re.compile(r"\[ ([\d,.\s]+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_BYTES = re.compile(r"([\d.]+) ([KMGTPE]?)i?B")
_POWERS = " KMGTPE"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a broker tells of itself: since when it runs, its time in whole seconds, and how far its queues are behind its log."""

    booted: int
    second: int
    """Its time, rounded down to a whole second since it booted; milliseconds since 1970, as all times here."""
    log_end: int
    """Bytes ever stored."""
    behind: int
    """Bytes that are stored and not in the queues yet."""
    unflushed: int
    """Bytes that are not on disk yet, at most."""
    timer_behind: int
    """How late messages with a time of their own are delivered, in whole seconds."""
    timer_unread: int
    """Such messages of which it does not know yet when they are due."""


class Clock:
    """Reads the time of masters. Safe to share between threads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._flushes: dict[str, tuple[int, bool]] = {}
        """address -> (since when it runs, whether it shows only what is on disk)"""
        self._proved: dict[str, tuple[int, float]] = {}
        """address -> (its time when the runtime information agreed with it, our monotonic time then)"""

    def read(self, masters: Mapping[str, str], deadline: float) -> dict[str, int]:
        """broker name -> its time in milliseconds, never ahead of its clock. Raises BrokerUnavailable."""
        doing = "reading its clock"
        span = Request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP})
        found: dict[str, int] = {}
        asked = [(address, span) for address in masters.values()]
        for (name, address), answer in zip(
            masters.items(),
            require_answers(
                self._pool,
                asked,
                deadline,
                doing,
                also=(ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION),
            ),
            strict=True,
        ):
            millis = self._as_proved(address, answer, doing)
            if millis is not None:
                found[name] = millis
        rest = {name: address for name, address in masters.items() if name not in found}
        return {**found, **self._prove(rest, deadline, doing)} if rest else found

    def _as_proved(self, address: str, answer: Answer, doing: str) -> int | None:
        """What the answer tells, where it goes on from a time that was proved; asking for the proof costs a broker with a timer
        a tenth of a second."""
        with self._lock:
            proved, at = self._proved.get(address, (0, float("-inf")))
        now = time.monotonic()
        if answer.code != ResponseCode.SUCCESS or now - at > PROVED_SECONDS:
            return None
        millis = _read_millis(answer, doing)
        return millis if abs(millis - proved - (now - at) * 1000) < 1000 else None

    def _prove(self, masters: Mapping[str, str], deadline: float, doing: str) -> dict[str, int]:
        begun = time.monotonic()
        both = (
            Request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP}),
            Request(RequestCode.GET_BROKER_RUNTIME_INFO),
        )
        requests = [(address, request) for address in masters.values() for request in both]
        answers = require_answers(
            self._pool,
            requests,
            deadline,
            doing,
            also=(ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION),
        )
        took = round((time.monotonic() - begun) * 1000) + 1
        found: dict[str, int] = {}
        for place, (name, address) in enumerate(masters.items()):
            seen = _runtime(answers[2 * place + 1], doing)
            found[name] = _time(answers[2 * place], seen, took, doing)
            if found[name] != seen.second:
                with self._lock:
                    self._proved[address] = (found[name], begun)
        return found

    def settle(self, masters: Mapping[str, str], deadline: float) -> dict[str, Runtime]:
        """Waits until everything that was stored before this can be seen in the queues; returns what each master told of itself.

        A message is stored in the log first and comes into its queue a moment later: what is in the log when a time has been
        read must have come into the queues before their ends are asked for.
        """
        ends: dict[str, int] = {}
        runtimes: dict[str, Runtime] = {}
        waits, pause = dict(masters), 0.001
        while waits:
            doing = "looking whether its queues hold all that it stored"
            requests = [
                (address, Request(RequestCode.GET_BROKER_RUNTIME_INFO))
                for address in waits.values()
            ]
            answers = require_answers(self._pool, requests, deadline, doing)
            for name, answer in zip(list(waits), answers, strict=True):
                seen = runtimes[name] = _runtime(answer, doing)
                end = ends.setdefault(name, seen.log_end)
                hidden = seen.unflushed if self._shows_flushed(waits[name], seen, deadline) else 0
                if seen.log_end - seen.behind - hidden >= end or seen.log_end < end:
                    del waits[name]
            if waits and time.monotonic() >= deadline:
                raise unavailable(doing, f"{', '.join(waits)} did not catch up in time")
            if waits:
                time.sleep(
                    pause
                )  # it tells nobody when it has caught up: it is asked, ever more seldom
                pause = min(2 * pause, 0.1)
        return runtimes

    def _shows_flushed(self, address: str, seen: Runtime, deadline: float) -> bool:
        """Whether only what is on disk comes into the queues; asked once in a broker's life."""
        with self._lock:
            booted, flushed = self._flushes.get(address, (None, False))
        if booted == seen.booted:
            return flushed
        doing = "reading how it flushes"
        [answer] = require_answers(
            self._pool, [(address, Request(RequestCode.GET_BROKER_CONFIG))], deadline, doing
        )
        flushed = b"flushDiskType=SYNC_FLUSH" in answer.body.split()
        with self._lock:
            self._flushes[address] = (seen.booted, flushed)
        return flushed


def as_datetime(millis: int) -> datetime:
    return START + timedelta(milliseconds=millis)


def _time(answer: Answer, seen: Runtime, took: int, doing: str) -> int:
    """The time that the answer tells, where the runtime agrees; else the whole second."""
    if answer.code != ResponseCode.SUCCESS:
        return seen.second
    millis = _read_millis(answer, doing)
    # Both were asked for within `took`, in an order that nobody knows.
    return millis if seen.second - took <= millis < seen.second + 1000 + took else seen.second


def _read_millis(answer: Answer, doing: str) -> int:
    try:
        return int(answer.json()["consumeTimeSpanSet"][0]["delayTime"]) - 1
    except (Malformed, KeyError, IndexError, TypeError, ValueError) as error:
        raise unavailable(
            doing, f"an answer that cannot be read: {type(error).__name__}: {error}"
        ) from error


def _runtime(answer: Answer, doing: str) -> Runtime:
    try:
        table = answer.json()["table"]
        found = _RUNTIME.fullmatch(table["runtime"])
        if found is None:
            raise Malformed(f"a runtime of {table['runtime'][:60]!r}")
        days, hours, minutes, seconds = (int(re.sub(r"\D", "", part)) for part in found.groups())
        booted = int(table["bootTimestamp"])
        return Runtime(
            booted,
            booted + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000,
            int(table["commitLogMaxOffset"]),
            max(0, int(table["dispatchBehindBytes"])),
            _bytes(table["remainHowManyDataToFlush"]),
            int(table.get("timerReadBehind", 0)),
            max(0, int(table.get("timerOffsetBehind", 0))),
        )
    except (Malformed, KeyError, TypeError, ValueError) as error:
        raise unavailable(
            doing, f"an answer that cannot be read: {type(error).__name__}: {error}"
        ) from error


def _bytes(text: str) -> int:
    """At most so many bytes: the broker rounds to a tenth of a unit."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise Malformed(f"a number of bytes of {text[:40]!r}")
    power = _POWERS.index(found[2] or " ")
    return (
        int((float(found[1]) + (0.05 if power else 0)) * 1024**power) + 1
        if power
        else int(float(found[1]))
    )
