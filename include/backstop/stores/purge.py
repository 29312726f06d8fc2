"""What retention asks of other programs' databases: look at what is old, and take away what is still as it was seen.

Every method raises StoreUnavailable when the store does not answer. Each purge is one transaction over the rows it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from backstop.model.records import Key


class OldLog(NamedTuple):
    """A log as it was seen; `moved` is its updated_at as the database writes it."""

    key: Key
    state: str
    moved: str
    is_old: bool
    """Older than its topic's logs are kept, and no worker holds it."""


class OldStub(NamedTuple):
    """A stub that is confirmed, voided or without a taker, and did not move for as long as such stubs are kept."""

    key: Key
    status: str
    moved: str


class LogPlace(NamedTuple):
    """Where a walk over one group's logs goes on, as the database writes it."""

    received: str
    topic: str
    message_id: str


FIRST_LOG = LogPlace("-infinity", "", "")


class ErasedStub(NamedTuple):
    """What an erasure left and found."""

    keeps_ordering_key: bool
    """A message of the same ordering key is open."""
    attempts: int
    """Attempts whose error was emptied."""


class LogPurge(Protocol):
    """The logs of one consumer database, as retention sees them."""

    def old_logs(
        self, group: str, kept_seconds: Mapping[str, float], after: LogPlace, limit: int
    ) -> tuple[list[OldLog], LogPlace | None]:
        """A page of the group's logs that were received longer ago than the shortest of `kept_seconds` (by topic), oldest first;
        and where the next page begins, null after the last one."""
        ...

    def purge_logs(self, group: str, logs: Sequence[OldLog]) -> int:
        """Raises the group's floor to the newest of the logs that are still as seen and in nobody's hands, then deletes them,
        in one transaction: whoever misses a log and reads the floor afterwards reads the raised one. Returns how many."""
        ...

    def erase(self, key: Key, groups: Sequence[str]) -> int:
        """Empties what handlers said of a message, and the fingerprint of its content where its work is done; returns of how
        many logs."""
        ...

    def close(self) -> None: ...


class StubPurge(Protocol):
    """The stubs of one producer database, as retention sees them."""

    def old_stubs(
        self,
        topic: str,
        kept_seconds: float,
        no_taker_seconds: float,
        after: tuple[str, str],
        limit: int,
    ) -> list[OldStub]:
        """A topic's closed stubs that moved last longer ago than this, oldest first, after (moved, message_id); one without a
        taker must also have been created longer ago than `no_taker_seconds`."""
        ...

    def purge_stubs(self, stubs: Sequence[OldStub]) -> int:
        """Deletes those that are still as seen, their attempts with them; returns how many."""
        ...

    def standing(self, key: Key) -> tuple[str, bool] | None:
        """A message's status and whether a send of it is under way; null when there is no such stub."""
        ...

    def erase(self, key: Key) -> ErasedStub | None:
        """Empties content, headers, keys and the errors of attempts of a message that is over. Null: it is not here, is pending
        or exhausted, or a send of it is under way; nothing was changed."""
        ...

    def close(self) -> None: ...


FIRST_STUB = ("-infinity", "")
