"""Writes what was judged to the staging tables, from the executors and by COPY; nothing is promoted here.

Safe under task retry: a part's rows are written in one transaction with its number, and a part that is there is not written
again: it holds the same rows, because its inputs were held fast. Rows carry the run's stage, so that a judge that comes too
late fills a stage that nobody reads.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

STAGED_VERDICT = (
    "shard",
    "topic",
    "message_id",
    "consumer_group",
    "verdict",
    "reason",
    "eligible",
    "send_count",
    "case_kind",
    "next_look_at",
    "evidence",
)
STAGED_STUB = (
    "shard",
    "topic",
    "message_id",
    "old_status",
    "new_status",
    "send_count",
    "deliveries",
    "next_look_at",
)
_READ = {"evidence": "jsonb_strip_nulls(evidence)"}
"""How a column is read from the incoming rows; all others as they are."""


def stage_stubs(
    rows: pa.Table, run_id: int, stage: int, settings: Settings, connections: Connections
) -> None:
    """Stages rows of STAGED_STUB as they are (instants in microseconds); once for a stage."""
    with (
        closing(connect_staging(connections.url(settings.control))) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        copy_stubs(cursor, run_id, stage, rows)


def connect_staging(url: str) -> Any:
    return psycopg2.connect(
        url,
        application_name="backstop stage",
        connect_timeout=10,
        client_encoding="UTF8",
        options="-c row_security=off",
    )


def open_incoming(cursor: Any, table: str) -> None:
    cursor.execute(f"CREATE TEMP TABLE incoming_{table} (LIKE {table}) ON COMMIT DROP")


def take_part(cursor: Any, run_id: int, stage: int, part: int) -> bool:
    """Whether this transaction is the one that stages the part; waits for another that is at it."""
    cursor.execute(
        "INSERT INTO staged_part (run_id, stage, part) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (run_id, stage, part),
    )
    return bool(cursor.rowcount)


def copy_stubs(cursor: Any, run_id: int, stage: int, rows: pa.Table) -> None:
    """Stages rows of STAGED_STUB (instants in microseconds)."""
    _copy(cursor, "staged_stub", STAGED_STUB, run_id, stage, rows)


def fill_incoming(
    cursor: Any, table: str, columns: Sequence[str], run_id: int, stage: int, rows: pa.Table
) -> None:
    _copy(cursor, f"incoming_{table}", columns, run_id, stage, rows)


def _copy(
    cursor: Any, table: str, columns: Sequence[str], run_id: int, stage: int, rows: pa.Table
) -> None:
    import pyarrow as pa
    from pyarrow import csv

    if rows.num_rows == 0:
        return
    instants = {"next_look_at": pa.timestamp("us", tz="UTC")}
    given = pa.table(
        {
            "run_id": pa.array([run_id] * rows.num_rows, pa.int64()),
            "stage": pa.array([stage] * rows.num_rows, pa.int32()),
            **{
                name: rows.column(name).cast(instants.get(name, rows.column(name).type))
                for name in columns
            },
        }
    )
    buffer = io.BytesIO()
    # Text is quoted and null is not: ids hold any Unicode, quotes and line ends, and the empty text is no null.
    csv.write_csv(given, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    buffer.seek(0)
    cursor.copy_expert(
        f"COPY {table} (run_id, stage, {', '.join(columns)}) FROM STDIN WITH (FORMAT csv)", buffer
    )


def keep_incoming(cursor: Any, table: str, columns: Sequence[str]) -> None:
    read = ", ".join(_READ.get(name, name) for name in columns)
    cursor.execute(
        f"INSERT INTO {table} (run_id, stage, {', '.join(columns)}) SELECT run_id, stage, {read} FROM incoming_{table}"
        " ON CONFLICT DO NOTHING"
    )
