"""Run Airflow's scheduler with what the duties import already in memory: LocalExecutor forks every task from it.

`python -m backstop.airflow.scheduler` in place of `airflow scheduler`, with the same arguments. Importing Great Expectations takes
more than four seconds of a core, compiling its pages 0.2, redis one half, and what the files of the DAGs import 0.05; each task
would do it again. A duty that finds nothing to do spends more on imports than on anything else.
"""

from __future__ import annotations

import importlib
import runpy
import sys

FORKED_WITH = (
    "airflow.providers.standard.decorators.python",
    "redis",
    "backstop.config.load",
    "backstop.runs.run",
    "backstop.brokers.open",
    "backstop.duties",
    "backstop.reconcile.run_once",
    "backstop.resend.run_once",
    "backstop.sweep.run_once",
    "backstop.triage.run_once",
    "backstop.watch.run_once",
    "backstop.alerts.run_once",
    "backstop.decisions.questions",
    "backstop.due.look",
    "backstop.airflow.ask_people",
    "backstop.airflow.ask_person",
    "backstop.airflow.decide_case",
    "backstop.airflow.deliver_alerts",
    "backstop.airflow.duty_dag",
    "backstop.airflow.reconcile",
    "backstop.airflow.resend",
    "backstop.airflow.sweep",
    "backstop.airflow.triage",
    "backstop.airflow.watch",
)


def import_duties() -> None:
    """What the duties import."""
    from backstop.checks import data_docs

    data_docs.prepare()
    for name in FORKED_WITH:
        importlib.import_module(name)


def main() -> None:
    """Takes the scheduler's own arguments, and becomes it."""
    import_duties()
    sys.argv = ["airflow", "scheduler", *sys.argv[1:]]
    runpy.run_module("airflow", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
