"""Writes what the judge found to the staging tables, from the executors and by COPY; nothing is promoted here.

Safe under task retry: a partition's rows are inserted in one transaction, and a row that is already there is the same
row, because its inputs were held fast. Rows carry the run's stage, so that a judge that comes too late fills a stage
that nobody reads.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
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
                    _copy_batch(cursor, columns, run_id, stage, batch)
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


def _copy_batch(cursor: Any, columns: Sequence[str], run_id: int, stage: int, batch: pa.RecordBatch) -> None:
    import pyarrow as pa
    from pyarrow import csv

    count = batch.num_rows
    table = pa.table({
        "run_id": pa.array([run_id] * count, pa.int64()), "stage": pa.array([stage] * count, pa.int32()),
        **{name: batch.column(name) for name in columns},
    })  # fmt: skip
    buffer = io.BytesIO()
    # Text is quoted and null is not: ids hold any Unicode, quotes and line ends, and the empty text is no null.
    csv.write_csv(table, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    buffer.seek(0)
    cursor.copy_expert(f"COPY incoming (run_id, stage, {', '.join(columns)}) FROM STDIN WITH (FORMAT csv)", buffer)
