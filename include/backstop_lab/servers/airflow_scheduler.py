"""Run Airflow's scheduler with what the duties import already in memory: Airflow forks every task from it.

Importing Great Expectations takes more than four seconds of a core, compiling its pages 0.2, redis one half, and what the files of
the DAGs import 0.05; each task would do it again. A duty that finds nothing to do spends more on imports than on anything else.
"""

from __future__ import annotations

import importlib
import sys

from backstop.checks import data_docs
from backstop_lab.servers.airflow_process import become_airflow

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


def main() -> None:
    """Takes the scheduler's own arguments, and becomes it."""
    data_docs.prepare()
    for name in FORKED_WITH:
        importlib.import_module(name)
    become_airflow(["scheduler", *sys.argv[1:]])


if __name__ == "__main__":
    main()
