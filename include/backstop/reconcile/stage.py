"""Writes what was judged to the staging tables, from the executors and by COPY; nothing is promoted here.

Safe under task retry: a partition's rows are inserted in one transaction, and a row that is already there is the same
row, because its inputs were held fast. Rows carry the run's stage, so that a judge that comes too late fills a stage
that nobody reads.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg2

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.named_sql import load
from backstop.reconcile.judge_batches import Rule, judge_batches
from backstop.verdicts import frames

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
COUNTED = {
    "topic": "string", "consumer_group": "string", "verdict": "string", "deliveries": "bigint", "eligible": "bigint",
    "newly": "bigint",
}  # fmt: skip
_SPENT = {"seconds": "double", "staging": "double"}
_SQL = load("backstop.reconcile", "staged.sql")
_EVIDENCE = ", ".join(f"'{name}', {name}" for name in frames.EVIDENCE)
_KEPT = f"SELECT {', '.join(STAGED_VERDICT[:-1])}, json_object({_EVIDENCE}) AS evidence {_SQL['kept']}"
_READ = {
    "next_look_at": "timestamptz 'epoch' + next_look_at * interval '1 microsecond'",
    "evidence": "jsonb_strip_nulls(evidence)",
}  # fmt: skip
"""How a column is read from the incoming rows, whose instants are microseconds; all others as they are."""
Batches = Iterator["pa.RecordBatch"]


def stage_judged(
    held: DataFrame, rule: Rule, run_id: int, stage: int, settings: Settings, connections: Connections
) -> tuple[list[dict[str, Any]], float]:
    """Judges rows of lookup.PACKED and stages verdicts and stub outcomes; returns rows of COUNTED, and which share of the time
    was spent on staging."""
    url = connections.url(settings.control)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in {**COUNTED, **_SPENT}.items())
    counts: Counter[tuple[str, str, str, str]] = Counter()
    seconds = staging = 0.0
    for row in held.mapInArrow(_judge(url, rule, run_id, stage), schema).collect():
        if row["topic"] is None:
            seconds, staging = seconds + row["seconds"], staging + row["staging"]
            continue
        for what in ("deliveries", "eligible", "newly"):
            counts[row["topic"], row["consumer_group"], row["verdict"], what] += row[what]
    found = [
        {"topic": topic, "consumer_group": group, "verdict": verdict,
         **{what: counts[topic, group, verdict, what] for what in ("deliveries", "eligible", "newly")}}
        for topic, group, verdict in sorted({key[:3] for key in counts})
    ]  # fmt: skip
    return found, staging / seconds if seconds else 0.0


def stage_stubs(frame: DataFrame, run_id: int, stage: int, settings: Settings, connections: Connections) -> None:
    """Stages rows of STAGED_STUB as they are (instants in microseconds)."""
    url = connections.url(settings.control)

    def copy(batches: Batches) -> Batches:
        import pyarrow as pa

        with closing(_connect(url)) as connection, connection, connection.cursor() as cursor:
            _open(cursor, "staged_stub", STAGED_STUB)
            for batch in batches:
                _fill(cursor, "staged_stub", STAGED_STUB, run_id, stage, pa.Table.from_batches([batch]))
            _keep(cursor, "staged_stub", STAGED_STUB)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([], pa.int64())})

    frame.select(*STAGED_STUB).mapInArrow(copy, "`rows` bigint").collect()


def _judge(url: str, rule: Rule, run_id: int, stage: int) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        import pyarrow as pa

        from backstop.stores.arrow import arrow_schema
        from backstop.verdicts.evaluate import Engine

        schema = arrow_schema({**COUNTED, **_SPENT})
        counted, staging, begun = [], 0.0, monotonic()
        with (
            closing(Engine()) as engine, closing(_connect(url)) as connection, connection, connection.cursor() as cursor,
        ):  # fmt: skip
            _open(cursor, "staged_verdict", STAGED_VERDICT)
            _open(cursor, "staged_stub", STAGED_STUB)
            for batch in judge_batches(rule, batches):
                counted.append(engine.query(_SQL["counted"], {"judged": batch.judged}))
                since = monotonic()
                kept = engine.query(_KEPT, {"judged": batch.judged})
                _fill(cursor, "staged_verdict", STAGED_VERDICT, run_id, stage, kept)
                _fill(cursor, "staged_stub", STAGED_STUB, run_id, stage, batch.outcomes)
                staging += monotonic() - since
            since = monotonic()
            _keep(cursor, "staged_verdict", STAGED_VERDICT)
            _keep(cursor, "staged_stub", STAGED_STUB)
        ended = monotonic()
        spent = {"seconds": ended - begun, "staging": staging + ended - since}
        for rows in (*(counts.to_pylist() for counts in counted), [spent]):
            full = [{name: row.get(name) for name in schema.names} for row in rows]
            yield from pa.Table.from_pylist(full, schema=schema).to_batches()

    return judge


def _connect(url: str) -> Any:
    return psycopg2.connect(url, application_name="backstop stage", connect_timeout=10)


def _open(cursor: Any, table: str, columns: Sequence[str]) -> None:
    cursor.execute(f"CREATE TEMP TABLE incoming_{table} (LIKE {table}) ON COMMIT DROP")
    if "next_look_at" in columns:
        cursor.execute(f"ALTER TABLE incoming_{table} ALTER COLUMN next_look_at TYPE bigint USING NULL")


def _fill(cursor: Any, table: str, columns: Sequence[str], run_id: int, stage: int, rows: pa.Table) -> None:
    import pyarrow as pa
    from pyarrow import csv

    if rows.num_rows == 0:
        return
    given = pa.table({
        "run_id": pa.array([run_id] * rows.num_rows, pa.int64()), "stage": pa.array([stage] * rows.num_rows, pa.int32()),
        **{name: rows.column(name) for name in columns},
    })  # fmt: skip
    buffer = io.BytesIO()
    # Text is quoted and null is not: ids hold any Unicode, quotes and line ends, and the empty text is no null.
    csv.write_csv(given, buffer, csv.WriteOptions(include_header=False, quoting_style="needed"))
    buffer.seek(0)
    cursor.copy_expert(f"COPY incoming_{table} (run_id, stage, {', '.join(columns)}) FROM STDIN WITH (FORMAT csv)", buffer)


def _keep(cursor: Any, table: str, columns: Sequence[str]) -> None:
    read = ", ".join(_READ.get(name, name) for name in columns)
    cursor.execute(
        f"INSERT INTO {table} (run_id, stage, {', '.join(columns)}) SELECT run_id, stage, {read} FROM incoming_{table}"
        " ON CONFLICT DO NOTHING"
    )
