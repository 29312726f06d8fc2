"""Run Airflow's scheduler with what the data checks import already in memory: Airflow forks every task from it.

Importing Great Expectations takes more than four seconds of a core, and each task that runs a suite would do it anew. On a
machine of two cores that is most of what the checks of a run cost.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys

FORKED_WITH = ("great_expectations", "great_expectations.checkpoint", "backstop.quality.data_docs")


def main() -> None:
    """Takes the scheduler's own arguments, and becomes it."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read at the import: nothing is reported to anyone
    for name in FORKED_WITH:
        importlib.import_module(name)
    sys.argv = ["airflow", "scheduler", *sys.argv[1:]]
    runpy.run_module("airflow", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
