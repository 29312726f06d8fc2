"""Run a named statement on whatever connection to MariaDB or MySQL the caller has; as `run`, nothing here commits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from backstop.sql.run import Connection, in_style, parameter_style


def run(connection: Connection, statement: str, values: Mapping[str, object]) -> int:
    """How many rows were changed."""
    text, parameters = in_style(parameter_style(connection), statement, values)
    with closing(connection.cursor()) as cursor:
        cursor.execute(text, parameters)
        return int(cursor.rowcount)


def fetch(
    connection: Connection, statement: str, values: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Its rows by column name."""
    text, parameters = in_style(parameter_style(connection), statement, values)
    with closing(connection.cursor()) as cursor:
        cursor.execute(text, parameters)
        names = [column[0] for column in cursor.description]
        # A dictionary cursor of the application's gives mappings.
        return [
            dict(row) if isinstance(row, Mapping) else dict(zip(names, row, strict=True))
            for row in cursor.fetchall()
        ]
