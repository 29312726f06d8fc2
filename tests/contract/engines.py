"""The engines that run the portable SQL over plain rows: DuckDB as at a claim, Spark as in a run, PostgreSQL by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from backstop.verdicts import frames
from backstop.verdicts.evaluate import RELATIONS, Engine
from backstop_lab.servers.postgres import Postgres

Rows = Sequence[Mapping[str, Any]]
Run = Callable[[str, Mapping[str, Rows]], list[dict[str, Any]]]
"""(deliveries | delivery | verdict | outcome, its input relations) -> its rows"""

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
            yield {"duckdb": duckdb.rows, "postgresql": in_database, "spark": spark(session)}  # type: ignore[dict-item]
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


def spark(session: Any) -> Run:
    """The same text over temporary views."""

    def run(name: str, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
        for relation, columns in RELATIONS[name].items():
            schema = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
            rows = [tuple(row[column] for column in columns) for row in tables[relation]]
            session.createDataFrame(rows, schema).createOrReplaceTempView(relation)
        return [row.asDict() for row in session.sql(frames.portable_sql(name)).collect()]

    return run
