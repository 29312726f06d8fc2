"""Reads the resend requests that are due and recovers what earlier workers left behind.

These are workers and not a query: a send is a side effect that belongs to one claim, so nothing is shuffled or grouped. Each
partition is one worker: it claims, judges again, publishes and settles batch after batch.
Writes attempts and stubs in the shards, and closes the requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime

import pandas as pd
from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model import errors
from backstop.model.errors import BackstopError
from backstop.model.records import Counts
from backstop.resend.claim import find_due
from backstop.resend.run_once import (
    drain_requests,
    now,
    open_worker,
    prepare,
    require_all_reachable,
    run_once,
)
from backstop.runs.run import Run, add_counts
from backstop.spark.cores import cores_of
from backstop.spark.job import main_of

REPORT = "counts string, missed string, error string"


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Everything due, with one worker a core; returns the counts, which it also adds to the run's.

    A task that Spark runs twice is one more worker: claims, send numbers and tokens keep them apart. Raises
    Unavailable after all else was done when something did not answer, RunLost when the run is not ours any
    more.
    """
    if run.dry_run:
        return run_once(settings, connections, run, tell=lambda planned: print(planned, flush=True))
    with open_worker(settings, connections, run) as worker:
        counts = prepare(worker)
        cut = now(worker)
        due = find_due(worker, cut)
        batches = sum(-(-number // settings.resend.batch_size) for number in due.values())
        if due:
            # The refs are resolved here, so that executors elsewhere need neither file nor environment.
            carried = connections.carrying(settings.connection_refs())
            workers = min(cores_of(spark), max(batches, len(due)))
            partition = _as_worker(settings, carried, run, cut)
            frame = spark.range(0, workers, 1, workers).mapInPandas(partition, REPORT)
            errors_of_workers = []
            for report in frame.collect():
                counts += json.loads(report["counts"])
                for subject, why in json.loads(report["missed"]).items():
                    worker.miss(subject, why)
                if report["error"] is not None:
                    errors_of_workers.append(_error(json.loads(report["error"])))
            if errors_of_workers:
                add_counts(worker.control, run, counts)  # what the others have sent
                raise errors_of_workers[0]
        add_counts(worker.control, run, counts)
        require_all_reachable(worker.missed)
    return counts


def _as_worker(
    settings: Settings, connections: Connections, run: Run, cut: datetime
) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    def partition(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for number in frame["id"]:
                counts, missed, error = Counts(), {}, None
                try:
                    with open_worker(settings, connections, run) as worker:
                        counts = drain_requests(worker, cut, first=int(number))
                        missed = worker.missed
                except BackstopError as raised:
                    # As a value: Spark would run the task again, and hide the error's class from the driver.
                    error = json.dumps(
                        [type(raised).__name__, raised.what, raised.unaffected, raised.next_step]
                    )
                yield pd.DataFrame(
                    {
                        "counts": [json.dumps(counts)],
                        "missed": [json.dumps(missed)],
                        "error": [error],
                    }
                )

    return partition


def _error(parts: list[str]) -> BackstopError:
    name, what, kept, next_step = parts
    kind: type[BackstopError] = getattr(errors, name)
    return kind(what, unaffected=kept, next_step=next_step)


if __name__ == "__main__":
    main_of("resend", run)
