"""Reads consumer groups' logs in a MariaDB database, defensively: other programs write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from backstop.brokers.protocol import Finding
from backstop.model.records import EARLIEST, LATEST, Key, LogRow
from backstop.sql.connection import BULK_TIMEOUT, STATEMENT_TIMEOUT
from backstop.sql.mysql import MysqlConnection, server_of
from backstop.sql.named import load
from backstop.stores.mariadb.check import CONSUMER, check
from backstop.stores.mariadb.keys import (
    as_instant,
    as_note,
    as_text,
    by_topic,
    naive,
    of_micros,
    within_bounds,
)
from backstop.stores.postgresql.scan import ROWS_OF_PART, parts_of
from backstop.stores.protocol import LOG_COLUMNS, PART_COLUMNS, Scan

_SQL = load("backstop.stores.mariadb", "logs.sql")
_ROW = f"SELECT {_SQL['row_columns']}, {_SQL['broken']} AS broken"
_RULE = f"SELECT {_SQL['rule_columns']}, {_SQL['broken']} AS log_broken"
_RULE_NAMES = (
    "topic",
    "message_id",
    "log_state",
    "lease_expires_at",
    "log_updated_at",
    "log_consumed_at",
    "log_broken",
)
_TIMES = ("lease_expires_at", "log_updated_at", "log_consumed_at")
_KEY = frozenset({"consumer_group", "topic", "message_id"})
_PIECE = 50_000
"""Rows of one Arrow table."""
_MOST_OF_PART = 8 * ROWS_OF_PART
T = TypeVar("T")


class LogRange(NamedTuple):
    """One part of a scan: one group's rows first received in [start, end), at most so many."""

    group: str
    start: datetime
    end: datetime
    most: int


