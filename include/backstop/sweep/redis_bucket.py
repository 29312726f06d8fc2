"""Reads and settles the records of one bucket of a group's leases in Redis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backstop.leases.redis_exchange import Call, RedisExchange, Script
from backstop.leases.redis_records import BUCKETS, NOTHING, UNREADABLE, RedisKeys, read_leases
from backstop.model.records import Key

_CONFLICTS, _ENDED, _LOOK, _SETTLE = (
    Script("conflicts"),
    Script("ended"),
    Script("look"),
    Script("settle"),
)


NAMES, RECORDS = 10_000, 500
"""Read at once of an index, and read or settled by one call of the records that it names: each some milliseconds of the server,
which frees the memory of larger calls at a cost that is felt."""

MISSING = {NOTHING[0]: "vanished", UNREADABLE[0]: "unreadable"}
"""The states of what is no record, and what each is counted as."""


@dataclass(frozen=True, slots=True)
class SeenRecords:
    """Records of a bucket as they were seen, a column each: tens of thousands of objects would cost more than the decision."""

    names: Sequence[bytes]
    texts: Sequence[bytes]
    """Empty: there was none."""
    keys: Sequence[Key]
    states: Sequence[str]
    """C, D, F or E; empty: there was no record; ?: one that cannot be read."""
    ends: Sequence[int]
    hosts: Sequence[str]
    are_expired: Sequence[bool]
    """Whether it was a lease that had ended when it was read."""

    def __len__(self) -> int:
        return len(self.names)


class Bucket:
    """One of a group's buckets. Every method raises StoreUnavailable when Redis does not answer."""

    def __init__(self, exchange: RedisExchange, group: str, number: int) -> None:
        self.keys = RedisKeys(group)
        self.number = number
        self._exchange = exchange

    def expired(self, offset: int, limit: int) -> SeenRecords:
        """Records whose lease ended by the index, the oldest first, from `offset` on."""
        return self.read(self._ended(offset, limit))

    def scan(self, limit: int) -> Iterator[tuple[int, Sequence[bytes], list[bytes]]]:
        """What `expired` gives, for another process to settle: the instant of the server at which a page of records was read, their
        names and texts; at most `limit` of them. A record that moves between two pages may be missed, or met twice."""
        found = 0
        while found < limit:
            names = self._ended(found, min(NAMES, limit - found))
            found += len(names)
            for at in range(0, len(names), RECORDS):
                yield from self._texts(names[at : at + RECORDS])
            if len(names) < NAMES:
                return

    def read(self, names: Sequence[bytes]) -> SeenRecords:
        """These records, as they are now."""
        texts: list[bytes] = []
        instants: list[int] = []
        for now, _, found in self._texts(names):
            texts += found
            instants += [now] * len(found)
        return self.as_seen(names, texts, instants)

    def settle(self, seen: SeenRecords, actions: Sequence[str], *, open_ms: int) -> set[int]:
        """Does one action each (see lua/settle.lua; empty: none) where the record is still as it was seen; the numbers of the others."""
        chosen = [number for number, action in enumerate(actions) if action]
        parts = [chosen[at : at + RECORDS] for at in range(0, len(chosen), RECORDS)]
        answers = self._exchange.run(
            [self._settling(seen, actions, part, b"%d" % open_ms) for part in parts]
        )
        return {part[place] for part, moved in zip(parts, answers, strict=True) for place in moved}

    def as_seen(
        self, names: Sequence[bytes], texts: Sequence[bytes], instants: Sequence[int]
    ) -> SeenRecords:
        """What these bytes say that were read at these instants of the server (ms)."""
        if len(set(names)) < len(names):  # a scan meets twice what moves between two pages
            once = {one[0]: one for one in zip(names, texts, instants, strict=True)}
            names, texts, instants = zip(*once.values(), strict=True)
        found = self.keys.messages(names, self.number)
        keys = [key or Key("?", repr(name)) for key, name in zip(found, names, strict=True)]
        leases = read_leases(texts)
        if None in found:
            # Another program's member of our index is nobody's lease, whatever stands there.
            leases = [
                lease if key else UNREADABLE if text else NOTHING
                for key, lease, text in zip(found, leases, texts, strict=True)
            ]
        states, ends, hosts = zip(*leases, strict=True) if leases else ((), (), ())
        are_expired = [
            state == "C" and end <= now
            for state, end, now in zip(states, ends, instants, strict=True)
        ]
        return SeenRecords(names, texts, keys, states, ends, hosts, are_expired)

    def _settling(
        self, seen: SeenRecords, actions: Sequence[str], part: Sequence[int], open_ms: bytes
    ) -> Call:
        chosen = [actions[number] for number in part]
        kinds = "".join([action[0] for action in chosen])
        lengths = [action[1:].encode() for action in chosen if len(action) > 1]
        return (
            _SETTLE,
            [self.keys.expiry[self.number], *[seen.names[number] for number in part]],
            [open_ms, kinds.encode(), *[seen.texts[number] for number in part], *lengths],
        )

    def _ended(self, offset: int, limit: int) -> list[bytes]:
        index = self.keys.expiry[self.number]
        arguments = [b"0", b"%d" % offset, b"%d" % limit]
        ((_, _, names),) = self._exchange.run([(_ENDED, [index], arguments)])
        return list(names)

    def _texts(self, names: Sequence[bytes]) -> list[tuple[int, Sequence[bytes], list[bytes]]]:
        """Page by page: when it was read, the names, the records."""
        index = self.keys.expiry[self.number]
        pages = [names[at : at + RECORDS] for at in range(0, len(names), RECORDS)]
        answers = self._exchange.run([(_LOOK, [index, *page], []) for page in pages])
        return [
            (now, page, [text or b"" for text in texts])
            for page, (now, texts) in zip(pages, answers, strict=True)
        ]


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
