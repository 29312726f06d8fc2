"""How many tasks a Spark session does at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cores_of(spark: SparkSession) -> int:
    """At least 1; 8 where the session is one of Spark Connect, which does not say."""
    return max(1, spark.sparkContext.defaultParallelism) if hasattr(spark, "sparkContext") else 8
