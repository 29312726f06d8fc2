"""Judges what was held fast, counts the verdicts and stages them, with what was judged before, in one pass on the executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from time import monotonic
from typing import TYPE_CHECKING, Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.reconcile.judge_batches import Rule, judge_held, outcomes_of
from backstop.reconcile.lookup import HELD, OUTCOMES, tables_of
from backstop.reconcile.stage import connect_staging, copy_stubs, copy_verdicts, take_part
from backstop.sql.named import load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COUNTED = {
    "topic": "string",
    "consumer_group": "string",
    "verdict": "string",
    "deliveries": "bigint",
    "eligible": "bigint",
    "newly": "bigint",
}
_SPENT = {"seconds": "double", "staging": "double"}
_SQL = load("backstop.reconcile", "staged.sql")
Batches = Iterator["pa.RecordBatch"]


def judge_and_stage(
    held: DataFrame,
    rule: Rule,
    run_id: int,
    stage: int,
    settings: Settings,
    connections: Connections,
    counted: Sequence[Mapping[str, Any]] = (),
) -> tuple[list[dict[str, Any]], float]:
    """Judges packets of lookup.HELD, and stages their verdicts and every stub's outcome; returns rows of COUNTED, and which share
    of the time was spent on staging. `counted`: such rows of the packets of lookup.OUTCOMES, which were judged before."""
    url = connections.url(settings.control)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in {**COUNTED, **_SPENT}.items())
    counts: Counter[tuple[str, str, str, str]] = Counter()
    seconds = staging = 0.0

    def add(row: Any) -> None:
        for what in ("deliveries", "eligible", "newly"):
            counts[row["topic"], row["consumer_group"], row["verdict"], what] += int(row[what])

    for row in counted:
        add(row)
    for row in held.mapInArrow(_judge(url, rule, run_id, stage), schema).collect():
        if row["topic"] is None:
            seconds, staging = seconds + row["seconds"], staging + row["staging"]
        else:
            add(row)
    found = [
        {
            "topic": topic,
            "consumer_group": group,
            "verdict": verdict,
            **{
                what: counts[topic, group, verdict, what]
                for what in ("deliveries", "eligible", "newly")
            },
        }
        for topic, group, verdict in sorted({key[:3] for key in counts})
    ]
    return found, staging / seconds if seconds else 0.0


def _judge(url: str, rule: Rule, run_id: int, stage: int) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        import pyarrow as pa

        from backstop.spark.python_daemon import spare_tasks
        from backstop.sql.arrow import arrow_schema
        from backstop.verdicts.evaluate import Engine

        spare_tasks()
        schema = arrow_schema({**COUNTED, **_SPENT})
        counted, staging, begun = [], 0.0, monotonic()
        with closing(Engine()) as engine, ExitStack() as opened:
            staged = _Staging(url, run_id, stage, opened)
            for kind, table in tables_of(batches, {HELD, OUTCOMES}):
                verdicts, outcomes = None, table
                if kind == HELD:
                    batch = judge_held(rule, engine, table)
                    outcomes = outcomes_of(rule, engine, batch)
                    counted.append(engine.query(_SQL["counted"], {"judged": batch.judged}))
                    verdicts = engine.query(_SQL["kept"], {"judged": batch.judged})
                since = monotonic()
                staged.write(verdicts, outcomes)
                staging += monotonic() - since
            since = monotonic()
        ended = monotonic()
        spent = {"seconds": ended - begun, "staging": staging + ended - since}
        for rows in (*(counts.to_pylist() for counts in counted), [spent]):
            full = [{name: row.get(name) for name in schema.names} for row in rows]
            yield from pa.Table.from_pylist(full, schema=schema).to_batches()

    return judge


class _Staging:
    """One task's part, in one transaction that ends with `opened`; a part without rows opens nothing."""

    def __init__(self, url: str, run_id: int, stage: int, opened: ExitStack) -> None:
        self._url, self._run_id, self._stage, self._opened = url, run_id, stage, opened
        self._cursor: Any = None
        self._is_mine = False

    def write(self, verdicts: pa.Table | None, stubs: pa.Table) -> None:
        """Adds rows of STAGED_VERDICT and STAGED_STUB, unless the part was staged by an earlier try of this task."""
        if self._cursor is None:
            self._open()
        if self._is_mine and verdicts is not None:
            copy_verdicts(self._cursor, self._run_id, self._stage, verdicts)
        if self._is_mine:
            copy_stubs(self._cursor, self._run_id, self._stage, stubs)

    def _open(self) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        connection = self._opened.enter_context(closing(connect_staging(self._url)))
        self._opened.enter_context(connection)  # commits, or rolls back
        self._cursor = self._opened.enter_context(connection.cursor())
        self._is_mine = take_part(self._cursor, self._run_id, self._stage, context.partitionId())
