"""Deals the rows of a frame into tasks by a number that each row carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData


def by_number(rows: DataFrame, numbers: int, column: str) -> GroupedData:
    """The rows grouped by `column`, which holds 0 to `numbers` - 1: each number is a task of its own.

    A hash of so few numbers puts several into one task and leaves cores idle: of 0 and 1, both. Spark 4.0 has only the hash.
    """
    dealt = rows.repartitionById(numbers, column) if hasattr(rows, "repartitionById") else rows
    return dealt.groupBy(column)
