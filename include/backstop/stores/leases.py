"""What the sweep asks of the leases in a consumer database: how many ended, to take them back as they were seen, what a log says.

Clocks are the database's. Only groups that are named are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from backstop.model.records import Key


class EndedLeases(NamedTuple):
    """Leases that ended, counted no further than asked. `oldest`: null when there is none."""

    leases: int
    oldest: datetime | None
    overdue: int
    """Of them, those that ended more than `overdue_seconds` ago."""


class HeldLease(NamedTuple):
    """A log in CONSUMING as it was seen; instants as the database writes them, which may be infinite. `ends` null: it says
    no end, and nobody touched it since `touched`."""

    group: str
    topic: str
    message_id: str
    token: str | None
    ends: str | None
    touched: str | None
    owner_host: str | None
    is_expired: bool


class TakenBack(NamedTuple):
    """So many leases of one group, topic and host, and the message of one of them."""

    group: str
    topic: str
    owner_host: str | None
    leases: int
    message_id: str


class LeaseStanding(NamedTuple):
    """What a log says at its database's clock: a LogState as stored; whether a lease is alive, and for how long still (null: it
    is not alive, or without an end)."""

    state: str
    is_alive: bool
    seconds_left: float | None


class Failing(NamedTuple):
    """A message that was begun again and again and is not done."""

    group: str
    topic: str
    message_id: str
    attempts: int
    error: str | None
    first_received_at: datetime


class Leases(Protocol):
    """Of one consumer database. For one thread at a time; every method raises StoreUnavailable when it does not answer."""

    def count(self, groups: Sequence[str], limit: int, overdue_seconds: float) -> EndedLeases:
        """The expired leases of these groups."""
        ...

    def count_endless(self, untouched: Mapping[str, float]) -> int:
        """Leases without an end that nobody touched for so many seconds, by group."""
        ...

    def count_without_time(self, groups: Sequence[str]) -> int:
        """Logs of these groups that are CONSUMED and do not say when."""
        ...

    def settle(
        self,
        groups: Sequence[str],
        untouched: Mapping[str, float],
        limit: int,
        endless: bool,
        decide: Callable[[list[HeldLease]], list[HeldLease]] | None,
    ) -> tuple[list[HeldLease], set[tuple[str, str, str]]]:
        """Looks at no more than `limit` leases (those without an end if `endless`), takes back what `decide` returns of
        them, and commits. Returns what was seen, and the (group, topic, id) of what was really taken back. `decide` null: it only
        looks, as a login may that can change nothing. It may be called again."""
        ...

    def reclaim(self, seen: Sequence[HeldLease]) -> list[tuple[str, str, str]]:
        """Takes these leases back, each only as it was seen, and commits; the (group, topic, id) of what was really taken back."""
        ...

    def take_back(self, groups: Sequence[str], limit: int) -> list[TakenBack]:
        """Takes back at most `limit` leases of these groups whose end has come, and commits."""
        ...

    def standing(self, group: str, keys: Sequence[Key]) -> dict[Key, LeaseStanding]:
        """What the logs of one group say, by key, on the primary; a key that is absent has no log."""
        ...

    def failing(
        self, least: Mapping[tuple[str, str], tuple[int, float]], limit: int
    ) -> list[Failing]:
        """Messages of these (group, topic) begun at least so often, not done, that moved within so many seconds; the newest
        first, at most `limit` of each (group, topic)."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
