"""Other programs' tables in PostgreSQL; see table.Table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any, BinaryIO, TypeVar

from psycopg2.extensions import cursor as Cursor

from backstop.config.mapped import LogMapping, StubMapping, table_parts
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sql.connection import (
    BULK_TIMEOUT,
    STATEMENT_TIMEOUT,
    PostgresConnection,
    columns,
    only_readable,
    readable,
)
from backstop.sql.named import load
from backstop.stores.mapped.capture import FIRST_FOREIGN_TYPE, captured_columns
from backstop.stores.mapped.columns import (
    base_type,
    columns_of,
    log_rows,
    log_values,
    stub_rows,
    stub_values,
    table_of,
    tables_of,
    visible_table,
)
from backstop.stores.mapped.forms import NOT_IN_JSON, in_json, in_postgresql, why_not
from backstop.stores.mapped.states import LOG_OF_ROWS
from backstop.stores.mapped.table import Column, Look, StubRow, missing_table
from backstop.stores.protocol import Scan

_SQL = load("backstop.stores.mapped", "postgresql.sql")
_CHUNK = 10_000
T = TypeVar("T")
_ROW = {
    "topic": "string",
    "message_id": "string",
    "created_at": "bigint",
    "state": "string",
    "row_version": "string",
}


class PostgresTable:
    """See table.Table. What is asked of captured tables alone follows at the end."""

    instants: Mapping[str, Sequence[str]] = {
        "instant": ("timestamp with time zone",),
        "local": ("timestamp without time zone",),
        "milliseconds": ("bigint", "numeric"),
    }

    def __init__(self, subject: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        self.subject, self._url = subject, url
        self._connection = self._connect(patience)
        self._id_types: set[str] | None = None

    def clock(self) -> datetime:
        ((now,),) = self._connection.rows(_SQL["clock"])
        return now  # type: ignore[no-any-return]

    def look(self, mapping: StubMapping, into: BinaryIO) -> Look:
        reader = self._connect(BULK_TIMEOUT)

        def read(cursor: Cursor) -> Look:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            window = {"lookback": mapping.lookback, "tables": tables_of(mapping)}
            cursor.execute(_SQL["window"], window)
            ((window_from, server),) = cursor.fetchall()
            if server is None:
                raise missing_table(self.subject, tables_of(mapping))
            into.seek(0)
            into.truncate()
            text = readable(
                cursor, _of_stubs("rows_of_window", mapping, cursor), _ROW, names=["message_id"]
            )
            values = {**stub_values(mapping), "window_from": window_from}
            cursor.copy_expert(
                f"COPY ({cursor.mogrify(text, values).decode()}) TO STDOUT (FORMAT csv)", into
            )
            return Look(server, window_from, *self._wal(mapping, cursor))

        try:
            return reader.run(read)
        finally:
            reader.close()

    def rows_of_keys(
        self, mapping: StubMapping, keys: Sequence[Key]
    ) -> tuple[Sequence[StubRow], str | None]:
        asked = self._connection.storable_keys(keys)

        def read(cursor: Cursor) -> tuple[Sequence[StubRow], str | None]:
            # Before the rows: what the slot passes meanwhile is seen next time.
            _, slot_at = self._wal(mapping, cursor)
            values = {**stub_values(mapping), **columns(asked, ("topics", "message_ids"))}
            cursor.execute(_of_stubs("rows_of_keys", mapping, cursor), values)
            return cursor.fetchall(), slot_at

        return self._connection.run(read)

    def count_newer(
        self,
        mapping: StubMapping,
        window_from: datetime,
        newest_at: datetime | None,
        topics: Sequence[str] | None,
        limit: int,
    ) -> int:
        values = {
            **stub_values(mapping),
            "window_from": window_from,
            "newest_at": newest_at,
            "topics": None if topics is None else list(topics),
            "limit": limit,
        }

        def count(cursor: Cursor) -> int:
            cursor.execute(_of_stubs("newer", mapping, cursor), values)
            ((number,),) = cursor.fetchall()
            return int(number)

        return self._connection.run(count)

    def newest(self, mapping: StubMapping) -> tuple[datetime | None, float | None]:
        def ask(cursor: Cursor) -> tuple[datetime | None, float | None]:
            cursor.execute(_of_stubs("newest", mapping, cursor), stub_values(mapping))
            ((newest, ahead),) = cursor.fetchall()
            return newest, None if ahead is None else ahead.total_seconds()

        return self._connection.run(ask)

    def log_table(
        self, mapping: LogMapping, group: str, keys: Sequence[Key], wanted: Mapping[str, str]
    ) -> Any:
        from backstop.sql.arrow import concat, read_copy  # needs pyarrow

        asked = self._connection.storable_keys(keys)
        found = [read_copy(b"", wanted)]
        names = {topic: mapping.names_of(topic) for topic in {key.topic for key in asked}}
        for start in range(0, len(asked), _CHUNK):
            rows = [
                (*key, theirs)
                for key in asked[start : start + _CHUNK]
                for theirs in names[key.topic]
            ]
            values = {
                **_of_group(mapping, group),
                **columns(rows, ("topics", "message_ids", "theirs")),
            }

            def read(cursor: Cursor, values: Mapping[str, Any] = values) -> bytes:
                answer = BytesIO()
                select = f"SELECT {', '.join(wanted)} FROM ({_of_logs('log_rows', mapping, cursor)}) AS found"
                text = cursor.mogrify(readable(cursor, select, wanted), values).decode()
                cursor.copy_expert(f"COPY ({text}) TO STDOUT (FORMAT csv)", answer)
                return answer.getvalue()

            found.append(read_copy(self._connection.run(read), wanted))
        return concat(found)

    def cannot_hold(self, mapping: LogMapping, message_ids: Sequence[str]) -> Mapping[str, str]:
        if "." in mapping.message_id:
            return {one: NOT_IN_JSON for one in message_ids if not in_json(one)}
        if self._id_types is None:
            found = [self._column(table, mapping.message_id) for table in mapping.tables]
            self._id_types = {column.kind for column in found if column is not None}
        return {
            one: why_not(kind)
            for kind in sorted(self._id_types)
            for one in message_ids
            if not in_postgresql(kind, one)
        }

    def has_nameless(self, mapping: LogMapping, group: str) -> bool:
        names = [name for name in (mapping.message_id, mapping.topic) if name]
        found = [self._column(table, name) for table in mapping.tables for name in names]
        are_required = all(column is not None and column.required for column in found)
        texts = ["l.message_id", *(["l.theirs"] if mapping.topic else [])]

        def ask(cursor: Cursor) -> bool:
            are_readable = only_readable(cursor, *texts)
            if are_required and are_readable == "true":
                return False
            text = _of_logs("nameless", mapping, cursor).replace("{are_readable}", are_readable)
            cursor.execute(text, _of_group(mapping, group))
            ((has,),) = cursor.fetchall()
            return bool(has)

        return self._connection.run(ask)

    def count_received(
        self, mapping: LogMapping, group: str, start: datetime, end: datetime
    ) -> Mapping[str | None, int]:
        values = {**_of_group(mapping, group), "start": start, "end": end}
        return dict(self._ask_logs("count_received", mapping, values))

    def scan_done(
        self,
        mapping: LogMapping,
        groups: Mapping[str, datetime],
        worth: Mapping[str, float],
        partitions: int,
    ) -> Scan | None:
        return None

    def read_part(self, mapping: LogMapping, part: Any, keep: Callable[[str, Any], T]) -> list[T]:
        raise AssertionError("a mapped log in PostgreSQL gives no parts")

    def lineage(self, mapping: LogMapping) -> str:
        return "not scanned"

    def tables(self, mapping: StubMapping | LogMapping) -> Sequence[str]:
        captured = isinstance(mapping, StubMapping) and mapping.is_captured
        return tables_of(mapping)[:1] if captured else tables_of(mapping)

    def columns(self, mapping: StubMapping | LogMapping) -> Mapping[tuple[str, str], Column]:
        values = {"tables": list(self.tables(mapping)), "columns": list(columns_of(mapping))}
        return {
            (table, column): Column(kind, required)
            for table, column, kind, required in self._connection.rows(
                _SQL["columns"].replace("{table}", visible_table("n.name")), values
            )
        }

    def writes(self, mapping: StubMapping | LogMapping) -> Sequence[tuple[str, str]]:
        found = self._connection.rows(_SQL["writes"], {"tables": list(self.tables(mapping))})
        return [(table, privilege) for table, privilege in found]

    def may_lag(self, mapping: StubMapping | LogMapping) -> bool:
        ((lags,),) = self._connection.rows(_SQL["may_lag"], {"tables": tables_of(mapping)})
        return bool(lags)

    def is_unique(self, mapping: StubMapping | LogMapping, columns: Sequence[str]) -> bool:
        values = {"table": self.tables(mapping)[0], "columns": list(columns)}
        ((unique,),) = self._connection.rows(_SQL["unique"], values)
        return bool(unique)

    def changed_by_a_send(self, mapping: StubMapping) -> Sequence[str] | None:
        return None  # each update changes xmin

    def close(self) -> None:
        self._connection.close()

    def trigger(self, mapping: StubMapping) -> list[tuple[str, str]]:
        """Of a captured table: when its trigger fires (O and A: always), and the function that it calls."""
        schema, name = table_parts(mapping.tables[0])
        values = {"name": name, "schema": schema}
        return [(fires, calls) for fires, calls in self._connection.rows(_SQL["trigger"], values)]

    def foreign_types(self, mapping: StubMapping) -> Mapping[str, str]:
        """Of a captured table: kept columns -> their type, of those whose type is not the server's own."""
        schema, name = table_parts(mapping.tables[0])
        values = {
            "name": name,
            "schema": schema,
            "columns": captured_columns(mapping),
            "first_foreign": FIRST_FOREIGN_TYPE,
        }
        return dict(self._connection.rows(_SQL["foreign_types"], values))

    def slot(self, name: str) -> bool | None:
        """Whether a relay reads the replication slot now; null: there is none."""
        found = self._connection.rows(_SQL["slot"], {"slot": name})
        return bool(found[0][0]) if found else None

    def _connect(self, patience: timedelta) -> PostgresConnection:
        return PostgresConnection(
            self.subject, self._url, statement_timeout=patience, read_only=True
        )

    def _wal(self, mapping: StubMapping, cursor: Cursor) -> tuple[str | None, str | None]:
        """The end of the log and how far the slot is; nulls without a slot. Raises StoreUnavailable when it is gone."""
        if mapping.slot is None:
            return None, None
        cursor.execute(_SQL["wal"], {"slot": mapping.slot})
        ((wal, slot_at),) = cursor.fetchall()
        if slot_at is None:
            raise StoreUnavailable(
                f"{self.subject[:1].upper()}{self.subject[1:]} has no logical replication slot {mapping.slot}.",
                unaffected="Nothing was decided: what its relay has sent is not known.",
                next_step="Start the relay, or correct mapping.slot of it.",
            )
        return wal, slot_at

    def _column(self, table: str, name: str) -> Column | None:
        """Null: there is none (it stands in JSON)."""
        values = {"table": table_of(table).replace("%%", "%"), "column": name}
        text = _SQL["column"].replace("{base_type}", base_type("a.atttypid"))
        found = self._connection.rows(text, values)
        return Column(*found[0]) if found else None

    def _ask_logs(
        self, name: str, mapping: LogMapping, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        def ask(cursor: Cursor) -> list[tuple[Any, ...]]:
            cursor.execute(_of_logs(name, mapping, cursor), values)
            return cursor.fetchall()

        return self._connection.run(ask)


def _of_stubs(name: str, mapping: StubMapping, cursor: Cursor) -> str:
    return _SQL[name].replace("{rows}", stub_rows(mapping, cursor.connection.server_version))


def _of_logs(name: str, mapping: LogMapping, cursor: Cursor) -> str:
    text = _SQL[name].replace("{log_of_rows}", LOG_OF_ROWS)
    return text.replace("{rows}", log_rows(mapping, cursor.connection.server_version))


def _of_group(mapping: LogMapping, group: str) -> dict[str, Any]:
    return {
        **log_values(mapping),
        "group": mapping.groups.get(group, group),
        "by_group": mapping.group is not None,
        "by_topic": mapping.topic is not None,
    }
