"""Keys as the columns hold them: bytes, which no collation changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from backstop.model.records import EARLIEST, LATEST, Key
from backstop.model.storable_text import escaped
from backstop.sql.connection import storable_keys
from backstop.sql.mariadb_keys import BYTES_OF_STATEMENT, ROWS_OF_STATEMENT


def by_topic(keys: Sequence[Key]) -> Iterator[tuple[dict[str, Any], dict[bytes, Key]]]:
    """The values of a statement for some ids of one topic, and whose key each is; without keys that no database holds. An index
    serves a list of ids, and not a list of pairs."""
    for topic, of_topic in groupby(sorted(storable_keys(keys)), key=lambda key: key.topic):
        some: dict[bytes, Key] = {}
        size = 0
        for key in of_topic:
            encoded = key.message_id.encode()
            if some and (
                len(some) == ROWS_OF_STATEMENT or size + len(encoded) > BYTES_OF_STATEMENT
            ):
                yield {"topic": topic.encode(), "ids": tuple(some)}, some
                some, size = {}, 0
            some[encoded] = key
            size += len(encoded)
        if some:
            yield {"topic": topic.encode(), "ids": tuple(some)}, some


def as_text(value: bytes | str) -> str:
    """A text as people read it: bytes that are no UTF-8, or hold a NUL, are shown as hexadecimal, which equals nothing that is
    asked for. No NUL gets any further: the control database holds none."""
    if is_text(value):
        return value if isinstance(value, str) else value.decode()
    return "\\x" + as_bytes(value).hex()


def as_bytes(value: bytes | str) -> bytes:
    """A key as its column holds it."""
    return value.encode() if isinstance(value, str) else bytes(value)


class KeyWalk:
    """A walk over rows in the order of their keys, page by page. A key that is no text lies elsewhere than the hexadecimal that is shown
    of it, so where a key of the newest page lies is kept."""

    def __init__(self) -> None:
        self._places: dict[Key, tuple[bytes, bytes]] = {}

    def page(self, rows: Sequence[Sequence[Any]]) -> list[Key]:
        """The keys of rows that begin with theirs."""
        keys = [Key(as_text(row[0]), as_text(row[1])) for row in rows]
        if rows:  # of two keys that are shown alike the later one counts: pages end with it
            places = ((as_bytes(row[0]), as_bytes(row[1])) for row in rows)
            self._places = dict(zip(keys, places, strict=True))
        return keys

    def behind(self, topic: str, message_id: str) -> tuple[bytes, bytes]:
        """Where the walk goes on behind this key."""
        as_shown = topic.encode(), message_id.encode()
        return self._places.get(Key(topic, message_id), as_shown)


def as_note(value: bytes | str | None) -> str | None:
    """What somebody wrote beside a key (a host, an error), as the control database can hold it: no NUL here either."""
    if value is None:
        return None
    return escaped(value if isinstance(value, str) else value.decode(errors="backslashreplace"))


def is_text(value: bytes | str) -> bool:
    """Whether the control database can hold it as it is."""
    if isinstance(value, str):
        return "\0" not in value
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


def as_instant(value: object) -> datetime | None:
    """A column's time, which is UTC; a date of zeros, as a server that is not strict keeps it, is none."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else None


def naive(at: datetime) -> datetime:
    """UTC, as the columns hold it; the driver would send a zone's time as it stands."""
    return at.astimezone(UTC).replace(tzinfo=None)


def within_bounds(microseconds: int | None) -> int | None:
    """Microseconds since 1970, within what stores report."""
    return None if microseconds is None else max(_EARLIEST, min(_LATEST, microseconds))


def of_micros(microseconds: int | None) -> datetime | None:
    """The instant, within what stores report."""
    found = within_bounds(microseconds)
    return None if found is None else _EPOCH + timedelta(microseconds=found)


def to_micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime.fromtimestamp(0, UTC)
_EARLIEST, _LATEST = to_micros(EARLIEST), to_micros(LATEST)
