"""Keeps the counts that the console shows: adds up what changes of rows appended, and writes down how each hour ended."""

from __future__ import annotations

from typing import Any

from backstop.sql.named import load

_SQL = load("backstop.watch", "queries.sql")


def add_up(cursor: Any) -> None:
    """In the caller's transaction. Rows that somebody else appends meanwhile are neither read nor lost."""
    for query in ("add_up_tally", "add_up_totals", "count_hour", "clear_hour", "forget_hours"):
        cursor.execute(_SQL[query])
