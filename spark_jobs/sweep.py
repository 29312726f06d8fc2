"""Reads the leases that ended, in every consumer database and every bucket of Redis, each part in a task of its own.

Each task looks, asks the log, decides KEEP, REPAIR or RECLAIM, and settles by compare-and-set on what it saw.
Writes states in the logs and in Redis, and the counts by group, host and decision into the control database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

import pandas as pd
from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.runs.run import Run
from backstop.spark.job import main_of
from backstop.sweep.parts import Part, part_of
from backstop.sweep.run_once import LIMIT, groups_of_scope, sweep_all
from backstop.sweep.sweep_part import sweep_part
from backstop.sweep.tally import Differs, SweepDecision, Tally, TallyKey

REPORT = "tally string"


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Every part of the run's scope; returns the counts, which it also adds to the run's.

    A task that Spark runs twice settles nothing twice: each change is a compare-and-set. Raises Unavailable after all else
    was done when something did not answer, RunLost when the run is not ours any more.
    """
    with closing(connect(settings, connections)) as control:
        return sweep_all(
            settings, connections, control, run, _spread(spark, settings, connections, run)
        )


def _spread(
    spark: SparkSession, settings: Settings, connections: Connections, run: Run
) -> Callable[[Sequence[Part], Mapping[str, str]], Iterable[Tally]]:
    # The refs are resolved here, so that executors elsewhere need neither file nor environment.
    carried = connections.carrying(settings.connection_refs())

    def spread(parts: Sequence[Part], walks: Mapping[str, str]) -> Iterator[Tally]:
        if not parts:
            return
        rows = [(part.as_text(), walks.get(part.place, "")) for part in parts]
        numbers = spark.range(0, len(rows), 1, len(rows))
        for report in numbers.mapInPandas(_as_task(settings, carried, run, rows), REPORT).collect():
            tally = read_tally(report["tally"])
            if run.dry_run:
                for line, number in tally.lines.items():
                    print(f"would {line.decision} {number} {line}", flush=True)
            yield tally

    return spread


def _as_task(
    settings: Settings, connections: Connections, run: Run, rows: Sequence[tuple[str, str]]
) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    def task(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for number in frame["id"]:
                text, goes_on = rows[number]
                tally = sweep_part(
                    settings,
                    connections,
                    part_of(text),
                    groups_of_scope(run.scope),
                    goes_on,
                    limit=LIMIT,
                    dry_run=run.dry_run,
                    tell=_show if run.dry_run else None,
                )
                yield pd.DataFrame({"tally": [write_tally(tally)]})

    return task


def _show(told: SweepDecision) -> None:
    print(f"would {told}", flush=True)


def write_tally(tally: Tally) -> str:
    """As a task hands it to the driver."""
    return json.dumps(
        {
            "lines": [
                [*line, number, tally.examples[line]] for line, number in tally.lines.items()
            ],
            "counts": tally.counts,
            "differs": tally.differs,
            "missed": tally.missed,
            "goes_on": tally.goes_on,
        }
    )


def read_tally(text: str) -> Tally:
    """As it was written."""
    said = json.loads(text)
    tally = Tally(counts=Counts(said["counts"]), missed=said["missed"], goes_on=said["goes_on"])
    for *line, number, example in said["lines"]:
        tally.lines[TallyKey(*line)], tally.examples[TallyKey(*line)] = number, example
    tally.differs = [Differs(*row) for row in said["differs"]]
    return tally


if __name__ == "__main__":
    main_of("sweep", run)
