"""Hands out dead letters whole, a bounded page at a time, and removes those that are stored elsewhere.

A dead-letter queue is one stream, named by its key. See read_dead_letter.py for what becomes of an entry that is no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from struct import Struct
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from backstop.brokers.protocol import LETTER_PAGE_BYTES, DeadLetter
from backstop.brokers.redis_streams.exchange import Exchange, Script, unavailable
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.read_dead_letter import Shape, read_dead_letter
from backstop.model.errors import ConfigurationError

READ_DEAD_WHOLE = Script.load("read_dead_whole")
REMOVED_AT_ONCE = 1000


class Drain:
    """Finds the dead-letter queues of one adapter, and opens readers of them."""

    def __init__(self, exchange: Exchange, keys: Keys) -> None:
        self._exchange, self._keys = exchange, keys
        self._name = re.compile(re.escape(keys.prefix) + r":\{([^{}:]+)\}:dead:([^{}:]+)")

    def queues(self, groups: Sequence[str]) -> list[str]:
        """Every stream that may hold letters of these groups, of all topics that they ever took."""
        names = sorted(set(groups))
        doing = "looking for dead-letter queues"
        if not names:
            return []
        answers = self._exchange.ask(
            [("SMEMBERS", self._keys.group(group)) for group in names], doing
        )
        try:
            topics = [sorted(topic.decode() for topic in answer) for answer in answers]
        except UnicodeDecodeError as error:
            raise unavailable(
                doing, "a group's set of topics holds a name that is not UTF-8"
            ) from error
        return [
            self._keys.dead(topic, group)
            for group, its in zip(names, topics, strict=True)
            for topic in its
        ]

    def open(self, queue: str) -> RedisDeadLetters:
        """Raises ConfigurationError for a name that is no dead-letter queue of this adapter."""
        found = self._name.fullmatch(queue)
        if found is None:
            raise ConfigurationError(
                f"{queue!r} is not a dead-letter queue of this Redis Streams broker.",
                unaffected="Nothing was read or removed.",
                next_step="Use a name that its list of dead-letter queues gives.",
            )
        return RedisDeadLetters(self._exchange, queue, unquote(found[1]), unquote(found[2]))


class RedisDeadLetters:
    """One reader: from the first entry to the one that was the last when it was opened, so that it ends while others
    fill the queue."""

    def __init__(self, exchange: Exchange, queue: str, topic: str, group: str) -> None:
        self._exchange, self._queue, self._topic, self._group = exchange, queue, topic, group
        [last] = exchange.ask([("XREVRANGE", queue, "+", "-", "COUNT", 1)], f"opening {queue}")
        self._end: bytes | None = last[0][0] if last else None
        self._from = "-"

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
        self._end = None

    def read(self, limit: int) -> list[DeadLetter]:
        """Fewer than `limit` where they are large, none at the end."""
        if self._end is None:
            return []
        command = READ_DEAD_WHOLE.call(
            (self._queue,), self._from, self._end, limit, LETTER_PAGE_BYTES
        )
        [packed] = self._exchange.ask([command], f"reading {self._queue}")
        letters = [
            read_dead_letter(self._queue, self._topic, self._group, *entry)
            for entry in _entries(packed)
        ]
        if letters:
            self._from = f"({letters[-1].broker_id}"
        return letters

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        ids = [letter.broker_id for letter in letters]
        commands = [
            ("XDEL", self._queue, *ids[at : at + REMOVED_AT_ONCE])
            for at in range(0, len(ids), REMOVED_AT_ONCE)
        ]
        if commands:
            self._exchange.ask(commands, f"removing what is stored from {self._queue}")


@cache
def _numbers(count: int) -> Struct:
    return Struct(f">{count}I")


def _entries(packed: bytes) -> Iterator[tuple[str, Shape, list[bytes]]]:
    """Id, shape and values of each entry of a page, as lua/read_dead_whole.lua packs it."""
    at, end = 0, len(packed)
    shape = Shape()
    one, header = _numbers(1), _numbers(2)
    while at < end:
        if packed[at + 3] == 0:
            at += 4
            [count] = one.unpack_from(packed, at)
            at += 4
            found = []
            for _ in range(count):
                [length] = one.unpack_from(packed, at)
                found.append(packed[at + 4 : at + 4 + length])
                at += 4 + length
            shape, header = Shape.of(tuple(found)), _numbers(count + 2)
            continue
        _, id_length, *lengths = header.unpack_from(packed, at)
        at += header.size
        entry_id = packed[at : at + id_length].decode()
        at += id_length
        values = []
        for length in lengths:
            values.append(packed[at : at + length])
            at += length
        yield entry_id, shape, values
