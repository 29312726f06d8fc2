"""The time of a RocketMQ broker, and when its queues hold all that it stored: what a real one shows for a moment only."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backstop.brokers.rocketmq.inspect.clock import Clock
from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.codes import RequestCode
from backstop.brokers.rocketmq.wire.frames import ANSWER, Request, encode
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.model.errors import BrokerUnavailable
from unit.test_rocketmq_session import Peer

BOOTED = 1_900_000_000_000
UPTIME = "[ 1,234 days, 5 hours, 6 minutes, 7 seconds ]"
SECOND = BOOTED + (((1234 * 24 + 5) * 60 + 6) * 60 + 7) * 1000
Runtime = dict[str, Any]


def runtime(end: int = 1000, behind: int = 0, unflushed: str = "0 B", **more: Any) -> Runtime:
    return {
        "bootTimestamp": str(BOOTED),
        "runtime": UPTIME,
        "commitLogMaxOffset": str(end),
        "dispatchBehindBytes": str(behind),
        "remainHowManyDataToFlush": unflushed,
        **more,
    }


class Broker:
    """Says what it is told to: the time, and one runtime after the other (the last one again and again)."""

    def __init__(
        self, told: int | None, *runtimes: Runtime, flush: str = "ASYNC_FLUSH", code: int = 0
    ) -> None:
        self.told, self.runtimes, self.flush, self.code = told, list(runtimes), flush, code
        self.asked = 0

    def __call__(self, peer: Peer, connection: socket.socket) -> None:
        for command in peer.requests(connection):
            code, body = 0, b""
            if command.code == RequestCode.QUERY_CONSUME_TIME_SPAN:
                code, body = (
                    self.code,
                    json.dumps(
                        {"consumeTimeSpanSet": [{"delayTime": (self.told or 0) + 1}]}
                    ).encode(),
                )
            elif command.code == RequestCode.GET_BROKER_CONFIG:
                body = f"a=b\nflushDiskType={self.flush}\nc=d\n".encode()
            else:
                body = json.dumps(
                    {"table": self.runtimes[min(self.asked, len(self.runtimes) - 1)]}
                ).encode()
                self.asked += 1
            connection.sendall(encode(Request(code, {}, body), command.opaque, flag=ANSWER))


@pytest.fixture
def clock_of() -> Iterator[Callable[[Broker], tuple[Clock, dict[str, str]]]]:
    peers, pools = [], []

    def start(broker: Broker) -> tuple[Clock, dict[str, str]]:
        peers.append(Peer(broker))
        pools.append(Pool(Address.parse(f"rocketmq://{peers[-1].to}"), connect_timeout=10.0))
        return Clock(pools[-1]), {"a": peers[-1].to}

    yield start
    for one in (*pools, *peers):
        one.close()


ClockOf = Callable[[Broker], tuple[Clock, dict[str, str]]]
DAY = 86_400_000


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (SECOND + 1, SECOND + 1),
        (SECOND + 999, SECOND + 999),
        (SECOND + DAY, SECOND),
        (SECOND - DAY, SECOND),
        (0, SECOND),
    ],
    ids=[
        "a moment later",
        "in the same second",
        "ahead of what it says of itself",
        "far behind it",
        "a server that does so no more",
    ],
)
def test_the_time_is_told_to_the_millisecond_where_the_runtime_agrees(
    clock_of: ClockOf, told: int, expected: int
) -> None:
    clock, masters = clock_of(Broker(told, runtime()))
    assert clock.read(masters, time.monotonic() + 10) == {"a": expected}


@pytest.mark.parametrize("code", [16, 17])
def test_without_the_right_to_ask_the_time_is_known_to_the_second(
    clock_of: ClockOf, code: int
) -> None:
    clock, masters = clock_of(Broker(SECOND + 500, runtime(), code=code))
    assert clock.read(masters, time.monotonic() + 10) == {"a": SECOND}


@pytest.mark.parametrize(
    "broken",
    [
        {"runtime": "two days"},
        {"bootTimestamp": "soon"},
        {"remainHowManyDataToFlush": "much"},
        {"commitLogMaxOffset": None},
    ],
)
def test_what_cannot_be_read_is_not_guessed(clock_of: ClockOf, broken: Runtime) -> None:
    clock, masters = clock_of(Broker(SECOND, runtime(**broken)))
    with pytest.raises(BrokerUnavailable, match="cannot be read"):
        clock.read(masters, time.monotonic() + 10)


@pytest.mark.parametrize(
    ("runtimes", "flush", "asked"),
    [
        ([runtime()], "ASYNC_FLUSH", 1),
        ([runtime(1000, 400), runtime(1500, 501), runtime(1600, 600)], "ASYNC_FLUSH", 3),
        (
            [runtime(1000, 0, "300 B"), runtime(1500, 0, "501 B"), runtime(1600, 0, "600 B")],
            "SYNC_FLUSH",
            3,
        ),
        ([runtime(1000, 0, "300 B")], "ASYNC_FLUSH", 1),
        (
            [
                runtime(9000, 0, "1.0 KiB"),
                runtime(10_074, 0, "1.0 KiB"),
                runtime(10_076, 0, "1.0 KiB"),
            ],
            "SYNC_FLUSH",
            3,
        ),
        ([runtime(1000, 400), runtime(500, 100)], "ASYNC_FLUSH", 2),
    ],
    ids=[
        "nothing is behind",
        "until the end that it had is in the queues",
        "until that is on disk, where only then it is shown",
        "not yet on disk, and shown all the same",
        "a number of bytes that was rounded down",
        "a log that was cut: another life",
    ],
)
def test_a_time_counts_only_once_the_queues_hold_what_was_stored_before_it(
    clock_of: ClockOf, runtimes: list[Runtime], flush: str, asked: int
) -> None:
    broker = Broker(SECOND + 1, runtime(), *runtimes, flush=flush)
    clock, masters = clock_of(broker)
    assert clock.read(masters, time.monotonic() + 10) == {"a": SECOND + 1}
    clock.settle(masters, time.monotonic() + 10)
    assert broker.asked == 1 + asked


def test_a_broker_whose_queues_stay_behind_is_unavailable(clock_of: ClockOf) -> None:
    clock, masters = clock_of(Broker(SECOND, runtime(1000, 1)))
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        clock.settle(masters, time.monotonic() + 0.5)
    assert 0.4 < time.monotonic() - begun < 20
