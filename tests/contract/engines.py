"""The two engines that run the portable SQL over plain rows: PostgreSQL as at a claim, Spark as in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from backstop.local.postgres import Postgres
from backstop.verdicts import evaluate, frames

Rows = Sequence[Mapping[str, Any]]
Run = Callable[[str, Mapping[str, Rows]], list[dict[str, Any]]]
"""(deliveries | verdict | outcome, its input relations) -> its rows"""

RELATIONS: Mapping[str, Mapping[str, frames.Columns]] = {
    "deliveries": {
        "stub": frames.STUB, "policy": frames.POLICY, "group_tag": frames.GROUP_TAG,
        "start_offset": frames.START_OFFSET,
    },
    "verdict": {
        "instant": frames.INSTANT, "delivery": frames.DELIVERY, "attempt": frames.ATTEMPT,
        "policy": frames.POLICY, "group_state": frames.GROUP_STATE, "shard_state": frames.SHARD_STATE,
        "progress": frames.PROGRESS, "dead_letter": frames.DEAD_LETTER, "decision": frames.DECISION,
    },
    "outcome": {
        "instant": frames.INSTANT, "stub": frames.STUB, "judged": frames.JUDGED, "no_taker": frames.NO_TAKER,
    },
}  # fmt: skip


@contextmanager
def postgresql(directory: Path) -> Iterator[Run]:
    """The rule as `backstop.verdicts.evaluate` runs it."""
    calls: dict[str, Any] = {
        "deliveries": evaluate.owed, "verdict": evaluate.judge, "outcome": evaluate.outcome,
    }  # fmt: skip
    with Postgres(directory, max_connections=20) as server:
        connection = psycopg2.connect(server.admin_dsn())
        try:

            def run(name: str, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
                with connection, connection.cursor() as cursor:
                    found: list[dict[str, Any]] = calls[name](cursor, tables)
                    return found

            yield run
        finally:
            connection.close()


def spark_engine(session: Any) -> Run:
    """The same text over temporary views."""

    def run(name: str, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
        for relation, columns in RELATIONS[name].items():
            schema = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
            rows = [tuple(row[column] for column in columns) for row in tables[relation]]
            session.createDataFrame(rows, schema).createOrReplaceTempView(relation)
        return [row.asDict() for row in session.sql(frames.portable_sql(name)).collect()]

    return run
