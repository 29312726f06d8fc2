"""What the audit asks of producers' databases: pages of what breaks an invariant there, by id. It only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from backstop.model.records import Key


class StubAudit(Protocol):
    """The stubs of one producer database, as the audit sees them; raises StoreUnavailable when it does not answer."""

    @property
    def shard(self) -> str:
        """Its name in the settings."""
        ...

    def numbers_beyond(self, start: datetime, end: datetime, limit: int) -> list[Key]:
        """Stubs created in [start, end) with an attempt whose number was never handed out, or more attempts than numbers."""
        ...

    def never_ended(self, since: datetime, limit: int) -> list[Key]:
        """Stubs whose send is under way and should have ended before `since`."""
        ...

    def never_looked_at(self, since: datetime, beyond: datetime, limit: int) -> list[Key]:
        """Pending stubs that were due before `since` and were not judged since, and those that are due after `beyond`."""
        ...

    def exhausted(self, after: Key, limit: int) -> list[Key]:
        """A page of the exhausted stubs, by key."""
        ...

    def no_taker_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        """As `confirmed_between`, of stubs that no group owed."""
        ...

    def overdue(self, since: Mapping[str, datetime], after: Key, limit: int) -> list[Key]:
        """A page of the pending stubs of these topics, by key, that were created, due and last sent before `since`."""
        ...

    def confirmed_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        """A page of a topic's stubs that were confirmed in [start, end), by when (as the database writes it) and id."""
        ...

    def voided_between(
        self, topic: str, start: datetime, end: datetime, after: tuple[str, str], limit: int
    ) -> list[tuple[Key, str]]:
        """The same of those that were voided."""
        ...

    def not_voided(self, keys: Sequence[Key]) -> list[Key]:
        """Which of these messages, which were withdrawn, have a stub that is not voided."""
        ...

    def not_erased(self, keys: Sequence[Key]) -> list[Key]:
        """Which of these messages, which were erased on request, still have a content, a key or an error of an attempt."""
        ...

    def close(self) -> None: ...
