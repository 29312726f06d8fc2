"""Hands out dead letters whole, a bounded page at a time, and removes those that are stored elsewhere.

A dead-letter queue is one stream, named by its key. Whatever an entry holds is kept: what cannot be read as the part of a
message that it should be stays in `properties` (bytes that are no text with backslashes), and `invalid` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from backstop.brokers.protocol import DeadLetter
from backstop.brokers.redis_streams.exchange import Exchange, Script, unavailable
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.look import instant_of
from backstop.errors import ConfigurationError
from backstop.records import ID_HEADER, Position

READ_DEAD_WHOLE = Script.load("read_dead_whole")
PAGE_BYTES = 8 * 1024 * 1024
"""Of one page; a single larger letter comes alone."""
REMOVED_AT_ONCE = 1000

_KNOWN = (
    "headers", "content", "tag", "key", "origin-group", "origin-topic", "origin-queue", "origin-offset", "origin-epoch",
    "deliveries", "cause", "error", "died", "time", "epoch",
)  # fmt: skip
_LENGTHS = Struct(f">{len(_KNOWN) + 2}I")
_ONE = Struct(">I")
_NONE = 0xFFFFFFFF
_MAX_MICROS = (datetime(9999, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


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
        answers = self._exchange.ask([("SMEMBERS", self._keys.group(group)) for group in names], doing)
        try:
            topics = [sorted(topic.decode() for topic in answer) for answer in answers]
        except UnicodeDecodeError as error:
            raise unavailable(doing, "a group's set of topics holds a name that is not UTF-8") from error
        return [self._keys.dead(topic, group) for group, its in zip(names, topics, strict=True) for topic in its]

    def open(self, queue: str) -> RedisDeadLetters:
        """Raises ConfigurationError for a name that is no dead-letter queue of this adapter."""
        found = self._name.fullmatch(queue)
        if found is None:
            raise ConfigurationError(
                f"{queue!r} is not a dead-letter queue of this Redis Streams broker.",
                kept="Nothing was read or removed.",
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
        self._from: bytes = b"-"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._end = None

    def read(self, limit: int) -> list[DeadLetter]:
        """Fewer than `limit` where they are large, none at the end."""
        if self._end is None:
            return []
        command = READ_DEAD_WHOLE.call((self._queue,), self._from, self._end, limit, PAGE_BYTES)
        [packed] = self._exchange.ask([command], f"reading {self._queue}")
        letters: list[DeadLetter] = []
        at = 0
        while at < len(packed):
            entry_id, found, others, at = _unpack(packed, at)
            letters.append(_letter(self._queue, self._topic, self._group, entry_id, found, others))
        if letters:
            self._from = b"(" + letters[-1].broker_id.encode()
        return letters

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        ids = [letter.broker_id for letter in letters]
        commands = [
            ("XDEL", self._queue, *ids[at : at + REMOVED_AT_ONCE]) for at in range(0, len(ids), REMOVED_AT_ONCE)
        ]
        if commands:
            self._exchange.ask(commands, f"removing what is stored from {self._queue}")


Fields = dict[str, bytes]


def _unpack(packed: bytes, at: int) -> tuple[str, Fields, list[tuple[bytes, bytes]], int]:
    """One entry of a page: its id, its known fields, the others, and where the next one begins."""
    id_length, *lengths, others = _LENGTHS.unpack_from(packed, at)
    at += _LENGTHS.size
    entry_id = packed[at : at + id_length].decode()
    at += id_length
    found: Fields = {}
    for name, length in zip(_KNOWN, lengths, strict=True):
        if length != _NONE:
            found[name] = packed[at : at + length]
            at += length
    rest: list[tuple[bytes, bytes]] = []
    for _ in range(others):
        other, at = _next(packed, at)
        value, at = _next(packed, at)
        rest.append((other, value))
    return entry_id, found, rest, at


def _next(packed: bytes, at: int) -> tuple[bytes, int]:
    [length] = _ONE.unpack_from(packed, at)
    start = at + _ONE.size
    return packed[start : start + length], start + length


def _letter(
    queue: str, topic: str, group: str, entry_id: str, found: Fields, others: Sequence[tuple[bytes, bytes]]
) -> DeadLetter:
    wrong: list[str] = []
    properties: dict[str, str] = {}

    def text(name: str) -> str | None:
        value = found.get(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            wrong.append(f"its {name} is not UTF-8")
            properties[name] = shown(value)
            return None

    def number(name: str, highest: int) -> int | None:
        value = found.get(name)
        if value is None:
            return None
        if value.isdigit() and len(value) <= 19 and int(value) <= highest:
            return int(value)
        wrong.append(f"its {name} is not a number that can be")
        properties[name] = shown(value)
        return None

    queue_id, offset = number("origin-queue", 2**31 - 1), number("origin-offset", 2**63 - 1)
    epoch = text("origin-epoch")
    position = None
    if queue_id is not None and offset is not None and epoch:
        position = Position(queue_id, offset, epoch)
    else:
        places = [name for name in ("origin-queue", "origin-offset", "origin-epoch") if name in found]
        properties.update({name: shown(found[name]) for name in places})
    died = number("died", _MAX_MICROS)
    if died is None:
        # The server gave the id at the moment when it stored the entry, unless somebody wrote one by hand.
        died = int(entry_id.partition("-")[0]) * 1000
    headers = found.get("headers")
    message_id = None
    if headers is None:
        wrong.append("it has no headers")
    else:
        message_id = _message_id(headers, wrong, properties)
    if "content" not in found:
        wrong.append("it has no content")
    for name in ("time", "epoch"):
        if name in found:
            properties[name] = shown(found[name])
    for other, value in others:
        _put(properties, shown(other), shown(value))
    from_group, from_topic, tag, key = text("origin-group"), text("origin-topic"), text("tag"), text("key")
    deliveries = number("deliveries", 2**31 - 1)
    return DeadLetter(
        queue=queue, broker_id=entry_id,
        group=from_group or group, topic=from_topic or topic, message_id=message_id,
        content=found.get("content", b""), headers=b"{}" if headers is None else headers, properties=properties,
        cause=_shown(found, "cause"), error=_shown(found, "error"),
        deliveries=deliveries, position=position,
        tag=tag, partition_key=key,
        died_at=instant_of(died) if died <= _MAX_MICROS else None,
        invalid="; ".join(wrong) or None,
    )  # fmt: skip


def shown(value: bytes) -> str:
    """As text, with a backslash before what is none: no byte is lost."""
    return value.decode(errors="backslashreplace")


def _shown(found: Fields, name: str) -> str:
    return shown(found.get(name, b""))


def _put(properties: dict[str, str], name: str, value: str) -> None:
    """Beside one of the same name, not over it."""
    free, number = name, 1
    while free in properties:
        number += 1
        free = f"{name} ({number})"
    properties[free] = value


def _message_id(headers: bytes, wrong: list[str], properties: dict[str, str]) -> str | None:
    try:
        named: Any = json.loads(headers)
    except (ValueError, RecursionError):
        wrong.append("its headers are no JSON")
        return None
    if not isinstance(named, dict):
        wrong.append("its headers are no JSON object")
        return None
    if not all(isinstance(value, str) for value in named.values()):
        wrong.append("a header is no text")
    message_id = named.get(ID_HEADER)
    if isinstance(message_id, str) and message_id:
        return message_id
    wrong.append(f"it has no header {ID_HEADER}")
    return None
