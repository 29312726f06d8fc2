"""Repartitions a frame by a number that each row carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def repartition_by(rows: DataFrame, tasks: int, number: Column | str) -> DataFrame:
    """The rows in so many tasks, each with those of its `number`, an int from 0 to `tasks` - 1.

    A hash of so few numbers puts several into one task and leaves cores idle: of 0 and 1, both. Spark 4.0 has only the hash.
    """
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(tasks, number)
    return rows.repartition(tasks, number)
