"""What the sweep asks of a store that holds another program's idempotency records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from backstop.model.records import Counts, Key


@dataclass(frozen=True, slots=True)
class LogStanding:
    """What the group's log says of one message: a LogState as it is stored, and whether a live lease holds it."""

    state: str
    lease_alive: bool


StatesOf = Callable[[Sequence[Key]], Mapping[Key, LogStanding]]
"""What the group's log says of these messages; an absent key: no row. Raises Unavailable when the log does not answer."""


@dataclass(frozen=True, slots=True)
class ForeignDecision:
    """One decision, for the list of a dry run."""

    where: str
    group: str
    topic: str
    message_id: str
    decision: str
    why: str


class ForeignLeases(Protocol):
    """The records of one entry of `foreign_leases`. For one thread at a time; nothing is connected before its first use.

    Every method raises StoreUnavailable when the other program's store does not answer.
    """

    name: str
    group: str
    """The consumer group whose log can prove the work done."""
    place: str
    """Where the next call goes on walking: text to keep and to put back, so that a store larger than one walk is walked
    over several processes. Empty: at the beginning, as after the end."""
    done: Counts
    """What the latest `sweep` did, also when it ended with an error."""

    def count(self, at_most: int) -> int:
        """How many records from `place` on look stuck now, counted no further than `at_most`; changes and touches nothing.

        When there is none, `place` moves on past what was walked.
        """
        ...

    def sweep(
        self,
        states_of: StatesOf,
        *,
        limit: int,
        dry_run: bool,
        tell: Callable[[ForeignDecision], None] | None = None,
    ) -> Counts:
        """Decides at most `limit` records that look stuck, from `place` on, and applies it unless `dry_run`.

        The counts: looked = keep + repair + reclaim + moved_on + unreadable. When the log does not answer, its batch is kept
        and the error is raised at the end.
        """
        ...

    def close(self) -> None: ...
