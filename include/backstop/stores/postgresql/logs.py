"""Reads consumer groups' logs in a PostgreSQL database, defensively: other programs write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, TypeVar

from psycopg2.extensions import cursor as Cursor

from backstop.brokers.protocol import Finding
from backstop.model.records import Key, LogRow
from backstop.sql.connection import (
    STATEMENT_TIMEOUT,
    PostgresConnection,
    columns,
    only_readable,
    readable,
)
from backstop.sql.named import load
from backstop.stores.postgresql.check import check, check_identity
from backstop.stores.postgresql.privileges import CONSUMER
from backstop.stores.postgresql.scan import ROWS_OF_PART, parts_of
from backstop.stores.protocol import LOG_COLUMNS, PART_COLUMNS, Part, Scan

_SQL = load("backstop.stores.postgresql", "logs.sql")
_ROW = f"SELECT {_SQL['row_columns']}, {_SQL['broken']} AS broken"
_NOTHING = (None,) * 12
"""The columns of row_columns after the key, of a row that cannot be read."""
_ROW_KINDS = {
    **dict.fromkeys(("topic", "message_id", "state", "owner_token"), "string"),
    "lease_expires_at": "timestamptz",
    **dict.fromkeys(("attempts", "duplicates_stopped"), "int"),
    **dict.fromkeys(("first_received_at", "updated_at", "consumed_at"), "timestamptz"),
    "conflicts": "int",
    **dict.fromkeys(("last_error", "owner_host", "encode", "broken"), "string"),
}
"""Of each column of _ROW."""
_CHUNK = 10_000
"""Keys of one statement."""
_MOST_OF_PART = 8 * ROWS_OF_PART
T = TypeVar("T")


class PostgresLogs:
    """The logs of one consumer database; see stores.protocol.LogStore."""

    def __init__(self, store: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        """`patience`: so long may a statement take."""
        self._connection = PostgresConnection(f"store {store}", url, statement_timeout=patience)

    def __repr__(self) -> str:
        return f"PostgresLogs({self._connection.subject})"

    def clock(self) -> datetime:
        ((now,),) = self._connection.rows(_SQL["clock"])
        return now  # type: ignore[no-any-return]

    def floor(self, group: str, topic: str | None = None) -> datetime:
        found = self._connection.rows(_SQL["floor"], {"group": group})
        return found[0][0] if found else datetime.min.replace(tzinfo=UTC)

    def logs(self, group: str, keys: Sequence[Key]) -> dict[Key, LogRow]:
        found: dict[Key, LogRow] = {}
        asked = self._connection.storable_keys(keys)
        for start in range(0, len(asked), _CHUNK):
            chunk = asked[start : start + _CHUNK]
            rows, unreadable = self._connection.rows_of_keys(
                f"{_ROW} {_SQL['of_keys']}", chunk, {"group": group}
            )
            found.update(
                {
                    key: _log(group, (*key, *_NOTHING, "text that is not UTF-8"))
                    for key in unreadable
                }
            )
            for row in rows:
                key, log = Key(row[0], row[1]), _log(group, row)
                if key in found:
                    # Only a table without our unique key can do this: neither row may be taken for the truth.
                    log = replace(log, invalid="two rows for one key")
                found[key] = log
        return found

    def log_table(self, group: str, keys: Sequence[Key]) -> Any:
        from backstop.sql.arrow import concat  # needs pyarrow, which not every caller has

        select = f"SELECT {_SQL['rule_columns']}, {_SQL['broken']} AS log_broken {_SQL['of_keys']}"
        ordered = f"SELECT {', '.join(LOG_COLUMNS)} FROM ({select}) AS found"
        asked = self._connection.storable_keys(keys)
        chunks = [asked[start : start + _CHUNK] for start in range(0, len(asked), _CHUNK)] or [[]]
        return concat(
            [
                self._connection.copy(ordered, _of_keys(group, chunk), LOG_COLUMNS)
                for chunk in chunks
            ]
        )

    def scan_done(
        self, groups: Mapping[str, datetime], worth: Mapping[str, float], partitions: int
    ) -> Scan | None:
        def cut(cursor: Cursor) -> Scan | None:
            cursor.execute(_SQL["one_row_a_key"])
            if cursor.fetchall() != [(True,)]:
                return None
            parts, estimates, total = [], {}, 0
            for group, since in groups.items():
                cursor.execute(
                    f"EXPLAIN (FORMAT JSON) {_SQL['since']}", {"group": group, "since": since}
                )
                ((plan,),) = cursor.fetchall()
                rows = estimates[group] = int(plan[0]["Plan"]["Plan Rows"])
                if rows < worth[group]:
                    total += rows
                    parts += _parts(cursor, group, since, parts_of(rows, partitions), worth[group])
            return Scan(parts, total, estimates=estimates)

        return self._connection.run(cut)

    def read_part(self, part: Part, keep: Callable[[str, Any], T]) -> list[T]:
        return self._connection.copy_parts(part.statements, PART_COLUMNS, part.snapshot, keep)

    def lineage(self) -> str:
        ((name,),) = self._connection.rows(_SQL["lineage"])
        return str(name)

    def continues(self, lineage: str) -> bool:
        ((same,),) = self._connection.rows(_SQL["continues"], {"lineage": lineage})
        return bool(same)

    def received_between(
        self, group: str, start: datetime, end: datetime, limit: int
    ) -> list[LogRow]:
        values = {"group": group, "start": start, "end": end, "limit": limit}

        def ask(cursor: Cursor) -> list[tuple[Any, ...]]:
            keys = only_readable(cursor, "l.topic", "l.message_id")
            select = f"{_ROW} {_SQL['received_between'].replace('{only_readable}', keys)}"
            cursor.execute(readable(cursor, select, _ROW_KINDS), values)
            return cursor.fetchall()

        return [_log(group, row) for row in self._connection.run(ask)]

    def count_received(self, group: str, start: datetime, end: datetime) -> dict[str, int]:
        values = {"group": group, "start": start, "end": end}

        def ask(cursor: Cursor) -> list[tuple[Any, ...]]:
            topics = only_readable(cursor, "l.topic")
            cursor.execute(_SQL["count_received"].replace("{only_readable}", topics), values)
            return cursor.fetchall()

        return dict(self._connection.run(ask))

    def highest_logged(
        self, group: str, topic: str, ends: Mapping[tuple[int, str], int]
    ) -> dict[tuple[int, str], int]:
        rows = [(queue_id, epoch, end) for (queue_id, epoch), end in ends.items()]
        values = {"group": group, "topic": topic, **columns(rows, ("queues", "epochs", "ends"))}
        found = self._connection.rows(_SQL["highest_logged"], values)
        return {(queue_id, epoch): offset for queue_id, epoch, offset in found}

    def check(self) -> list[Finding]:
        return [*check(self._connection, CONSUMER), check_identity(self._connection)]

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


def _parts(cursor: Cursor, group: str, since: datetime, number: int, worth: float) -> list[Part]:
    """Ranges of equal length from `since` to now; the last has no end. The estimate may be wrong by any factor, so each part
    ends after twice its share of what the scan is worth: what it leaves out is looked up by key."""
    cursor.execute(_SQL["clock"])
    ((now,),) = cursor.fetchall()
    step = (now - since) / number
    ends = [*(since + step * place for place in range(number)), "infinity"]
    done = f"SELECT l.consumer_group, {_SQL['rule_columns']}, {_SQL['broken']} AS log_broken {_SQL['done_between']}"
    parts, most = [], min(_MOST_OF_PART, int(2 * worth / number) + 1)
    for start, end in pairwise(ends):
        select = readable(cursor, done, PART_COLUMNS["logs"])
        text = cursor.mogrify(
            select, {"group": group, "start": start, "end": end, "most": most}
        ).decode()
        parts.append(
            Part(
                {
                    "logs": f"SELECT {', '.join(PART_COLUMNS['logs'])} FROM ({text}) AS l WHERE log_broken IS NULL"
                }
            )
        )
    return parts


def _of_keys(group: str, keys: Sequence[Key]) -> dict[str, Any]:
    return {"group": group, **columns(keys, ("topics", "message_ids"))}


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
        topic=topic,
        message_id=message_id,
        state="" if state is None else state,
        owner_token=token,
        lease_expires_at=lease,
        attempts=attempts or 0,
        duplicates_stopped=stopped or 0,
        first_received_at=received,
        updated_at=updated,
        consumed_at=consumed,
        conflicts=conflicts or 0,
        last_error=error,
        owner_host=host,
        payload_hash=hashed,
        invalid=broken,
    )
