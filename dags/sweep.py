"""### sweep: take back the leases of workers that died

Takes back expired leases that nobody completed, renewed or released, corrects Redis where it
disagrees with the database, and frees the stuck records of other programs. Every 30 s
(`sweep_interval`) it counts them, which takes milliseconds. The sweep and its checks start only if
a lease expired (or a sample is due, once an hour).

    open_run >> [audit_before, sweep (Spark from 2000 leases on)] >> audit_after >> [wake] >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and counts; without expired leases the rest is skipped. It also opens a
  case (`repeated_failure`) for messages that fail repeatedly, before the broker gives up on them.
  Red: another run is alive (wait for it), or a database or Redis is down (restart it; the next run
  sweeps the places that answered).
- **audit_before** checks what open_run found. Red: earlier sweeps did not do their work, or a log
  says CONSUMED without a time; leases are taken back even so.
- **sweep** decides KEEP, REPAIR or RECLAIM for each lease, and settles by compare-and-set: in the
  task's own process, and with Spark from 2000 leases on (`BACKSTOP_SPARK_FROM`). Red: the log says
  what happened, what is unaffected and what to do; the next run continues.
- **audit_after** checks the result, and starts the DAGs that have work. Red: the button Data Docs
  shows the check that failed.
- **wake** runs only if **audit_after** failed or could not start: it starts the DAGs that have work
  nevertheless.
- **close_run** closes the run, whatever happened. Red: the run failed, or a database or Redis was
  down: the message names it.

**Is it safe to run twice?** Yes. A lease is taken back only if it is as it was read. A late worker
whose lease was taken back may still finish while nobody else has taken its message.

**What happens next?** The broker delivers the message again. If it has given up, reconcile finds
the delivery STALLED and resends it. A host or handler that loses leases repeatedly becomes a case
(`lease_leak`).

**By hand**: *Trigger* with `group` for one group, `dry_run` to list the decisions. Or
`backstop run sweep`.

**Stop**: pause this DAG. The next delivery of a message takes an expired lease over without any
sweep; only messages without another delivery wait.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, dag, task

from backstop.airflow import steps as duty
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import every
from backstop.airflow.spark_operator import SparkDutyOperator
from backstop.airflow.wake import WORK, wake_after_failure, wake_duties


@task(retries=0)
def open_run(params: dict[str, Any]) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when no lease ended."""
    from airflow.sdk.exceptions import AirflowSkipException

    opened = duty.open_sweep([params["group"]] if params["group"] else [], params["dry_run"])
    if opened is None:
        raise AirflowSkipException("no lease ended")
    return opened


@task
def audit_before(suite: str, opened: dict[str, Any]) -> str:
    """What the sweep meets."""
    return duty.audit(suite, opened)


@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS, outlets=[WORK])
def audit_after(suite: str, opened: str, **context: Any) -> str:
    """Runs after a failed job as well: that is when it matters most. The cases and alerts of the sweep are committed by then."""
    checked = duty.audit(suite, json.loads(opened))
    wake_duties(context)
    return checked


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    return duty.close(opened, failed, away=duty.away(context, failed))


@dag(
    dag_id="sweep",
    schedule=every("BACKSTOP_SWEEP_SCHEDULE", "30s"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=15),
    },
    params={
        "group": Param(None, type=["null", "string"], minLength=1, title="Group", description="Empty: every consumer group"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="List what would be decided, change nothing"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def sweep() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    before = audit_before(suite="leases_before", opened=opened)
    # Beside the check, not after it: leases are taken back also when what was met is not as it should be.
    swept = SparkDutyOperator(
        task_id="sweep", duty="sweep", opened=opened, here=duty.sweep_here, execution_timeout=timedelta(hours=1)
    )
    # As a template, because what follows a set-up directly must not have a trigger rule of its own.
    after = audit_after(suite="leases_after", opened="{{ ti.xcom_pull(task_ids='open_run') | tojson }}")
    closed = close_run(opened=opened)

    opened >> [before, swept] >> after >> closed
    after >> wake_after_failure() >> closed
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    for audited in (before, after):
        audited.operator.operator_extra_links = (RunLink(), DataDocsLink())
    closed.operator.operator_extra_links = (RunLink(),)


dag = sweep()
