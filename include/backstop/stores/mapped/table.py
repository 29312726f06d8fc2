"""Another program's tables on their server, asked in the server's own dialect: the one seam between kinds of databases.

What rows mean, what is remembered of them and what absence proves is the same for all, in `stubs`, `logs` and `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, BinaryIO, Protocol, TypeVar

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.stores.protocol import Scan

T = TypeVar("T")
StubRow = tuple[str | None, str | None, int | None, str, str | None]
"""topic, message_id, created_at (microseconds since 1970), state, row_version."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the table read beside its rows."""

    server: str
    """The table and the present life of its server."""
    window_from: datetime
    wal: str | None = None
    slot_at: str | None = None
    """How far the relay's slot is, where a relay reads the log; `wal`: the end of the log then."""
    tells_gone: bool = True
    """Whether a row of the window that is not among them is gone from the application's table."""


@dataclass(frozen=True, slots=True)
class Column:
    """`kind`: its type as the server writes it; `required`: each row has a value that can be read."""

    kind: str
    required: bool


class Table(Protocol):
    """The tables of one mapping. Every method raises StoreUnavailable; nothing is ever written."""

    subject: str
    instants: Mapping[str, Sequence[str]]
    """A mapping's `times` -> the types that fit it."""

    def clock(self) -> datetime:
        """The server's own time."""
        ...

    def look(self, mapping: StubMapping, into: BinaryIO) -> Look:
        """Writes the rows of the window into a file, as CSV in the order of StubRow: one snapshot of the primary."""
        ...

    def rows_of_keys(
        self, mapping: StubMapping, keys: Sequence[Key]
    ) -> tuple[Sequence[StubRow], str | None]:
        """The rows of these messages now, of one snapshot; how far the slot was before it."""
        ...

    def count_newer(
        self,
        mapping: StubMapping,
        window_from: datetime,
        newest_at: datetime | None,
        topics: Sequence[str] | None,
        limit: int,
    ) -> int:
        """Rows that were created after the newest one that a look has met, counted up to a limit; not those of the future, which
        the next look meets."""
        ...

    def newest(self, mapping: StubMapping) -> tuple[datetime | None, float | None]:
        """The newest time in the table, and how many seconds it lies ahead of the server's clock."""
        ...

    def log_table(
        self, mapping: LogMapping, group: str, keys: Sequence[Key], wanted: Mapping[str, str]
    ) -> Any:
        """An Arrow table of `wanted`, all rows of a key as one; a key that is absent from it has no row. A row whose group cannot be
        read is of any group. Each key's topic has a name there (mapping.names_of)."""
        ...

    def cannot_hold(self, mapping: LogMapping, message_ids: Sequence[str]) -> Mapping[str, str]:
        """Those of the ids that a table's column may hold in no row, or only changed -> why."""
        ...

    def has_nameless(self, mapping: LogMapping, group: str) -> bool:
        """Whether a row of the group, or of no group that can be read, has no id, or no topic, that can be read: it may be of any
        message."""
        ...

    def count_received(
        self, mapping: LogMapping, group: str, start: datetime, end: datetime
    ) -> Mapping[str | None, int]:
        """By their topic, a group's rows first received in [start, end)."""
        ...

    def scan_done(
        self,
        mapping: LogMapping,
        groups: Mapping[str, datetime],
        worth: Mapping[str, float],
        partitions: int,
    ) -> Scan | None:
        """See protocol.LogSource; null where this kind of table is always asked by key."""
        ...

    def read_part(self, mapping: LogMapping, part: Any, keep: Callable[[str, Any], T]) -> list[T]:
        """A part of such a scan."""
        ...

    def lineage(self, mapping: LogMapping) -> str:
        """Names the server, its present life and the tables: another text where what was done may be lost."""
        ...

    def tables(self, mapping: StubMapping | LogMapping) -> Sequence[str]:
        """Those whose columns are read, as the server takes their names."""
        ...

    def columns(self, mapping: StubMapping | LogMapping) -> Mapping[tuple[str, str], Column]:
        """Of the mapped columns, by (table, column), those that are there and may be read."""
        ...

    def writes(self, mapping: StubMapping | LogMapping) -> Sequence[tuple[str, str]]:
        """(table, privilege) for all that this login may change there."""
        ...

    def may_lag(self, mapping: StubMapping | LogMapping) -> bool:
        """Whether the tables may lack what the application wrote a while ago, where such a server is not refused anyway."""
        ...

    def is_unique(self, mapping: StubMapping | LogMapping, columns: Sequence[str]) -> bool:
        """Whether an index of the first table lets a key have one row only."""
        ...

    def changed_by_a_send(self, mapping: StubMapping) -> Sequence[str] | None:
        """The columns of which one must change when a row is sent again, or that is not noticed; null: each update is."""
        ...

    def close(self) -> None: ...


def open_table(
    subject: str, url: str, mapping: StubMapping | LogMapping, patience: timedelta
) -> Table:
    """Nothing is connected before the first question."""
    if mapping.dialect == "mysql":
        from backstop.stores.mapped.mysql import MysqlTable

        return MysqlTable(subject, url, patience)
    if mapping.dialect == "mongodb":
        from backstop.stores.mapped.mongodb import MongoTable

        return MongoTable(subject, url, patience)
    from backstop.stores.mapped.postgresql import PostgresTable

    return PostgresTable(subject, url, patience)


def missing_table(subject: str, tables: Sequence[str]) -> StoreUnavailable:
    """Of a producer: there is no such table, or not to be read by this login."""
    return StoreUnavailable(
        f"{subject[:1].upper()}{subject[1:]} has no table {' or '.join(tables)}.",
        unaffected="Nothing was decided without it.",
        next_step="Correct mapping.tables of it, grant SELECT on them, or run what `backstop migrate --capture` prints.",
    )
