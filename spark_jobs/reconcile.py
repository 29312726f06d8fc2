"""Reads the stubs that are due and what each group's logs say of them.

Judges every delivery by the one rule, verdict.sql.
Writes verdicts, outcomes and counts to the staging tables, where the checks look before anything is promoted.
"""

from __future__ import annotations

from contextlib import closing

from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.reconcile.judge import judge
from backstop.runs.run import Run
from backstop.runs.scope import scope_of
from backstop.spark.job import main_of


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Stages the answers for everything due in the run's scope; returns the counts by verdict."""
    with closing(connect(settings, connections)) as control:
        return judge(
            spark,
            settings,
            connections,
            control,
            run,
            scope_of(run.scope),
            say=lambda at: print(at, flush=True),
        )


if __name__ == "__main__":
    main_of("reconcile", run)