class MariaLogs:
    """The logs of one consumer database; see stores.protocol.LogStore."""

    def __init__(self, store: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        """`patience`: so long may a statement take."""
        self._subject, self._url = f"store {store}", url
        self._connection = MysqlConnection(self._subject, url, statement_timeout=patience)

    def __repr__(self) -> str:
        return f"MariaLogs({self._subject})"

    def clock(self) -> datetime:
        return self._connection.run(_clock)

    def floor(self, group: str, topic: str | None = None) -> datetime:
        found = self._connection.rows(_SQL["floor"], {"group": group.encode()})
        return (as_instant(found[0][0]) if found else None) or EARLIEST

    def logs(self, group: str, keys: Sequence[Key]) -> dict[Key, LogRow]:
        found: dict[Key, LogRow] = {}
        for values, by_id in by_topic(keys):
            given = {**values, "group": group.encode()}
            for row in self._connection.rows(f"{_ROW} {_SQL['of_keys']}", given):
                key, log = by_id[bytes(row[1])], _log(group, row)
                if key in found:
                    # Only a table without our unique key can do this: neither row may be taken for the truth.
                    log = replace(log, invalid="two rows for one key")
                found[key] = log
        return found

    def log_table(self, group: str, keys: Sequence[Key]) -> Any:
        rows: list[dict[str, Any]] = []
        for values, _ in by_topic(keys):
            given = {**values, "group": group.encode()}
            found = self._connection.rows(f"{_RULE} {_SQL['of_keys']}", given)
            rows += [_rule_row(row) for row in found]
        return _arrow(rows, LOG_COLUMNS)

    def scan_done(
        self, groups: Mapping[str, datetime], worth: Mapping[str, float], partitions: int
    ) -> Scan | None:
        def cut(cursor: Any) -> Scan | None:
            cursor.execute(_SQL["unique"])
            if not any(set(names.split(",")) <= _KEY for _, names in cursor.fetchall()):
                return None
            now = _clock(cursor)
            parts, estimates, total = [], {}, 0
            for group, since in groups.items():
                values = {"group": group.encode(), "since": naive(since)}
                cursor.execute(f"EXPLAIN {_SQL['since']}", values)
                names = [column[0] for column in cursor.description]
                (plan,) = cursor.fetchall()
                rows = estimates[group] = int(plan[names.index("rows")] or 0)
                if rows < worth[group]:
                    total += rows
                    number = parts_of(rows, partitions)
                    parts += _ranges(group, since, now, number, worth[group])
            return Scan(parts, total, estimates=estimates)

        return self._connection.run(cut)

    def read_part(self, part: LogRange, keep: Callable[[str, Any], T]) -> list[T]:
        reader = MysqlConnection(self._subject, self._url, statement_timeout=BULK_TIMEOUT)
        try:
            return reader.run(partial(_read_range, part, keep), unbuffered=True)
        finally:
            reader.close()

    def lineage(self) -> str:
        def ask(cursor: Any) -> str:
            cursor.execute(_SQL["made"])
            return " ".join([server_of(cursor), *(str(made) for (made,) in cursor.fetchall())])

        return self._connection.run(ask)

    def continues(self, lineage: str) -> bool:
        return self.lineage() == lineage

    def received_between(
        self, group: str, start: datetime, end: datetime, limit: int
    ) -> list[LogRow]:
        values = {**_window(group, start, end), "limit": limit}
        found = self._connection.rows(f"{_ROW} {_SQL['received_between']}", values)
        return [_log(group, row) for row in found]

    def count_received(self, group: str, start: datetime, end: datetime) -> dict[str, int]:
        found = self._connection.rows(_SQL["count_received"], _window(group, start, end))
        return {as_text(topic): int(number) for topic, number in found}

    def highest_logged(
        self, group: str, topic: str, ends: Mapping[tuple[int, str], int]
    ) -> dict[tuple[int, str], int]:
        def ask(cursor: Any) -> dict[tuple[int, str], int]:
            found = {}
            for (queue_id, epoch), end in ends.items():
                values = {
                    "group": group.encode(),
                    "topic": topic.encode(),
                    "queue_id": queue_id,
                    "epoch": epoch.encode(),
                    "end": end,
                }
                cursor.execute(_SQL["highest_logged"], values)
                ((offset,),) = cursor.fetchall()
                if offset is not None:
                    found[queue_id, epoch] = int(offset)
            return found

        return self._connection.run(ask)

    def check(self) -> list[Finding]:
        return check(self._connection, CONSUMER)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _clock(cursor: Any) -> datetime:
    cursor.execute(_SQL["clock"])
    ((now,),) = cursor.fetchall()
    return now.replace(tzinfo=UTC)  # type: ignore[no-any-return]


def _ranges(
    group: str, since: datetime, now: datetime, number: int, worth: float
) -> list[LogRange]:
    """Ranges of equal length from `since` on; the last has no end. The estimate may be wrong by any factor, so each part ends
    after twice its share of what the scan is worth: what it leaves out is looked up by key."""
    since = max(since, EARLIEST)
    step = max(now - since, timedelta(0)) / number
    ends = [*(since + step * place for place in range(number)), LATEST]
    most = min(_MOST_OF_PART, int(2 * worth / number) + 1)
    return [LogRange(group, start, end, most) for start, end in pairwise(ends)]


def _read_range(part: LogRange, keep: Callable[[str, Any], T], cursor: Any) -> list[T]:
    values = {**_window(part.group, part.start, part.end), "most": part.most}
    cursor.execute(f"{_RULE} {_SQL['done_between']}", values)
    kept, rows, columns = [], [], PART_COLUMNS["logs"]
    for row in cursor:
        found = _rule_row(row)
        if found["log_broken"] is None:
            rows.append({"consumer_group": part.group, **found})
        if len(rows) == _PIECE:
            kept.append(keep("logs", _arrow(rows, columns)))
            rows = []
    if rows:
        kept.append(keep("logs", _arrow(rows, columns)))
    return kept


def _arrow(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Any:
    import pyarrow as pa  # which not every caller has

    from backstop.sql.arrow import arrow_schema

    return pa.Table.from_pylist(rows, schema=arrow_schema(columns))


def _rule_row(row: Iterable[Any]) -> dict[str, Any]:
    found = dict(zip(_RULE_NAMES, row, strict=True))
    # A state with a NUL is stored as the evidence of its verdict, which the control database would refuse for the whole run.
    for name in ("topic", "message_id", "log_state"):
        found[name] = as_text(found[name])
    for name in _TIMES:
        found[name] = within_bounds(found[name])
    return found


def _window(group: str, start: datetime, end: datetime) -> dict[str, Any]:
    return {"group": group.encode(), "start": naive(start), "end": naive(end)}


def _log(group: str, row: Sequence[Any]) -> LogRow:
    (
        topic,
        message_id,
        state,
        token,
        lease,
        attempts,
        stopped,
        received,
        updated,
        consumed,
        conflicts,
        error,
        host,
        hashed,
        broken,
    ) = row
    return LogRow(
        consumer_group=group,
        topic=as_text(topic),
        message_id=as_text(message_id),
        state="" if state is None else as_text(state),
        owner_token=as_note(token),
        lease_expires_at=of_micros(lease),
        attempts=attempts or 0,
        duplicates_stopped=stopped or 0,
        first_received_at=of_micros(received),
        updated_at=of_micros(updated),
        consumed_at=of_micros(consumed),
        conflicts=conflicts or 0,
        last_error=as_note(error),
        owner_host=as_note(host),
        payload_hash=hashed,
        invalid=broken,
    )
