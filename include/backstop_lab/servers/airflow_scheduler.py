"""Run Airflow's scheduler with what the duties import already in memory: Airflow forks every task from it.

Importing Great Expectations takes more than four seconds of a core, and redis one half; each task would do it again. A duty
that finds nothing to do spends more on imports than on anything else.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys

FORKED_WITH = (
    "great_expectations", "great_expectations.checkpoint", "backstop.quality.data_docs",
    "airflow.providers.standard.decorators.python", "redis", "backstop.config.load", "backstop.runs.run", "backstop.brokers.open",
    "backstop.reconcile.count_due", "backstop.reconcile.promote", "backstop.resend.work", "backstop.sweep.run_once",
    "backstop.dead_letters.count_due", "backstop.dead_letters.postpone", "backstop.health.watch", "backstop.alerts.run_once",
    "backstop.cases.questions",
)


def main() -> None:
    """Takes the scheduler's own arguments, and becomes it."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read at the import: nothing is reported to anyone
    for name in FORKED_WITH:
        importlib.import_module(name)
    sys.argv = ["airflow", "scheduler", *sys.argv[1:]]
    runpy.run_module("airflow", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
