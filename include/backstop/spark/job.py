"""The command line that every Spark job shares: arguments without secrets, one line of counts, an honest exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from backstop.config.connections import Connections, take_secrets_file
from backstop.config.load import load
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.errors import BackstopError
from backstop.model.mask_secrets import drop_details
from backstop.model.records import Counts
from backstop.runs.run import Run, find, keep_alive
from backstop.spark.session import start_session
from backstop.spark.watch_parent import watch_parent

Job = Callable[[Any, Settings, Connections, Run], Counts]
"""What a job does with a Spark session, for an opened run; returns its counts."""


def main_of(name: str, job: Job) -> None:
    """What spark-submit runs, with --run-id and --token: the run was opened by the DAG, and its token fences every write.

    A BackstopError ends the process with its exit code and its three parts. The process ends itself when its parent dies: an
    orchestrator's kill does not always reach a Spark driver.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-id", type=int, required=True)
    parser.add_argument(
        "--token", required=True, help="the run's fencing token; it opens no door by itself"
    )
    arguments = parser.parse_args()
    watch_parent()
    try:
        take_secrets_file()
        counts = run_job(name, job, arguments.run_id, arguments.token)
    except BackstopError as error:
        print(
            f"backstop: {error.what}\n  unaffected: {error.unaffected}\n  next: {error.next_step}",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(error.exit_code)
    except Exception as error:
        drop_details(error)
        raise
    print(f"backstop: {counts}", flush=True)


def run_job(name: str, job: Job, run_id: int, token: str) -> Counts:
    """The run is kept alive meanwhile: a session may start slowly, or wait for executors."""
    settings, connections = load(), Connections()
    with closing(connect(settings, connections)) as control:
        found = find(control, run_id, token)
    found.phase.begin("start Spark")
    with keep_alive(lambda: connect(settings, connections), found):
        spark = start_session(f"backstop {name}")
        found.phase.begin(name)
        found.phase.measure = partial(count_tasks, spark)
        return job(spark, settings, connections, found)


def count_tasks(spark: Any) -> tuple[int, int] | None:
    """How many tasks of the stages under way are done, and of how many; None: Spark does nothing at the moment."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in stages if stage is not None]
    if not stages:
        return None
    return sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)
