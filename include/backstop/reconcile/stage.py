"""Writes what was judged to the staging tables, from the executors and by COPY; nothing is promoted here.

Safe under task retry: a part's rows are written in one transaction with its number, and a part that is there is not written
again: it holds the same rows, because its inputs were held fast. Rows carry the number of the judge's attempt, the stage: nobody
reads one that is not whole (runs/run.py, finish_stage), so that a judge that comes too late fills a stage that nobody reads.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.sql.connection import lift_transaction_limit

if TYPE_CHECKING:
    import pyarrow as pa

STAGED_VERDICT = {
    "run_id": "bigint",
    "stage": "int",
    "shard": "text",
    "topic": "text",
    "message_id": "text",
    "consumer_group": "text",
    "verdict": "text",
    "reason": "text",
    "eligible": "boolean",
    "send_count": "int",
    "case_kind": "text",
    "next_look_at": "timestamptz",
    "evidence": "jsonb",
}
STAGED_STUB = {
    "run_id": "bigint",
    "stage": "int",
    "shard": "text",
    "topic": "text",
    "message_id": "text",
    "old_status": "text",
    "new_status": "text",
    "send_count": "int",
    "deliveries": "int",
    "next_look_at": "timestamptz",
}


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
    """A connection to the control database for one part. The server ends its transaction soon after the part's machine has gone silent:
    who stages the part again waits for it."""
    connection = psycopg2.connect(
        url,
        application_name="backstop stage",
        connect_timeout=10,
        client_encoding="UTF8",
        target_session_attrs="read-write",
        options="-c row_security=off"
        " -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3",
    )
    lift_transaction_limit(connection)
    return connection


def take_part(cursor: Any, run_id: int, stage: int, part: int) -> bool:
    """Whether this transaction is the one that stages the part; waits for another that is at it."""
    cursor.execute(
        "INSERT INTO staged_part (run_id, stage, part) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (run_id, stage, part),
    )
    return bool(cursor.rowcount)


def copy_stubs(cursor: Any, run_id: int, stage: int, rows: pa.Table) -> None:
    """Stages rows of STAGED_STUB (instants in microseconds), but for the first two columns."""
    _copy(cursor, "staged_stub", STAGED_STUB, run_id, stage, rows)


def copy_verdicts(cursor: Any, run_id: int, stage: int, rows: pa.Table) -> None:
    """The same of STAGED_VERDICT."""
    _copy(cursor, "staged_verdict", STAGED_VERDICT, run_id, stage, rows)


def _copy(
    cursor: Any, table: str, columns: Mapping[str, str], run_id: int, stage: int, rows: pa.Table
) -> None:
    import pyarrow as pa

    from backstop.sql.arrow import write_copy

    if rows.num_rows:
        for name, value in (("run_id", run_id), ("stage", stage)):
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        binary = io.BytesIO(write_copy(rows, columns))
        cursor.copy_expert(
            f"COPY {table} ({', '.join(columns)}) FROM STDIN WITH (FORMAT binary)", binary
        )
