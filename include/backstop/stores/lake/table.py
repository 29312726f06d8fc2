"""Other programs' lake tables (Iceberg, Parquet), read by the Spark of this process; see mapped.table.Table.

All that is asked after one `refresh` is answered from one snapshot. A lake has no clock, no privileges that Spark could list,
and no index: what is asked by key filters the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.errors import StoreUnavailable
from backstop.model.records import EARLIEST, Key
from backstop.stores.lake.columns import (
    INSTANTS,
    log_rows,
    nameless_rows,
    stub_rows,
    type_of,
)
from backstop.stores.lake.snapshot import Snapshot, explained, present_snapshot, spark_session
from backstop.stores.mapped.columns import columns_of
from backstop.stores.mapped.table import Column, Look, StubRow
from backstop.stores.protocol import Scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
_KEYS = 1_000
"""Of one filter over the snapshot."""
_TEXTS = ("string", "binary", "char", "varchar")
_NUMBERS = ("integer", "long", "short", "byte")


class LakeTable:
    """See mapped.table.Table."""

    instants: Mapping[str, Sequence[str]] = INSTANTS

    def __init__(self, subject: str, url: str, mapping: StubMapping | LogMapping) -> None:
        self.subject, self._url, self._mapping = subject, url, mapping
        self._snapshot: Snapshot | None = None
        self._nameless: dict[str, bool] = {}

    def refresh(self) -> Snapshot:
        """The newest snapshot, which all that follows is read from."""
        self.close()
        session = spark_session(self.subject)
        self._snapshot = present_snapshot(self.subject, self._url, self._mapping, session)
        return self._snapshot

    def snapshot(self) -> Snapshot:
        return self._snapshot or self.refresh()

    def clock(self) -> datetime:
        raise AssertionError("a lake table has no clock")

    def look(self, mapping: StubMapping, into: BinaryIO) -> Look:
        snapshot = self.refresh()
        since = (snapshot.written_at or datetime.now(UTC)) - mapping.lookback
        found = self._stub_rows(mapping).where(
            f"created_at IS NULL OR created_at >= {_micros(since)}"
        )
        with explained(self.subject, mapping.tables[0]):
            into.seek(0)
            into.truncate()
            for row in found.mapInArrow(_as_csv, "csv binary").toLocalIterator():
                into.write(row["csv"])
        return Look(snapshot.identity, since, tells_gone=False)

    def window(self, mapping: StubMapping, topic: str, start: datetime, end: datetime) -> DataFrame:
        """The rows of a topic that were created in [start, end), and those without a time."""
        rows = self._stub_rows(mapping)
        return rows.where(rows.topic == topic).where(
            f"created_at IS NULL OR created_at >= {_micros(start)} AND created_at < {_micros(end)}"
        )

    def rows_of_keys(
        self, mapping: StubMapping, keys: Sequence[Key]
    ) -> tuple[Sequence[StubRow], str | None]:
        raise AssertionError("what a lake table's last look met is remembered")

    def count_newer(
        self,
        mapping: StubMapping,
        window_from: datetime,
        newest_at: datetime | None,
        topics: Sequence[str] | None,
        limit: int,
    ) -> int:
        return 0  # whoever counts runs no Spark: LakeStubs has a look made as often as the lake is written

    def newest(self, mapping: StubMapping) -> tuple[datetime | None, float | None]:
        with explained(self.subject, mapping.tables[0]):
            ((at,),) = self._stub_rows(mapping).selectExpr("max(created_at)").collect()
        newest = None if at is None else _EPOCH + timedelta(microseconds=at)
        return newest, None if newest is None else (newest - datetime.now(UTC)).total_seconds()

    def logs(self, mapping: LogMapping, groups: Mapping[str, Sequence[str]]) -> DataFrame:
        """Every key that these groups have a row of, by topic, with its log; see columns.log_rows."""
        snapshot = self.snapshot()
        self._require(mapping)
        with explained(self.subject, mapping.tables[0]):
            frame = snapshot.frame
            return frame.sparkSession.sql(log_rows(mapping, frame.schema, groups), rows=frame)

    def log_table(
        self, mapping: LogMapping, group: str, keys: Sequence[Key], wanted: Mapping[str, str]
    ) -> Any:
        import pyarrow as pa
        from pyspark.sql import functions as f

        from backstop.sql.arrow import arrow_schema, concat

        found = [arrow_schema(wanted).empty_table()]
        for start in range(0, len(keys), _KEYS):
            asked = keys[start : start + _KEYS]
            ids = list(dict.fromkeys(key.message_id for key in asked))
            topics = list(dict.fromkeys(key.topic for key in asked))
            rows = self.logs(mapping, {group: topics}).where(f.col("message_id").isin(ids))
            with explained(self.subject, mapping.tables[0]):
                table = rows.select(*wanted).toArrow().cast(arrow_schema(wanted))
            mine = set(asked)
            pairs = zip(
                *(table.column(n).to_pylist() for n in ("topic", "message_id")), strict=True
            )
            # An empty list would be of no type, which nothing is filtered by.
            found.append(table.filter(pa.array([Key(*pair) in mine for pair in pairs], pa.bool_())))
        return concat(found)

    def cannot_hold(self, mapping: LogMapping, message_ids: Sequence[str]) -> Mapping[str, str]:
        return {}  # other columns than texts are refused; see nameless_rows for ids in JSON

    def has_nameless(self, mapping: LogMapping, group: str) -> bool:
        if group not in self._nameless:
            frame = self.snapshot().frame
            self._require(mapping)
            with explained(self.subject, mapping.tables[0]):
                text = nameless_rows(mapping, frame.schema, group)
                found = frame.sparkSession.sql(text, rows=frame).collect()
            self._nameless[group] = bool(found)
        return self._nameless[group]

    def count_received(
        self, mapping: LogMapping, group: str, start: datetime, end: datetime
    ) -> Mapping[str | None, int]:
        return {}  # see LakeLogs

    def scan_done(
        self,
        mapping: LogMapping,
        groups: Mapping[str, datetime],
        worth: Mapping[str, float],
        partitions: int,
    ) -> Scan | None:
        return None  # it is read whole, see LakeLogs.read_whole

    def read_part(self, mapping: LogMapping, part: Any, keep: Callable[[str, Any], T]) -> list[T]:
        raise AssertionError("a lake table gives no parts")

    def lineage(self, mapping: LogMapping) -> str:
        return "not scanned"

    def tables(self, mapping: StubMapping | LogMapping) -> Sequence[str]:
        return mapping.tables

    def columns(self, mapping: StubMapping | LogMapping) -> Mapping[tuple[str, str], Column]:
        fields = {field.name: field for field in self.snapshot().frame.schema.fields}
        return {
            (mapping.tables[0], name): Column(
                fields[name].dataType.simpleString(), not fields[name].nullable
            )
            for name in columns_of(mapping)
            if name in fields
        }

    def writes(self, mapping: StubMapping | LogMapping) -> Sequence[tuple[str, str]]:
        return []

    def may_lag(self, mapping: StubMapping | LogMapping) -> bool:
        return False  # it denies up to its snapshot alone

    def is_unique(self, mapping: StubMapping | LogMapping, columns: Sequence[str]) -> bool:
        return False

    def changed_by_a_send(self, mapping: StubMapping) -> Sequence[str] | None:
        return None  # any column's value

    def close(self) -> None:
        self._snapshot, self._nameless = None, {}

    def misfits(self, mapping: StubMapping | LogMapping) -> list[str]:
        """What of the mapping the snapshot's columns do not fit, each as a sentence."""
        fields = {field.name: field.dataType for field in self.snapshot().frame.schema.fields}
        missing = [name for name in columns_of(mapping) if name not in fields]
        if missing:
            has = ", ".join(fields)
            return [f"it has no column {name}, only {has}" for name in missing]
        wrong = []
        for column in _times(mapping):
            kind = fields[column].simpleString()
            if kind not in INSTANTS[mapping.times]:
                fit = ", ".join(INSTANTS[mapping.times])
                wrong.append(f"{column} is {kind}, and times: {mapping.times} takes {fit}")
        keys = [mapping.message_id, mapping.topic]
        if isinstance(mapping, LogMapping):
            keys.append(mapping.group)
        for key in keys:
            its = None if key is None else type_of(fields, key)
            if key is None or its is None:
                continue
            # A number equals many texts: an id of a stub that is written otherwise would look absent.
            if its.typeName() not in _TEXTS + (
                _NUMBERS if isinstance(mapping, StubMapping) else ()
            ):
                wrong.append(f"{key} is {its.simpleString()}, and must be a text")
        return wrong

    def _require(self, mapping: StubMapping | LogMapping) -> None:
        if wrong := self.misfits(mapping):
            raise StoreUnavailable(
                f"{self.subject[:1].upper()}{self.subject[1:]}: the lake table {mapping.tables[0]} does not fit its mapping:"
                f" {'; '.join(wrong)}.",
                unaffected="Nothing was decided without it, and nothing else depends on it.",
                next_step="Correct the mapping (names are as the table has them); the next run reads it again.",
            )

    def _stub_rows(self, mapping: StubMapping) -> DataFrame:
        frame = self.snapshot().frame
        self._require(mapping)
        with explained(self.subject, mapping.tables[0]):
            return frame.sparkSession.sql(stub_rows(mapping, frame.schema), rows=frame)


_EPOCH = datetime.fromtimestamp(0, UTC)


def _times(mapping: StubMapping | LogMapping) -> list[str]:
    if isinstance(mapping, StubMapping):
        return [mapping.created_at]
    return [name for name in (mapping.received_at, mapping.done_at) if name is not None]


def _micros(at: datetime) -> int:
    return (max(at, EARLIEST) - _EPOCH) // timedelta(microseconds=1)


def _as_csv(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows of StubRow as PostgreSQL takes them: texts in quotes, so that an empty one is no null."""
    import io

    import pyarrow as pa
    from pyarrow import csv

    for batch in batches:
        text = io.BytesIO()
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        csv.write_csv(pa.Table.from_batches([batch]), text, options)
        yield pa.RecordBatch.from_pydict({"csv": [text.getvalue()]}, pa.schema({"csv": "binary"}))
