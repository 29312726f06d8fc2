"""Keeps the counts that the console shows: adds up what changes of rows appended, and writes down how each hour ended."""

from __future__ import annotations

from typing import Any

from backstop.evidence.sources import Sources
from backstop.sql.named import load

_SQL = load("backstop.watch", "queries.sql")


def add_up(cursor: Any) -> None:
    """In the caller's transaction. Rows that somebody else appends meanwhile are neither read nor lost."""
    for query in (
        "add_up_tally",
        "add_up_totals",
        "note_counted_since",
        "count_hour",
        "clear_hour",
        "forget_hours",
        "forget_causes",
        "count_causes",
    ):
        cursor.execute(_SQL[query])


def count_answers(cursor: Any, sources: Sources) -> None:
    """Adds to the totals how long the stores and brokers of this look took to answer."""
    counted = [
        (subject, outcome, bound, times.by_bound[bound], times.seconds[bound])
        for (subject, outcome), times in sources.answers.items()
        for bound in times.by_bound
    ]
    columns = [list(column) for column in zip(*counted, strict=True)] or [[]] * 5
    names = ("subjects", "outcomes", "bounds", "numbers", "seconds")
    cursor.execute(_SQL["count_answers"], dict(zip(names, columns, strict=True)))
