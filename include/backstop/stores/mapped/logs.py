"""A consumer's own inbox table as a store of logs, read and never written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from backstop.brokers.protocol import Finding
from backstop.config.mapped import LogMapping
from backstop.model.records import EARLIEST, LATEST, Key, LogRow
from backstop.sql.connection import STATEMENT_TIMEOUT, PostgresConnection, storable_keys
from backstop.sql.named import load
from backstop.stores.mapped.check import check_logs
from backstop.stores.mapped.table import Table, open_table
from backstop.stores.protocol import LOG_COLUMNS, Scan

_SQL = load("backstop.stores.mapped", "logs.sql")
_MARGIN = timedelta(minutes=10)
"""Their purge compares with a clock of its own."""
_ROW = {**LOG_COLUMNS, "received_at": "bigint", "copies": "bigint"}
_EPOCH = datetime.fromtimestamp(0, EARLIEST.tzinfo)
T = TypeVar("T")


class MappedLogs:
    """A mapped inbox; see stores.protocol.LogStore. A row proves what it says. Absence proves something only of a group and topic
    of which this mapping has found a message done before: else a mistake in it would make every message look lost."""

    def __init__(
        self,
        store: str,
        url: str,
        control_url: str,
        mapping: LogMapping,
        patience: timedelta = STATEMENT_TIMEOUT,
        table: Table | None = None,
    ) -> None:
        """`patience`: so long may a statement take."""
        self._store, self._mapping = store, mapping
        self._theirs = table or open_table(f"store {store}", url, mapping, patience)
        self._control = PostgresConnection("control", control_url, statement_timeout=patience)

    def __repr__(self) -> str:
        return f"MappedLogs({self._theirs.subject})"

    def clock(self) -> datetime:
        return self._theirs.clock()

    def floor(self, group: str, topic: str | None = None) -> datetime:
        """A message committed since then has a row here if it was done. The end of time while absence proves nothing; the year 1
        where no row is ever deleted."""
        if topic is not None:
            if not self._mapping.names_of(topic):
                return LATEST
            ((proven,),) = self._control.rows(
                _SQL["proven"],
                {
                    "store": self._store,
                    "mapping": self._mapping.fingerprint,
                    "group": group,
                    "topic": topic,
                },
            )
            if not proven:
                return LATEST
        if self._theirs.may_lag(self._mapping) or self._theirs.has_nameless(self._mapping, group):
            return LATEST
        if self._mapping.kept is None:
            return EARLIEST
        return self.clock() - self._mapping.kept + _MARGIN

    def prove(self, cursor: Any, group: str, topics: Sequence[str]) -> None:
        """Messages of these topics were found done, by this mapping; in the transaction of `cursor` on the control database."""
        for topic in topics:
            cursor.execute(
                _SQL["prove"],
                {
                    "store": self._store,
                    "mapping": self._mapping.fingerprint,
                    "group": group,
                    "topic": topic,
                },
            )

    def log_table(self, group: str, keys: Sequence[Key]) -> Any:
        return self._table(group, keys, LOG_COLUMNS)

    def logs(self, group: str, keys: Sequence[Key]) -> dict[Key, LogRow]:
        return {
            Key(row["topic"], row["message_id"]): LogRow(
                consumer_group=group,
                topic=row["topic"],
                message_id=row["message_id"],
                state=row["log_state"],
                owner_token=None,
                lease_expires_at=None,
                attempts=row["copies"] or 0,
                duplicates_stopped=0,
                first_received_at=_instant(row["received_at"]),
                updated_at=_instant(row["log_updated_at"]),
                consumed_at=_instant(row["log_consumed_at"]),
                invalid=row["log_broken"],
            )
            for row in self._table(group, keys, _ROW).to_pylist()
        }

    def scan_done(
        self, groups: Mapping[str, datetime], worth: Mapping[str, float], partitions: int
    ) -> Scan | None:
        return self._theirs.scan_done(self._mapping, groups, worth, partitions)

    def read_part(self, part: Any, keep: Callable[[str, Any], T]) -> list[T]:
        return self._theirs.read_part(self._mapping, part, keep)

    def lineage(self) -> str:
        return self._theirs.lineage(self._mapping)

    def continues(self, lineage: str) -> bool:
        return self._theirs.lineage(self._mapping) == lineage

    def received_between(
        self, group: str, start: datetime, end: datetime, limit: int
    ) -> list[LogRow]:
        """None: a mapped inbox may hold messages of producers that Backstop does not know, and these are no orphans."""
        return []

    def count_received(self, group: str, start: datetime, end: datetime) -> dict[str, int]:
        found: dict[str, int] = {}
        received = self._theirs.count_received(self._mapping, group, start, end)
        for theirs, number in received.items():
            topic = None if theirs is None else self._mapping.topic_of(theirs)
            if topic is not None:
                found[topic] = found.get(topic, 0) + number
        return found

    def highest_logged(
        self, group: str, topic: str, ends: Mapping[tuple[int, str], int]
    ) -> dict[tuple[int, str], int]:
        return {}

    def check(self) -> list[Finding]:
        return check_logs(self._theirs, self._mapping)

    def close(self) -> None:
        self._theirs.close()
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _table(self, group: str, keys: Sequence[Key], wanted: Mapping[str, str]) -> Any:
        import pyarrow as pa  # which not every caller has

        from backstop.sql.arrow import arrow_schema, concat

        named = {topic for topic in {key.topic for key in keys} if self._mapping.names_of(topic)}
        asked = [key for key in storable_keys(keys) if key.topic in named]
        found = self._theirs.log_table(self._mapping, group, asked, wanted)
        names = (found.column(name).to_pylist() for name in ("topic", "message_id"))
        has = set(zip(*names, strict=True))
        absent = [key for key in asked if tuple(key) not in has]
        odd = self._theirs.cannot_hold(self._mapping, [key.message_id for key in absent])
        unreadable = [
            {
                **dict.fromkeys(wanted),
                "topic": key.topic,
                "message_id": key.message_id,
                "log_state": "",
                "log_broken": odd[key.message_id],
            }
            for key in absent
            if key.message_id in odd
        ]
        return concat([pa.Table.from_pylist(unreadable, schema=arrow_schema(wanted)), found])


def _instant(micros: int | None) -> datetime | None:
    if micros is None:
        return None
    return max(EARLIEST, min(LATEST, _EPOCH + timedelta(microseconds=micros)))
