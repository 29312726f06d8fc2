"""A consumer's own inbox table as a store of logs, read and never written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from psycopg2.extensions import cursor as Cursor

from backstop.brokers.protocol import Finding
from backstop.config.mapped import LogMapping
from backstop.model.records import EARLIEST, LATEST, Key, LogRow
from backstop.sql.connection import PostgresConnection, columns, readable
from backstop.sql.named import load
from backstop.stores.mapped.check import check_logs
from backstop.stores.mapped.columns import log_rows, log_values, table_of
from backstop.stores.protocol import LOG_COLUMNS, Scan

_SQL = load("backstop.stores.mapped", "logs.sql")
_CHUNK = 10_000
_MARGIN = timedelta(minutes=10)
"""Their purge compares with a clock of its own."""
_ROW = {**LOG_COLUMNS, "received_at": "bigint", "copies": "bigint"}
_WRITTEN_AS = {
    "uuid": re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    **dict.fromkeys(("smallint", "integer", "bigint"), re.compile("0|-?[1-9][0-9]*")),
}
"""Type of a column -> how the server writes its values: any other text equals none of them, whatever id it stands for."""
_EPOCH = datetime.fromtimestamp(0, EARLIEST.tzinfo)
T = TypeVar("T")


class MappedLogs:
    """A mapped inbox; see stores.protocol.LogStore. A row proves what it says. Absence proves something only of a group and topic
    of which this mapping has found a message done before: else a mistake in it would make every message look lost."""

    def __init__(self, store: str, url: str, control_url: str, mapping: LogMapping) -> None:
        self._store, self._mapping = store, mapping
        self._theirs = PostgresConnection(f"store {store}", url)
        self._control = PostgresConnection("control", control_url)
        self._id_type: str | None = None

    def __repr__(self) -> str:
        return f"MappedLogs({self._theirs.subject})"

    def clock(self) -> datetime:
        ((now,),) = self._theirs.rows(_SQL["clock"])
        return now  # type: ignore[no-any-return]

    def floor(self, group: str, topic: str | None = None) -> datetime:
        """A message committed since then has a row here if it was done. The end of time while absence proves nothing; the year 1
        where no row is ever deleted."""
        if topic is not None:
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
        if self._may_be_nameless() and self._run("nameless", self._of_group(group))[0][0]:
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
        return None

    def read_part(self, part: Any, keep: Callable[[str, Any], T]) -> list[T]:
        raise AssertionError("a mapped log gives no parts")

    def lineage(self) -> str:
        return "not scanned"

    def continues(self, lineage: str) -> bool:
        return False

    def received_between(
        self, group: str, start: datetime, end: datetime, limit: int
    ) -> list[LogRow]:
        """None: a mapped inbox may hold messages of producers that Backstop does not know, and these are no orphans."""
        return []

    def count_received(self, group: str, start: datetime, end: datetime) -> dict[str, int]:
        found: dict[str, int] = {}
        values = {**self._of_group(group), "start": start, "end": end}
        for theirs, number in self._run("count_received", values):
            topic = self._mapping.topics.get(theirs, theirs)
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

        from backstop.sql.arrow import arrow_schema, concat, read_copy

        asked = self._theirs.storable_keys(keys)
        form = _WRITTEN_AS.get(self._type_of_id())
        odd = [key for key in asked if form is not None and not form.fullmatch(key.message_id)]
        sound = [key for key in asked if form is None or form.fullmatch(key.message_id)]
        found = [
            pa.Table.from_pylist(
                [
                    {
                        **dict.fromkeys(wanted),
                        "topic": key.topic,
                        "message_id": key.message_id,
                        "log_state": "",
                        "log_broken": f"an id that a column of type {self._id_type} cannot hold as it is written",
                    }
                    for key in odd
                ],
                schema=arrow_schema(wanted),
            )
        ]
        for start in range(0, len(sound), _CHUNK):
            rows = [
                (*key, theirs)
                for key in sound[start : start + _CHUNK]
                for theirs in self._names_of(key.topic)
            ]
            values = {
                **self._of_group(group),
                **columns(rows, ("topics", "message_ids", "theirs")),
            }

            def read(cursor: Cursor, values: Mapping[str, Any] = values) -> bytes:
                from io import BytesIO

                answer = BytesIO()
                select = (
                    f"SELECT {', '.join(wanted)} FROM ({self._text('of_keys', cursor)}) AS found"
                )
                text = cursor.mogrify(readable(cursor, select, wanted), values).decode()
                cursor.copy_expert(f"COPY ({text}) TO STDOUT (FORMAT csv)", answer)
                return answer.getvalue()

            found.append(read_copy(self._theirs.run(read), wanted))
        return concat(found)

    def _names_of(self, topic: str) -> list[str]:
        """What the table calls a topic."""
        named = [theirs for theirs, ours in self._mapping.topics.items() if ours == topic]
        return named or [topic]

    def _of_group(self, group: str) -> dict[str, Any]:
        return {
            **log_values(self._mapping),
            "group": self._mapping.groups.get(group, group),
            "by_group": self._mapping.group is not None,
            "by_topic": self._mapping.topic is not None,
        }

    def _type_of_id(self) -> str:
        """The type of the id's column; empty where it stands in JSON."""
        if self._id_type is None:
            found = self._column(self._mapping.tables[0], self._mapping.message_id)
            self._id_type = found[0] if found else ""
        return self._id_type

    def _may_be_nameless(self) -> bool:
        """Whether the table lets a row have no id or no topic."""
        names = [name for name in (self._mapping.message_id, self._mapping.topic) if name]
        found = [self._column(table, name) for table in self._mapping.tables for name in names]
        return not all(column is not None and column[1] for column in found)

    def _column(self, table: str, name: str) -> tuple[str, bool] | None:
        """Its type, and whether each row has a value; null: there is none (it stands in JSON)."""
        values = {"table": table_of(table).replace("%%", "%"), "column": name}
        found = self._theirs.rows(_SQL["column"], values)
        return (found[0][0], found[0][1]) if found else None

    def _text(self, name: str, cursor: Cursor) -> str:
        return _SQL[name].replace(
            "{rows}", log_rows(self._mapping, cursor.connection.server_version)
        )

    def _run(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        def ask(cursor: Cursor) -> list[tuple[Any, ...]]:
            cursor.execute(self._text(name, cursor), values)
            return cursor.fetchall()

        return self._theirs.run(ask)


def _instant(micros: int | None) -> datetime | None:
    if micros is None:
        return None
    return max(EARLIEST, min(LATEST, _EPOCH + timedelta(microseconds=micros)))
