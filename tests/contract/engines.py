"""What runs the portable SQL over plain rows: DuckDB as at a claim, over packets as in a run, Spark SQL, PostgreSQL by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from backstop.reconcile.judge_batches import Rule, judge_batches
from backstop.reconcile.lookup import HELD, with_deliveries
from backstop.reconcile.packets import Packet, as_batch, pack
from backstop.sql.named import load
from backstop.verdicts import frames
from backstop.verdicts.evaluate import RELATIONS, Engine, table
from backstop_lab.servers.postgres import Postgres

Rows = Sequence[Mapping[str, Any]]
Run = Callable[[str, Mapping[str, Rows]], list[dict[str, Any]]]
"""(deliveries | delivery | verdict | outcome, its input relations) -> its rows"""

PACKET = 50
"""Stubs of one packet here, so that rows fall into many."""
_TYPES = {
    "string": "text",
    "int": "int",
    "bigint": "bigint",
    "boolean": "boolean",
    "double": "double precision",
}


@contextmanager
def every_engine(directory: Path, session: Any) -> Iterator[dict[str, Run]]:
    """By name, open until the end."""
    duckdb = Engine()
    with postgresql(directory) as in_database:
        try:
            yield {
                "duckdb": duckdb.rows,  # type: ignore[dict-item]
                "packets": packets(duckdb),
                "postgresql": in_database,
                "spark": spark(session),
            }
        finally:
            duckdb.close()


@contextmanager
def postgresql(directory: Path) -> Iterator[Run]:
    """The text in a database, as somebody would run it by hand over rows of their own."""
    with Postgres(directory, max_connections=20) as server:
        connection = psycopg2.connect(server.admin_dsn())
        try:

            def run(name: str, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
                relations = []
                for relation, columns in RELATIONS[name].items():
                    typed = ", ".join(
                        f"{column} {_TYPES[kind]}" for column, kind in columns.items()
                    )
                    relations.append(
                        f"{relation} AS MATERIALIZED (SELECT * FROM jsonb_to_recordset(%({relation})s::jsonb) AS r({typed}))"
                    )
                with connection, connection.cursor() as cursor:
                    # A literal % in the portable text would be read as a parameter; there is none, or this fails.
                    cursor.execute(
                        f"WITH {', '.join(relations)} SELECT * FROM ({frames.portable_sql(name)}) AS answer",
                        {relation: json.dumps(tables[relation]) for relation in RELATIONS[name]},
                    )
                    names = [column.name for column in cursor.description]
                    return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]

            yield run
        finally:
            connection.close()


def packets(engine: Engine) -> Run:
    """The verdicts of a run's last pass: packets of whole stubs, each with its deliveries' logs and the list of its attempts."""
    texts = load("backstop.reconcile", "packets.sql")

    def run(name: str, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
        assert name == "verdict", "the other texts take no packets"
        given = {
            relation: table(columns, tables.get(relation, ()))
            for relation, columns in RELATIONS[name].items()
        }
        of_stub = [column for column in frames.OWED if column != "consumer_group"]
        seen = {row["stub_id"]: row for row in tables["delivery"]}
        stubs = table({name: frames.OWED[name] for name in of_stub}, list(seen.values()))
        part = {"part": stubs, "attempt": given["attempt"]}
        held = with_deliveries(engine.query(texts["with_attempts"], part), given["delivery"])
        packed = [
            Packet(0, HELD, pack(held.slice(at, PACKET))) for at in range(0, held.num_rows, PACKET)
        ]
        batches = iter([as_batch([packet]) for packet in packed])
        return [
            row
            for batch in judge_batches(Rule(given), engine, batches)
            for row in batch.judged.to_pylist()
        ]

    return run


def spark(session: Any) -> Run:
    """The same text over temporary views."""

    def run(name: str, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
        for relation, columns in RELATIONS[name].items():
            schema = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
            rows = [tuple(row[column] for column in columns) for row in tables[relation]]
            session.createDataFrame(rows, schema).createOrReplaceTempView(relation)
        return [row.asDict() for row in session.sql(frames.portable_sql(name)).collect()]

    return run
