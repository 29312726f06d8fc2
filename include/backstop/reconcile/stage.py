"""Writes what the judge found to the staging tables, from the executors and by COPY; nothing is promoted here.

Safe under task retry: a partition's rows are inserted in one transaction, and a row that is already there is the same
row, because its inputs were held fast. Rows carry the run's stage, so that a judge that comes too late fills a stage
that nobody reads.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

STAGED_VERDICT = (
    "shard", "topic", "message_id", "consumer_group", "verdict", "reason", "eligible", "send_count", "case_kind",
    "next_look_at", "evidence",
)  # fmt: skip
STAGED_STUB = (
    "shard", "topic", "message_id", "old_status", "new_status", "send_count", "deliveries", "next_look_at",
)  # fmt: skip
_INSTANTS = {"next_look_at"}


def stage_frame(
    frame: DataFrame, table: str, columns: Sequence[str], run_id: int, stage: int,
    settings: Settings, connections: Connections,
) -> int:  # fmt: skip
    """Copies the frame's `columns` (instants in microseconds) into `table`; returns the rows written."""
    url = connections.url(settings.control)
    counts = frame.select(*columns).mapInArrow(_copy(url, table, columns, run_id, stage), "`rows` bigint").collect()
    return sum(row["rows"] for row in counts)


def _copy(
    url: str, table: str, columns: Sequence[str], run_id: int, stage: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        total = 0
        connection = psycopg2.connect(url, application_name="backstop stage", connect_timeout=10)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(
                    f"CREATE TEMP TABLE incoming (LIKE {table}) ON COMMIT DROP; "
                    + "".join(f"ALTER TABLE incoming ALTER COLUMN {name} TYPE bigint USING NULL; "
                              for name in columns if name in _INSTANTS)
                )  # fmt: skip
                for batch in batches:
                    total += batch.num_rows
                    _copy_rows(cursor, columns, run_id, stage, batch.to_pylist())
                selected = ", ".join(
                    f"timestamptz 'epoch' + {name} * interval '1 microsecond'" if name in _INSTANTS else name
                    for name in columns
                )
                cursor.execute(
                    f"INSERT INTO {table} (run_id, stage, {', '.join(columns)}) "
                    f"SELECT run_id, stage, {selected} FROM incoming ON CONFLICT DO NOTHING"
                )
        finally:
            connection.close()
        yield pa.RecordBatch.from_pydict({"rows": [total]})

    return copy


def _copy_rows(
    cursor: Any, columns: Sequence[str], run_id: int, stage: int, rows: Sequence[Mapping[str, object]]
) -> None:
    # CSV because ids hold any Unicode, quotes and line ends; null is the unquoted empty field (the standard library's
    # writer cannot tell the two apart before Python 3.12).
    lines = (",".join(_field(value) for value in (run_id, stage, *(row[name] for name in columns))) for row in rows)
    buffer = io.StringIO("\n".join(lines) + "\n")
    cursor.copy_expert(
        f"COPY incoming (run_id, stage, {', '.join(columns)}) FROM STDIN WITH (FORMAT csv)", buffer
    )


def _field(value: object) -> str:
    return "" if value is None else '"' + str(value).replace('"', '""') + '"'
