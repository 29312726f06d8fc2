"""Reads the stubs that are due and what each group's logs say of them.

Judges every delivery by the one rule, verdict.sql.
Writes verdicts, outcomes and counts to the staging tables, where the checks look before anything is promoted.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.config.settings import Settings
from backstop.reconcile.judge import judge
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.job import main_of
from backstop.runs.run import Run, find, keep_alive
from backstop.runs.scope import scope_of
from backstop.runs.spark_session import start_session


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Stages the answers for everything due in the run's scope; returns the counts by verdict."""
    control = connect(settings, connections)
    try:
        with keep_alive(lambda: connect(settings, connections), run):
            return judge(spark, settings, connections, control, run, scope_of(run.scope), say=lambda at: print(at, flush=True))
    finally:
        control.close()


def main(arguments: argparse.Namespace) -> Counts:
    """What spark-submit runs: the run was opened by the DAG, and its token fences every write."""
    settings, connections = load(), Connections()
    control = connect(settings, connections)
    try:
        found = find(control, arguments.run_id, arguments.token)
    finally:
        control.close()
    # A session may start slowly, or wait for executors: the run is not dead meanwhile.
    with keep_alive(lambda: connect(settings, connections), found):
        spark = start_session("backstop reconcile")
    return run(spark, settings, connections, found)


if __name__ == "__main__":
    main_of(main)
