"""Reads and settles the records of one bucket of a group's leases in Redis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from backstop.leases.redis_exchange import RedisExchange, Script
from backstop.leases.redis_records import BUCKETS, Record, RedisKeys, read_record
from backstop.model.errors import ContractBroken
from backstop.model.records import Key

_CONFLICTS, _ENDED, _LOOK, _SETTLE = (
    Script("conflicts"),
    Script("ended"),
    Script("look"),
    Script("settle"),
)


NAMES, RECORDS = 10_000, 1_000
"""Read at once of an index, and of the records that it names: each some milliseconds of the server."""


class Seen(NamedTuple):
    """A record as it was seen: its bytes, what they say (null: nothing there, or unreadable), and whether its lease ended."""

    name: bytes
    key: Key
    text: bytes
    record: Record | None
    is_expired: bool


class Bucket:
    """One of a group's buckets. Every method raises StoreUnavailable when Redis does not answer."""

    def __init__(self, exchange: RedisExchange, group: str, number: int) -> None:
        self.keys = RedisKeys(group)
        self.number = number
        self._exchange = exchange

    def expired(self, offset: int, limit: int) -> list[Seen]:
        """Records whose lease ended by the index, the oldest first, from `offset` on."""
        index = self.keys.expiry[self.number]
        ((_, _, names),) = self._exchange.run(
            [(_ENDED, [index], [b"0", b"%d" % offset, b"%d" % limit])]
        )
        return self.read(names)

    def scan(self, limit: int) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        """What `expired` gives, for another process to settle: a page of records as (name, text) with the instant of the server at
        which they were read; at most `limit` of them. A record that moves between two pages may be missed, or met twice."""
        index, found = self.keys.expiry[self.number], 0
        while found < limit:
            ((_, _, names),) = self._exchange.run(
                [(_ENDED, [index], [b"0", b"%d" % found, b"%d" % min(NAMES, limit - found)])]
            )
            found += len(names)
            for at in range(0, len(names), RECORDS):
                yield self._texts(names[at : at + RECORDS])
            if len(names) < NAMES:
                return

    def read(self, names: Sequence[bytes]) -> list[Seen]:
        """These records, as they are now."""
        if not names:
            return []
        now, records = self._texts(names)
        return [self.as_seen(*record, now) for record in records]

    def _texts(self, names: Sequence[bytes]) -> tuple[int, list[tuple[bytes, bytes]]]:
        ((now, texts),) = self._exchange.run([(_LOOK, [self.keys.expiry[self.number], *names], [])])
        return now, [(name, text or b"") for name, text in zip(names, texts, strict=True)]

    def settle(self, seen: Sequence[Seen], actions: Sequence[str], *, open_ms: int) -> set[int]:
        """Does one action each (see lua/settle.lua) where the record is still as it was seen; the numbers of the others."""
        if not seen:
            return set()
        pairs = [
            part
            for one, action in zip(seen, actions, strict=True)
            for part in (action.encode(), one.text)
        ]
        (moved,) = self._exchange.run(
            [
                (
                    _SETTLE,
                    [self.keys.expiry[self.number], *[one.name for one in seen]],
                    [b"%d" % open_ms, *pairs],
                )
            ]
        )
        return set(moved)

    def as_seen(self, name: bytes, text: bytes, now: int) -> Seen:
        """What these bytes say that were read at this instant of the server (ms)."""
        try:
            record = read_record(text) if text else None
        except ContractBroken:
            record = None
        try:
            key = self.keys.message(name, self.number)
        except (ContractBroken, UnicodeDecodeError):
            key, record = Key("?", repr(name)), None  # another program's member of our index
        return Seen(
            name,
            key,
            text,
            record,
            record is not None and record.state == "C" and record.ends <= now,
        )


def read_conflicts(exchange: RedisExchange, group: str, at_most: int = 20) -> tuple[int, list[Key]]:
    """How many messages of a group in Redis alone came with another content than before, and some of them."""
    keys = RedisKeys(group)
    answers = exchange.run(
        [(_CONFLICTS, [keys.conflicts[bucket]], [b"%d" % at_most]) for bucket in range(BUCKETS)]
    )
    names = [name for _, found in answers for name in found[::2]]
    return sum(number for number, _ in answers), [keys.message(name) for name in names[:at_most]]


def count_expired(exchange: RedisExchange, group: str, overdue_ms: int) -> tuple[int, int]:
    """Leases of a group that ended, and those that ended longer than `overdue_ms` ago, by the indexes alone."""
    keys = RedisKeys(group)
    counted = exchange.run(
        [
            (_ENDED, [keys.expiry[bucket]], [b"%d" % overdue_ms, b"0", b"0"])
            for bucket in range(BUCKETS)
        ]
    )
    return sum(ended for ended, _, _ in counted), sum(overdue for _, overdue, _ in counted)
