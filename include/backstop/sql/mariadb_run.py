"""Run a named statement on whatever connection to MariaDB or MySQL the caller has; as `run`, nothing here commits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from backstop.sql.run import Connection, in_style, parameter_style

_PARAMETER = re.compile(r"%\((\w+)\)s")


def run(connection: Connection, statement: str, values: Mapping[str, object]) -> int:
    """How many rows were changed."""
    text, parameters = in_style(parameter_style(connection), *_in_hexadecimal(statement, values))
    with closing(connection.cursor()) as cursor:
        cursor.execute(text, parameters)
        return int(cursor.rowcount)


def fetch(
    connection: Connection, statement: str, values: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Its rows by column name."""
    text, parameters = in_style(parameter_style(connection), *_in_hexadecimal(statement, values))
    with closing(connection.cursor()) as cursor:
        cursor.execute(text, parameters)
        names = [column[0] for column in cursor.description]
        # A dictionary cursor of the application's gives mappings.
        return [
            dict(row) if isinstance(row, Mapping) else dict(zip(names, row, strict=True))
            for row in cursor.fetchall()
        ]


def _in_hexadecimal(
    statement: str, values: Mapping[str, object]
) -> tuple[str, Mapping[str, object]]:
    """The same with bytes as hexadecimal. Drivers (PyMySQL before 1.2.1, mysqlclient) write bytes as a text, which the server reads in the
    connection's character set: some make another text of it, and some find its end too early."""
    texts = {name: value.hex() for name, value in values.items() if isinstance(value, bytes)}

    def unhexed(found: re.Match[str]) -> str:
        text = texts.get(found[1])
        if text is None:
            return found[0]
        # In one sql_mode an empty text is NULL.
        return f"UNHEX({found[0]})" if text else "X''"

    return _PARAMETER.sub(unhexed, statement), {**values, **texts}
