"""Reads the open dead letters that the present rules have not classified, asks the groups' logs about them, and stages causes.

    dead_letters = mapInArrow(scan_dead_letters)                          ranges of ids, each read by a task of its own
    dead_letters.groupBy("bucket").applyInArrow(classify)                 the logs of a message are asked once, whatever it left

Each dead letter gets its cause and category, as classify_dead_letters gives them in one process. They are written to the staging
table, where the patterns over all of them are found and the checks look before any is promoted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as f

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.runs.run import Run, begin_stage
from backstop.spark.job import main_of
from backstop.spark.repartition import repartition_by
from backstop.triage.causes.classify import (
    Logs,
    Unclassified,
    bounds,
    close_stage,
    pages,
    rules_of,
    stage_bucket,
)

if TYPE_CHECKING:
    import pyarrow as pa

RANGE = 20_000
"""Letters of one task: many tasks even out, and each costs its connections."""
LETTERS = "dead_letter_id bigint, topic string, message_id string, consumer_group string, cause string, error string, invalid string"
REPORT = "looked bigint, waits bigint, away string"


def run(
    spark: SparkSession,
    settings: Settings,
    connections: Connections,
    run: Run,
    *,
    size: int = RANGE,
) -> Counts:
    """Everything open in the run's scope; returns the counts, which it also adds to the run's.

    A task that Spark runs twice stages the same rows once. Errors: RunLost when the run is not ours any more.
    """
    rules = rules_of(settings)
    with closing(connect(settings, connections)) as control:
        stage = begin_stage(control, run)
        ranges = bounds(control, run, rules, size)
        reports = []
        if ranges:
            # The refs are resolved here, so that executors elsewhere need neither file nor environment.
            carried = connections.carrying(settings.connection_refs())
            numbers = spark.range(0, len(ranges), 1, len(ranges))
            letters = numbers.mapInArrow(
                _scan_dead_letters(settings, carried, run, ranges), LETTERS
            )
            classified = _by_message(letters, len(ranges)).applyInArrow(
                _classify(settings, carried, run, stage), REPORT
            )
            reports = classified.collect()
        away = {
            store: why for report in reports for store, why in json.loads(report["away"]).items()
        }
        looked, waits = (sum(report[name] for report in reports) for name in ("looked", "waits"))
        return close_stage(control, run, stage, rules, looked, waits, away)


def _by_message(letters: DataFrame, buckets: int) -> GroupedData:
    """In as many groups, each a task of its own: a message's letters are in one, and those without an id are spread."""
    known = f.coalesce(f.col("message_id"), f.col("dead_letter_id").cast("string"))
    bucket = f.pmod(f.hash("topic", known), f.lit(buckets))
    return repartition_by(letters.withColumn("bucket", bucket), buckets, "bucket").groupBy("bucket")


def _scan_dead_letters(
    settings: Settings, connections: Connections, run: Run, ranges: Sequence[tuple[int, int]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def scan_dead_letters(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        kinds = [pa.int64(), *[pa.string()] * 6]
        names = [column.split()[0] for column in LETTERS.split(", ")]
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        with closing(connect(settings, connections)) as control:
            for batch in numbers:
                for number in batch.column("id").to_pylist():
                    after, until = ranges[number]
                    for page in pages(control, run, rules_of(settings), after=after, until=until):
                        columns = [
                            pa.array(column, kind)
                            for column, kind in zip(zip(*page, strict=True), kinds, strict=True)
                        ]
                        yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return scan_dead_letters


def _classify(
    settings: Settings, connections: Connections, run: Run, stage: int
) -> Callable[[pa.Table], pa.Table]:
    job = uuid4().hex

    def classify(letters: pa.Table) -> pa.Table:
        import pyarrow as pa

        from backstop.runs.worker_memory import remembered

        rows = [
            Unclassified(*row)
            for row in zip(
                *(column.to_pylist() for column in letters.drop_columns("bucket").columns),
                strict=True,
            )
        ]
        logs = Logs(settings, connections, remembered(job))
        with closing(connect(settings, connections)) as control, closing(logs):
            looked, waits = stage_bucket(control, run, stage, rules_of(settings), logs, rows)
        return pa.table({"looked": [looked], "waits": [waits], "away": [json.dumps(logs.away)]})

    return classify


if __name__ == "__main__":
    main_of("classify", run)
