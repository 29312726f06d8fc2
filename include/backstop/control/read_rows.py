"""Reads rows of the control database as dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read(conn: Any, query: str, parameters: Mapping[str, object]) -> list[dict[str, Any]]:
    """The rows of one query by column name, in a transaction of its own."""
    with conn, conn.cursor() as cursor:
        cursor.execute(query, parameters)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
