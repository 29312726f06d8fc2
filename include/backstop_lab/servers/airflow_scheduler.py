"""Run Airflow's scheduler as `backstop.airflow.scheduler` does, and end as soon as it has ended."""

from __future__ import annotations

import sys

from backstop.airflow.scheduler import import_duties
from backstop_lab.servers.airflow_process import become_airflow


def main() -> None:
    """Takes the scheduler's own arguments, and becomes it."""
    import_duties()
    become_airflow(["scheduler", *sys.argv[1:]])


if __name__ == "__main__":
    main()
