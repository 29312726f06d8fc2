"""The short way of reading an entry of a dead-letter stream says the same as the long one, or leaves it to it."""

from __future__ import annotations

import random

import pytest

from backstop.brokers.redis_streams.read_dead_letter import (
    _pick,
    _read_any,
    _read_regular,
    read_dead_letters,
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


OPTIONAL = {b"tag": b"eu", b"key": "“k” 1".encode()}


@pytest.mark.parametrize("names", [(), (b"tag",), (b"key",), (b"key", b"tag")])
def test_a_regular_entry_goes_the_short_way(names: tuple[bytes, ...]) -> None:
    fields = REGULAR | {name: OPTIONAL[name] for name in names}
    pick = _pick(list(fields))
    assert pick is not None
    letter = _read_regular("q", "topic", "group", "1-0", pick([*fields.values(), None]))
    assert (letter.message_id, letter.group, letter.invalid) == ("m-1", "billing", None)
    assert letter.tag == ("eu" if b"tag" in names else None)
    assert letter.partition_key == ("“k” 1" if b"key" in names else None)


def test_an_entry_with_a_field_too_many_or_too_few_goes_the_long_way() -> None:
    assert _pick([*REGULAR, b"other"]) is None
    assert _pick([*REGULAR, b"died"]) is None
    assert _pick([*REGULAR, b"tag", b"tag"]) is None
    assert _pick(list(REGULAR)[1:]) is None
    assert _pick([]) is None


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_read_the_same(seed: int) -> None:
    random_ = random.Random(seed)
    entries, expected = [], []
    for number in range(100):
        fields = REGULAR | {name: OPTIONAL[name] for name in OPTIONAL if random_.random() < 0.3}
        names = list(fields)
        if random_.random() < 0.5:  # else as the entry before it, mostly
            random_.shuffle(names)
        values = [fields[name] for name in names]
        for _ in range(random_.choice((0, 1, 1, 2))):
            values[random_.randrange(len(values))] = random_.choice(ODD)
        entry_id = f"{1763746001000 + number}-0"
        entries.append(
            (
                entry_id.encode(),
                [text for pair in zip(names, values, strict=True) for text in pair],
            )
        )
        expected.append(_read_any("q", "topic", "group", entry_id, names, values))
    assert read_dead_letters("q", "topic", "group", entries) == expected
