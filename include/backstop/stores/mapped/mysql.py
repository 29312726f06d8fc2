"""Other programs' tables in MySQL and MariaDB; see table.Table.

MySQL lacks what a look in PostgreSQL rests on: a version of each row, and a name of each table. A hash of the row's columns and
the instant at which the table was made stand for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO, TypeVar

from backstop.config.mapped import LogMapping, StubMapping, table_parts
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sql.connection import BULK_TIMEOUT, STATEMENT_TIMEOUT
from backstop.sql.mysql import MysqlConnection, server_of
from backstop.sql.named import load
from backstop.stores.mapped.columns import columns_of
from backstop.stores.mapped.forms import NOT_IN_JSON, in_json, why_not
from backstop.stores.mapped.mysql_columns import (
    ColumnType,
    Writer,
    as_text,
    table_of,
    utc_micros,
    zone_of,
)
from backstop.stores.mapped.mysql_scan import cut, read_range
from backstop.stores.mapped.rows import (
    EPOCH,
    MICROSECOND,
    KeyRange,
    chunks,
    copy_line,
    instant,
    log_row,
    past,
    plan_scan,
)
from backstop.stores.mapped.states import LOG_OF_ROWS
from backstop.stores.mapped.table import Column, Look, StubRow, missing_table
from backstop.stores.protocol import Scan

_SQL = load("backstop.stores.mapped", "mysql.sql")
_MOST_IN_JSON = 2**64 - 1
"""The server keeps a number beyond it as a fraction, in other digits."""
Mapped = StubMapping | LogMapping
T = TypeVar("T")


class MysqlTable:
    """See table.Table."""

    instants: Mapping[str, Sequence[str]] = {
        "instant": ("timestamp",),
        "local": ("datetime",),
        "milliseconds": ("bigint", "decimal"),
    }

    def __init__(self, subject: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        self.subject, self._url = subject, url
        self._connection = MysqlConnection(subject, url, statement_timeout=patience)

    def clock(self) -> datetime:
        return self._connection.run(_clock)

    def look(self, mapping: StubMapping, into: BinaryIO) -> Look:
        reader = MysqlConnection(self.subject, self._url, statement_timeout=BULK_TIMEOUT)
        zone = zone_of(mapping)

        def read(cursor: Any) -> Look:
            window_from = _clock(cursor) - mapping.lookback
            first = (window_from - EPOCH) // MICROSECOND
            server = " ".join([server_of(cursor), *self._made(cursor, mapping)])
            writers = self._writers(cursor, mapping)
            into.seek(0)
            into.truncate()
            for table, writer in writers:
                since = writer.created_since(mapping.created_at, window_from, "window_from")
                statement = _stub_rows(mapping, table, writer, [since])
                cursor.execute(statement, writer.values)
                for row in cursor:
                    topic, message_id, created, state, version = _stub_row(row, zone)
                    if created is None or created >= first:
                        into.write(copy_line((topic, message_id, created, state, version)))
            return Look(server, window_from)

        try:
            return reader.run(read, unbuffered=True)
        finally:
            reader.close()

    def rows_of_keys(
        self, mapping: StubMapping, keys: Sequence[Key]
    ) -> tuple[Sequence[StubRow], str | None]:
        asked, zone = set(keys), zone_of(mapping)

        def read(cursor: Any) -> list[StubRow]:
            found: list[StubRow] = []
            for table, writer in self._writers(cursor, mapping):
                for chunk in chunks(keys):
                    ids = list(dict.fromkeys(key.message_id for key in chunk))
                    narrow = writer.narrow(mapping.message_id, ids, "ids")
                    cursor.execute(_stub_rows(mapping, table, writer, [narrow]), writer.values)
                    found += [_stub_row(row, zone) for row in cursor.fetchall()]
            # The server's comparison takes ids for the same that are not.
            return [row for row in found if row[:2] in asked]

        return self._connection.run(read), None

    def count_newer(
        self,
        mapping: StubMapping,
        window_from: datetime,
        newest_at: datetime | None,
        topics: Sequence[str] | None,
        limit: int,
    ) -> int:
        wanted = {
            theirs: ours
            for theirs, ours in mapping.topics.items()
            if topics is None or ours in topics
        }

        def count(cursor: Any) -> int:
            soon, number = _clock(cursor) + timedelta(minutes=1), 0
            for table, writer in self._writers(cursor, mapping):
                at = mapping.created_at
                where = [
                    *_of_topics(mapping, writer, wanted),
                    writer.compared(at, ">=", window_from, "window_from"),
                    writer.compared(at, "<=", soon, "soon"),
                ]
                if newest_at is not None:
                    where.append(writer.compared(at, ">", newest_at, "newest_at"))
                writer.values["limit"] = limit
                cursor.execute(_fill("newer", table, where), writer.values)
                ((found,),) = cursor.fetchall()
                number += int(found)
            return number

        return min(limit, self._connection.run(count)) if wanted else 0

    def newest(self, mapping: StubMapping) -> tuple[datetime | None, float | None]:
        def ask(cursor: Any) -> tuple[datetime | None, float | None]:
            newest: datetime | None = None
            for table, writer in self._writers(cursor, mapping):
                column = mapping.created_at.replace("`", "``").replace("%", "%%")
                words = {"newest": writer.instant_of(f"MAX(t.`{column}`)")}
                where = _of_topics(mapping, writer, mapping.topics)
                cursor.execute(_fill("newest", table, where, words), writer.values)
                ((micros,),) = cursor.fetchall()
                at = instant(utc_micros(micros, zone_of(mapping)))
                newest = at if newest is None or (at is not None and at > newest) else newest
            ahead = None if newest is None else (newest - _clock(cursor)).total_seconds()
            return newest, ahead

        return self._connection.run(ask)

    def log_table(
        self, mapping: LogMapping, group: str, keys: Sequence[Key], wanted: Mapping[str, str]
    ) -> Any:
        import pyarrow as pa  # which not every caller has

        from backstop.sql.arrow import arrow_schema

        rows: list[dict[str, Any]] = []
        for chunk in chunks(keys):
            rows += self._connection.run(partial(self._logs_of, mapping, group, chunk))
        shown = [{name: row[name] for name in wanted} for row in rows]
        return pa.Table.from_pylist(shown, schema=arrow_schema(wanted))

    def _logs_of(
        self, mapping: LogMapping, group: str, keys: Sequence[Key], cursor: Any
    ) -> list[dict[str, Any]]:
        now, zone = _clock(cursor), zone_of(mapping)
        names = {
            theirs: topic
            for topic in dict.fromkeys(key.topic for key in keys)
            for theirs in mapping.names_of(topic)
        }
        values: dict[str, Any] = {}
        selects = []
        for table, writer in self._writers(cursor, mapping, values):
            ids = list(dict.fromkeys(key.message_id for key in keys))
            words = {
                "topic": "''" if mapping.topic is None else writer.ours(names),
                "message_id": writer.exact(mapping.message_id),
                "kind": writer.kind(),
                "received_at": writer.instant(mapping.received_at),
                "done_at": writer.instant(mapping.done_at),
            }
            where = [
                writer.narrow(mapping.message_id, ids, "ids"),
                *_may_be_of_group(mapping, group, writer),
                *_of_topics(mapping, writer, names),
            ]
            selects.append(_fill("log_rows_of_table", table, where, words))
        text = _SQL["log_rows"].replace("{log_of_rows}", LOG_OF_ROWS)
        cursor.execute(text.replace("{rows}", " UNION ALL ".join(selects)), values)
        found = {
            (topic, as_text(message_id)): rest for topic, message_id, *rest in cursor.fetchall()
        }
        answer = []
        for key in dict.fromkeys(keys):
            row = found.get(("" if mapping.topic is None else key.topic, key.message_id))
            if row is not None:
                state, broken, *instants, copies = row
                updated, received = (past(utc_micros(at, zone), now) for at in instants)
                answer.append(log_row(key, state, broken, updated, received, copies))
        return answer

    def cannot_hold(self, mapping: LogMapping, message_ids: Sequence[str]) -> Mapping[str, str]:
        odd: dict[str, str] = {}
        for _, writer in self._connection.run(lambda cursor: self._writers(cursor, mapping)):
            its = writer.type_of(mapping.message_id)
            for one in message_ids:
                if its is None and not in_json(one, most=_MOST_IN_JSON):
                    odd[one] = NOT_IN_JSON
                elif its is not None and not its.holds(one):
                    odd[one] = why_not(its.written)
        return odd

    def has_nameless(self, mapping: LogMapping, group: str) -> bool:
        def ask(cursor: Any) -> bool:
            for table, writer in self._writers(cursor, mapping):
                missing = [
                    writer.has_no_text(name)
                    for name in (mapping.message_id, mapping.topic)
                    if name and not _is_required(writer.type_of(name))
                ]
                if missing:
                    where = [*_may_be_of_group(mapping, group, writer), f"({' OR '.join(missing)})"]
                    cursor.execute(_fill("nameless", table, where), writer.values)
                    if cursor.fetchall()[0][0]:
                        return True
            return False

        return self._connection.run(ask)

    def count_received(
        self, mapping: LogMapping, group: str, start: datetime, end: datetime
    ) -> Mapping[str | None, int]:
        def ask(cursor: Any) -> Mapping[str | None, int]:
            found: dict[str | None, int] = {}
            if mapping.received_at is None:
                return found
            for table, writer in self._writers(cursor, mapping):
                where = [
                    *_of_group(mapping, group, writer),
                    writer.compared(mapping.received_at, ">=", start, "start"),
                    writer.compared(mapping.received_at, "<", end, "end"),
                ]
                topic = "NULL" if mapping.topic is None else writer.exact(mapping.topic)
                cursor.execute(
                    _fill("count_received", table, where, {"topic": topic}), writer.values
                )
                for theirs, number in cursor.fetchall():
                    name = as_text(theirs)
                    found[name] = found.get(name, 0) + int(number)
            return found

        return self._connection.run(ask)

    def scan_done(
        self,
        mapping: LogMapping,
        groups: Mapping[str, datetime],
        worth: Mapping[str, float],
        partitions: int,
    ) -> Scan | None:
        """One pass for all groups. Null where rows name no topic: each would stand for a message of every topic."""
        if mapping.topic is None:
            return None

        def plan(cursor: Any) -> Scan:
            counted = []
            for table in mapping.tables:
                cursor.execute(_SQL["rows"], _named(table))
                counted.append(sum(int(number) for (number,) in cursor.fetchall()))
            return plan_scan(
                mapping,
                groups,
                worth,
                counted,
                lambda table, place, theirs, since, rows: cut(
                    cursor, table_of(table), _named(table), place, theirs, since, rows, partitions
                ),
            )

        return self._connection.run(plan)

    def read_part(
        self, mapping: LogMapping, part: KeyRange, keep: Callable[[str, Any], T]
    ) -> list[T]:
        reader = MysqlConnection(self.subject, self._url, statement_timeout=BULK_TIMEOUT)

        def read(cursor: Any) -> list[T]:
            table, writer = self._writers(cursor, mapping)[part.place]
            return read_range(cursor, mapping, table, writer, part, keep)

        try:
            return reader.run(read, unbuffered=True)
        finally:
            reader.close()

    def lineage(self, mapping: LogMapping) -> str:
        return self._connection.run(
            lambda cursor: " ".join([server_of(cursor), *self._made(cursor, mapping)])
        )

    def tables(self, mapping: Mapped) -> Sequence[str]:
        return [table_of(table).replace("%%", "%") for table in mapping.tables]

    def columns(self, mapping: Mapped) -> Mapping[tuple[str, str], Column]:
        def ask(cursor: Any) -> Mapping[tuple[str, str], Column]:
            found = {}
            for table, shown in zip(mapping.tables, self.tables(mapping), strict=True):
                types = _types(cursor, table)
                for name in columns_of(mapping):
                    its = types.get(name.lower())
                    if its is not None:
                        found[shown, name] = Column(its.kind, _is_required(its))
            return found

        return self._connection.run(ask)

    def writes(self, mapping: Mapped) -> Sequence[tuple[str, str]]:
        def ask(cursor: Any) -> Sequence[tuple[str, str]]:
            found = []
            for table, shown in zip(mapping.tables, self.tables(mapping), strict=True):
                cursor.execute(_SQL["writes"], _named(table))
                found += [(shown, privilege) for (privilege,) in cursor.fetchall()]
            return sorted(found)

        return self._connection.run(ask)

    def may_lag(self, mapping: Mapped) -> bool:
        return False  # a connection refuses such a server

    def is_unique(self, mapping: Mapped, columns: Sequence[str]) -> bool:
        def ask(cursor: Any) -> bool:
            cursor.execute(_SQL["unique"], _named(mapping.tables[0]))
            indexes: dict[str, set[str | None]] = {}
            for index, column in cursor.fetchall():
                indexes.setdefault(index, set()).add(column and column.lower())
            known = {column.lower() for column in columns}
            return any(of_index <= known for of_index in indexes.values())

        return self._connection.run(ask)

    def changed_by_a_send(self, mapping: StubMapping) -> Sequence[str] | None:
        writers = self._connection.run(lambda cursor: self._writers(cursor, mapping))
        return writers[0][1].changed_by_a_send()

    def close(self) -> None:
        self._connection.close()

    def _writers(
        self, cursor: Any, mapping: Mapped, values: dict[str, Any] | None = None
    ) -> list[tuple[str, Writer]]:
        """(table, what writes of it) for each table, which share `values`, or have their own. Raises StoreUnavailable."""
        writers = []
        for place, table in enumerate(mapping.tables):
            types = _types(cursor, table)
            if not types:
                raise missing_table(self.subject, self.tables(mapping))
            missing = [name for name in columns_of(mapping) if name.lower() not in types]
            if missing:
                raise StoreUnavailable(
                    f"{table} of {self.subject} has no column {', '.join(missing)}, or this login may not read it.",
                    unaffected="Nothing was decided without it.",
                    next_step="Correct the mapping, or grant SELECT on the table; the next run reads it again.",
                )
            own = {} if values is None else values
            writers.append((table_of(table), Writer(mapping, types, own, place)))
        return writers

    def _made(self, cursor: Any, mapping: Mapped) -> Iterator[str]:
        """When each table was made. Raises StoreUnavailable."""
        for table in mapping.tables:
            cursor.execute(_SQL["made"], _named(table))
            found = cursor.fetchall()
            if not found:
                raise missing_table(self.subject, self.tables(mapping))
            yield str(found[0][0])


def _clock(cursor: Any) -> datetime:
    cursor.execute(_SQL["clock"])
    ((now,),) = cursor.fetchall()
    return now.replace(tzinfo=UTC)  # type: ignore[no-any-return]


def _types(cursor: Any, table: str) -> dict[str, ColumnType]:
    cursor.execute(_SQL["columns"], _named(table))
    return {
        name.lower(): ColumnType(name, kind.lower(), written, charset, length, bool(required))
        for name, kind, written, charset, length, required in cursor.fetchall()
    }


def _named(table: str) -> dict[str, str | None]:
    schema, name = table_parts(table)
    return {"schema": schema, "name": name}


def _stub_rows(mapping: StubMapping, table: str, writer: Writer, where: Sequence[str]) -> str:
    words = {
        "topic": writer.ours(mapping.topics),
        "message_id": writer.exact(mapping.message_id),
        "created_at": writer.instant(mapping.created_at),
        "state": writer.state(),
        "version": writer.version(),
    }
    return _fill("stub_rows", table, [*where, *_of_topics(mapping, writer, mapping.topics)], words)


def _of_topics(mapping: Mapped, writer: Writer, names: Mapping[str, str]) -> list[str]:
    """The conditions that hold for rows of these topics (theirs -> ours) that `only` takes."""
    topics = [] if mapping.topic is None else [writer.is_one_of(mapping.topic, [*names], "named")]
    return [*topics, *writer.only()]


def _of_group(mapping: LogMapping, group: str, writer: Writer) -> list[str]:
    if mapping.group is None:
        return writer.only()
    theirs = mapping.groups.get(group, group)
    return [writer.is_one_of(mapping.group, [theirs], "its_group"), *writer.only()]


def _may_be_of_group(mapping: LogMapping, group: str, writer: Writer) -> list[str]:
    """The same, or of rows whose group cannot be read."""
    if mapping.group is None or _is_required(writer.type_of(mapping.group)):
        return _of_group(mapping, group, writer)
    its, *only = _of_group(mapping, group, writer)
    return [f"({its} OR {writer.has_no_text(mapping.group)})", *only]


def _fill(
    name: str, table: str, where: Sequence[str], words: Mapping[str, str] | None = None
) -> str:
    given = {"table": table, "where": " AND ".join(where) or "TRUE", **(words or {})}
    text = _SQL[name]
    for word, value in given.items():
        text = text.replace("{" + word + "}", value)
    return text


def _stub_row(row: Sequence[Any], zone: Any) -> StubRow:
    topic, message_id, created, state, version = row
    return topic, as_text(message_id), utc_micros(created, zone), state, version


def _is_required(its: ColumnType | None) -> bool:
    """Whether each row has a text there: bytes may be no text, and a field of JSON may not be there."""
    return its is not None and its.required and its.is_text
