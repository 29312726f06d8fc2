"""Keys as the columns hold them: bytes, which no collation changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from backstop.model.records import Key
from backstop.sql.connection import storable_keys

_KEYS, _BYTES = 5_000, 2**20
"""Of one statement, which a server takes up to a limit of its own (max_allowed_packet)."""


def by_topic(keys: Sequence[Key]) -> Iterator[tuple[dict[str, Any], dict[bytes, Key]]]:
    """The values of a statement for some ids of one topic, and whose key each is; without keys that no database holds. An index
    serves a list of ids, and not a list of pairs."""
    for topic, of_topic in groupby(sorted(storable_keys(keys)), key=lambda key: key.topic):
        some: dict[bytes, Key] = {}
        size = 0
        for key in of_topic:
            encoded = key.message_id.encode()
            if some and (len(some) == _KEYS or size + len(encoded) > _BYTES):
                yield {"topic": topic.encode(), "ids": tuple(some)}, some
                some, size = {}, 0
            some[encoded] = key
            size += len(encoded)
        if some:
            yield {"topic": topic.encode(), "ids": tuple(some)}, some


def as_text(value: bytes | str) -> str:
    """A key as people read it: bytes that are no UTF-8 are shown as hexadecimal, which equals nothing that is asked for."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "\\x" + value.hex()


def as_instant(value: object) -> datetime | None:
    """A column's time, which is UTC; a date of zeros, as a server that is not strict keeps it, is none."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else None
