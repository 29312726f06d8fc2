"""### clean_airflow: Airflow's own history does not grow without end

The duties make some nine thousand runs a day. Each night this deletes what Airflow keeps of runs, tasks, events and sessions that
are older than `BACKSTOP_CLEAN_KEEP` (30 days), by `airflow db clean`, and log files of that age. It does so for every DAG of this
Airflow: without `BACKSTOP_CLEAN_SCHEDULE` it never starts by itself.

    clean_database    clean_logs

What each task does, and what to do when it is red:

- **clean_database** runs `airflow db clean`, table by table. Red: its log names the table, or the connection `airflow_db` is
  missing; clear it, or let the next night go on.
- **clean_logs** deletes old files under Airflow's folder of logs. Red: a file could not be deleted; its log names it.

**Is it safe to run twice?** Yes. A question that has been open for longer is asked again, in a new run of the same name.

**By hand**: *Trigger*, with `dry_run` to count what would go.

**Stop**: pause this DAG.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from backstop.airflow import clean_airflow as clean
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import every


@task(execution_timeout=timedelta(hours=4))
def clean_database(params: dict[str, Any]) -> None:
    """Airflow's tables."""
    clean.clean_database(params["dry_run"])


@task(execution_timeout=timedelta(hours=1))
def clean_logs(params: dict[str, Any]) -> int:
    """Airflow's files."""
    return clean.clean_logs(params["dry_run"])


@dag(
    dag_id="clean_airflow",
    schedule=every("BACKSTOP_CLEAN_SCHEDULE", "none"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    dagrun_timeout=timedelta(hours=6),
    default_args={"owner": "backstop", "retries": 1, "retry_delay": timedelta(minutes=1)},
    params={"dry_run": Param(False, type="boolean", title="Dry run", description="Count what would go, delete nothing")},
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def clean_airflow() -> None:
    """Wiring only. The two do not wait for one another."""
    clean_database()
    clean_logs()


dag = clean_airflow()
