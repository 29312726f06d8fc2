"""### retention: purge what is finished, keep what is still needed

Purges, in small steps and inside a window (`retention.window`, 01:00 to 05:00 UTC): logs of
consumers, closed stubs of producers with their attempts, decided dead letters (their contents
earlier, if the policy says so), and old rows of the control database. One Python process, no Spark:
the work is in the databases, and the steps keep their load low.

    open_run >> purge >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run; outside the window the rest is skipped. Red: another run is alive
  (wait for it), the policy would purge too soon (the message names the setting), or the control
  database is down (restart it).
- **purge** works until nothing is left or the window ends; the next night continues. Red: the log
  says what did not answer; rows that could not be checked stay.
- **close_run** closes the run, whatever happened. Red: the run failed, or a database was down: the
  message names it.

**Is it safe to run twice?** Yes. Each step is one transaction that compares every row with what was
read, and a group's log floor rises before its logs are deleted. If it is killed, the next run
continues.

**What is never purged**: a stub that is pending or exhausted, a log whose stub is open in any
shard, a dead letter that is not decided, and what an open request or case refers to.
docs/how-to/retention-and-audit.md has the whole list.

**By hand**: *Trigger* with `dry_run` to count what would be purged, with `now` to work outside the
window. Or `backstop run retention`.

**Stop**: pause this DAG, or mark the task failed: it ends between two steps. Nothing depends on it
except disk space.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from backstop.airflow import retention as retention_tasks
from backstop.airflow import steps as duty
from backstop.airflow.links import RunLink
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import every


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything while the window is shut."""
    from airflow.sdk.exceptions import AirflowSkipException

    opened = retention_tasks.open_retention(params["dry_run"], params["now"])
    if opened is None:
        raise AirflowSkipException("the window is shut")
    return opened


@task(execution_timeout=timedelta(hours=12))
def purge(opened: dict[str, Any], **context: Any) -> dict[str, int]:
    """The whole purge."""
    return retention_tasks.purge(opened, context["ti"])


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    return duty.close(opened, failed, away=duty.away(context, failed))


@dag(
    dag_id="retention",
    schedule=every("BACKSTOP_RETENTION_SCHEDULE", "5 1 * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=13),
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=15),
    },
    params={
        "now": Param(False, type="boolean", title="Now", description="Also outside the window of backstop.yaml"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Count what would go, take nothing"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def retention() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    purged = purge(opened=opened)
    closed = close_run(opened=opened)

    opened >> purged >> closed
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    for shown in (purged, closed):
        shown.operator.operator_extra_links = (RunLink(),)


dag = retention()
