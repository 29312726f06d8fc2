"""The short way of reading an entry of a dead-letter stream says the same as the long one, or leaves it to it."""

from __future__ import annotations

import random

import pytest

from backstop.brokers.redis_streams.read_dead_letter import (
    _REGULAR,
    Shape,
    _read_any,
    read_dead_letter,
)

REGULAR = {
    b"time": b"1763746000000000",
    b"epoch": b"e1",
    b"headers": b'{"backstop-message-id": "m-1", "x": "\xc3\xbc"}',
    b"content": b"\x00\xff",
    b"origin-group": b"billing",
    b"origin-topic": b"orders",
    b"origin-queue": b"3",
    b"origin-offset": b"17",
    b"origin-epoch": b"e1",
    b"deliveries": b"16",
    b"cause": b"handler failed",
    b"error": "ValueError: “x”".encode(),
    b"died": b"1763746001000000",
}
ODD = [
    b"",
    b"\xff",
    b"\x00",
    b"x",
    b"0",
    b"-1",
    b"+1",
    b" 1",
    b"1_0",
    b"9" * 10,
    b"9" * 19,
    b"9" * 30,
    "٣".encode(),
    b"{}",
    b"[]",
    b'{"backstop-message-id": ""}',
    b'{"backstop-message-id": 7}',
    b'{"backstop-message-id": "a"} ',
    b' {"backstop-message-id": "a"}',
    b'{"backstop-message-id": "a", "n": null}',
    b"[" * 100_000,
    b'{"backstop-message-id": "\\ud800"}',
    b"null",
    b'"text"',
    b"e2",
]


def test_a_regular_entry_goes_the_short_way() -> None:
    assert sorted(REGULAR) == sorted(_REGULAR)
    assert Shape.of(tuple(REGULAR)).pick is not None
    assert Shape.of((*REGULAR, b"tag")).pick is None
    assert Shape.of((*REGULAR, b"died")).pick is None


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_read_the_same(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(100):
        names = list(REGULAR)
        random_.shuffle(names)
        values = [REGULAR[name] for name in names]
        for _ in range(random_.choice((0, 1, 1, 2))):
            values[random_.randrange(len(values))] = random_.choice(ODD)
        short = read_dead_letter(
            "q", "topic", "group", "1763746001000-0", Shape.of(tuple(names)), values
        )
        assert short == _read_any("q", "topic", "group", "1763746001000-0", names, values)
