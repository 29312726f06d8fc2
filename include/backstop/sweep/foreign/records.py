"""What the sweep needs of a store of another program's records: pages of what looks stuck, and compare-and-set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backstop.model.records import Counts
from backstop.sweep.foreign.decide import Decision, Record


@dataclass(frozen=True, slots=True)
class Seen:
    """One record without an end in sight, as it was seen; `record` is null when it cannot be read."""

    text: str
    """Its key, for a person."""
    record: Record | None
    handle: Any
    """What the store needs to find it again, and to know that it has not changed."""


@dataclass(frozen=True, slots=True)
class Page:
    """A step of the walk: how many records it walked past at most, and those among them that may be stuck."""

    place: str
    """Where the next page begins; empty: this was the last one."""
    walked: int
    seen: Sequence[Seen]


class Records(Protocol):
    """One store. Every method raises StoreUnavailable when it does not answer."""

    def pages(self, place: str, size: int, *, only_stuck: bool = False) -> Iterator[Page]:
        """The store from `place` to its end, about `size` records a page; `only_stuck` leaves out what time does not free."""
        ...

    def apply(self, decision: Decision, seen: Sequence[Seen], counts: Counts) -> None:
        """Repairs or frees those that still are what was seen, and counts each of them when its outcome is known."""
        ...

    def close(self) -> None: ...
