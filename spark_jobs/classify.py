"""Reads the open dead letters that the present rules have not classified, in ranges of their ids, each in a task of its own.

Each task asks the groups' logs by key and says of each letter its cause and category, as classify_letters does.
Writes them to the staging table, where the patterns over all of them are found and the checks look before any is promoted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pandas as pd
from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.runs.run import Run, begin_stage
from backstop.spark.job import main_of
from backstop.triage.causes.classify import Logs, bounds, close_stage, rules_of, stage_range

RANGE = 20_000
"""Letters of one task: many tasks even out, and each costs its connections."""
REPORT = "looked long, waits long, away string"
Task = Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]


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
            reports = numbers.mapInPandas(
                _as_task(settings, carried, run, stage, ranges), REPORT
            ).collect()
        away = {
            store: why for report in reports for store, why in json.loads(report["away"]).items()
        }
        looked, waits = (sum(report[name] for report in reports) for name in ("looked", "waits"))
        return close_stage(control, run, stage, rules, looked, waits, away)


def _as_task(
    settings: Settings,
    connections: Connections,
    run: Run,
    stage: int,
    ranges: Sequence[tuple[int, int]],
) -> Task:
    def task(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        rules, logs = rules_of(settings), Logs(settings, connections)
        with closing(connect(settings, connections)) as control, closing(logs):
            for frame in frames:
                for number in frame["id"]:
                    looked, waits = stage_range(control, run, stage, rules, logs, *ranges[number])
                    yield pd.DataFrame(
                        {"looked": [looked], "waits": [waits], "away": [json.dumps(logs.away)]}
                    )

    return task


if __name__ == "__main__":
    main_of("classify", run)
