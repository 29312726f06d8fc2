"""Reads one entry of a dead-letter stream; whatever it holds is kept.

What cannot be read as the part of a message that it should be stays in `properties` (bytes that are no text with
backslashes), and `invalid` says so. An entry as `bury.lua` writes it is read by a shorter way to the same letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from backstop.brokers.protocol import DeadLetter
from backstop.brokers.redis_streams.read_progress import instant_of
from backstop.model.read_json import read_json
from backstop.model.records import ID_HEADER, Position

_MAX_MICROS = (datetime(9999, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
    microseconds=1
)
_INT, _BIGINT = 2**31 - 1, 2**63 - 1
_JSON = json.JSONDecoder()
_scan: Callable[[str, int], tuple[Any, int]] = _JSON.scan_once  # type: ignore[attr-defined]
"""Of `raw_decode` without its wrapping: StopIteration where there is no value."""
_START = datetime(1970, 1, 1, tzinfo=UTC)
_REGULAR = (
    b"time",
    b"epoch",
    b"headers",
    b"content",
    b"origin-group",
    b"origin-topic",
    b"origin-queue",
    b"origin-offset",
    b"origin-epoch",
    b"deliveries",
    b"cause",
    b"error",
    b"died",
)
_OPTIONAL = (b"tag", b"key")
Fields = dict[bytes, bytes]
Entry = tuple[bytes, Sequence[bytes]]
"""As the server gives it: its id, then names and values in turn."""
Pick = Callable[[Sequence[bytes | None]], tuple[Any, ...]]


def read_dead_letters(
    queue: str, topic: str, group: str, entries: Iterable[Entry]
) -> list[DeadLetter]:
    """`topic` and `group` are those of the stream. Of a field that is there twice the last one counts."""
    names: Sequence[bytes] = ()
    pick: Pick | None = None
    letters = []
    for entry_id, fields in entries:
        found, values = fields[::2], fields[1::2]
        if found != names:  # most entries of a stream have the same
            names, pick = found, _pick(found)
        letters.append(_read(queue, topic, group, entry_id.decode(), names, values, pick))
    return letters


def _read(
    queue: str,
    topic: str,
    group: str,
    entry_id: str,
    names: Sequence[bytes],
    values: Sequence[bytes],
    pick: Pick | None,
) -> DeadLetter:
    if pick is None:
        return _read_any(queue, topic, group, entry_id, names, values)
    try:
        return _read_regular(queue, topic, group, entry_id, pick([*values, None]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        # Something is odd: each field by itself.
        return _read_any(queue, topic, group, entry_id, names, values)


def _pick(names: Sequence[bytes]) -> Pick | None:
    """Gives the values of _REGULAR and _OPTIONAL in their order, of an entry's values and a None behind them for what it does not
    have; null when a regular field is missing, one is there twice, or there is another one."""
    places = {name: place for place, name in enumerate(names)}
    regular = set(_REGULAR) <= places.keys() <= {*_REGULAR, *_OPTIONAL}
    if not regular or len(places) != len(names):
        return None
    return itemgetter(*[places.get(name, -1) for name in (*_REGULAR, *_OPTIONAL)])


def _read_regular(
    queue: str, topic: str, group: str, entry_id: str, values: tuple[Any, ...]
) -> DeadLetter:
    """Raises for anything that `_read_any` would say a word about."""
    (
        time,
        epoch,
        headers,
        content,
        from_group,
        from_topic,
        from_queue,
        offset,
        from_epoch,
        deliveries,
        cause,
        error,
        died,
        tag,
        key,
    ) = values
    text = headers.decode()
    named, end = _scan(text, 0)
    if (
        end != len(text)
        or not (from_queue + offset + deliveries + died).isdigit()
        or epoch != from_epoch
    ):
        raise ValueError
    if len(from_queue) > 9 or len(offset) > 18 or len(deliveries) > 9 or len(died) > 17:
        raise ValueError
    for value in named.values():
        if value.__class__ is not str:
            raise ValueError
    message_id = named[ID_HEADER]
    if not message_id or not epoch:
        raise ValueError
    return DeadLetter(
        queue,
        entry_id,
        from_group.decode() or group,
        from_topic.decode() or topic,
        message_id,
        content,
        headers,
        {"time": time.decode()},
        cause.decode(),
        error.decode(),
        int(deliveries),
        Position(int(from_queue), int(offset), epoch.decode()),
        None if tag is None else tag.decode(),
        None if key is None else key.decode(),
        _START + timedelta(0, 0, int(died)),
        None,
    )


def _read_any(
    queue: str,
    topic: str,
    group: str,
    entry_id: str,
    names: Sequence[bytes],
    values: Sequence[bytes],
) -> DeadLetter:
    fields = dict(zip(names, values, strict=True))
    wrong: list[str] = []
    properties: dict[str, str] = {}
    if len(fields) != len(names):
        _keep_earlier(names, values, properties)
    headers, content = fields.pop(b"headers", None), fields.pop(b"content", None)
    message_id = _message_id(headers, wrong)
    if content is None:
        wrong.append("it has no content")
    died = _number(fields, b"died", _MAX_MICROS, wrong)
    position = _position(fields, wrong)
    deliveries = _number(fields, b"deliveries", _INT, wrong)
    from_group, from_topic = (
        _text(fields, b"origin-group", wrong),
        _text(fields, b"origin-topic", wrong),
    )
    tag, key = _text(fields, b"tag", wrong), _text(fields, b"key", wrong)
    cause, error = shown(fields.pop(b"cause", b"")), shown(fields.pop(b"error", b""))
    # The epoch of the message is in its position as well; what is left is the broker's, or is odd.
    if position is not None and fields.get(b"epoch") == position.epoch.encode():
        del fields[b"epoch"]
    for name, value in fields.items():
        properties[_free(properties, shown(name))] = shown(value)
    if died is None:
        # The server gave the id at the moment when it stored the entry, unless somebody wrote one by hand.
        died = int(entry_id.partition("-")[0]) * 1000
    return DeadLetter(
        queue,
        entry_id,
        from_group or group,
        from_topic or topic,
        message_id,
        content or b"",
        b"{}" if headers is None else headers,
        properties,
        cause,
        error,
        deliveries,
        position,
        tag,
        key,
        instant_of(died) if died <= _MAX_MICROS else None,
        "; ".join(wrong) or None,
    )


def shown(value: bytes) -> str:
    """As text, with a backslash before what is none: no byte is lost."""
    return value.decode(errors="backslashreplace")


def _message_id(headers: bytes | None, wrong: list[str]) -> str | None:
    if headers is None:
        wrong.append("it has no headers")
        return None
    try:
        named = read_json(headers.decode())
    except ValueError:
        wrong.append("its headers are not JSON")
        return None
    if not isinstance(named, dict):
        wrong.append("its headers are not a JSON object")
        return None
    for value in named.values():
        if not isinstance(value, str):
            wrong.append("a header is not text")
            break
    message_id = named.get(ID_HEADER)
    if isinstance(message_id, str) and message_id:
        return message_id
    wrong.append(f"it has no header {ID_HEADER}")
    return None


def _position(fields: Fields, wrong: list[str]) -> Position | None:
    places: Fields = {
        name: fields[name]
        for name in (b"origin-queue", b"origin-offset", b"origin-epoch")
        if name in fields
    }
    queue, offset = (
        _number(fields, b"origin-queue", _INT, wrong),
        _number(fields, b"origin-offset", _BIGINT, wrong),
    )
    epoch = _text(fields, b"origin-epoch", wrong)
    if queue is not None and offset is not None and epoch:
        return Position(queue, offset, epoch)
    fields |= places  # part of a place is none, and is kept among the properties
    return None


def _text(fields: Fields, name: bytes, wrong: list[str]) -> str | None:
    """Takes the field out, unless it is no text."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        wrong.append(f"its {name.decode()} is not UTF-8")
        return None
    del fields[name]
    return text


def _number(fields: Fields, name: bytes, highest: int, wrong: list[str]) -> int | None:
    """Takes the field out, unless it is no such number."""
    value = fields.get(name)
    if value is None:
        return None
    if value.isdigit() and len(value) <= 19 and (number := int(value)) <= highest:
        del fields[name]
        return number
    wrong.append(f"its {name.decode()} is not a valid number")
    return None


def _keep_earlier(
    names: Sequence[bytes], values: Sequence[bytes], properties: dict[str, str]
) -> None:
    last = {name: place for place, name in enumerate(names)}
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if last[name] != place:
            properties[_free(properties, f"{shown(name)} before")] = shown(value)


def _free(properties: dict[str, str], name: str) -> str:
    """Beside one of the same name, not over it."""
    free, number = name, 1
    while free in properties:
        number += 1
        free = f"{name} ({number})"
    return free
