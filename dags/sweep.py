"""### sweep: no message waits for a worker that is gone

Takes back the leases that ended while nobody completed, renewed or released them, corrects Redis where it disagrees with the
database, and frees the stuck records of other programs. Counts first, every 30 s (`sweep_interval`), in milliseconds:
The sweep and the checks start only when something ended (or a sample is due, once an hour).

    open_run >> [audit_before, sweep (Spark when it is much)] >> audit_after >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and counts; with nothing ended all else is skipped. It also opens a case (`repeated_failure`) for
  messages that fail again and again, before the broker gives up on them. Red: another run is alive (wait for it), or a database
  or Redis is away (bring it back; the places that answered wait for the next look).
- **audit_before** checks what open_run met and wrote down. Red: earlier sweeps did not do their work, or a log says CONSUMED
  without a time; leases are taken back all the same.
- **sweep** decides KEEP, REPAIR or RECLAIM for each lease, and settles by compare-and-set: in the task's own process, and with
  Spark from 2000 leases on (`BACKSTOP_SPARK_FROM`). Red: its log says what happened, what
  was not lost and what to do; the next run goes on.
- **audit_after** checks what it left behind. Red: the button Data Docs shows the check that broke.
- **close_run** closes the run, whatever happened. Red: the run failed, or something was away: the message names it.

**Is it safe to run twice?** Yes. A lease is only taken back as it was seen, and a late worker whose lease was taken back may
still finish while nobody else has taken its message.

**What comes then?** A message whose lease was taken back is delivered again by the broker; if the broker has given it up,
reconcile finds it STALLED and resends it. Who loses leases again and again becomes a case (`lease_leak`).

**By hand**: *Trigger* with `group` for one group, `dry_run` to list what would be decided. Or `backstop run sweep`.

**Stop**: pause this DAG. A worker's next delivery takes over a lease that ended without any sweep; only what no delivery asks for
waits.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, dag, task

try:
    from backstop.plugins import backstop_duty as duty
    from backstop.plugins.backstop_links import DataDocsLink, RunLink
    from backstop.plugins.backstop_notify import tell_failure
    from backstop.plugins.backstop_schedule import every
    from backstop.plugins.backstop_spark import SparkDutyOperator
    from backstop.plugins.backstop_wake import WORK, wake_duties
except ModuleNotFoundError:  # from the source tree, where Airflow puts the plugins folder on the path
    import backstop_duty as duty
    from backstop_links import DataDocsLink, RunLink
    from backstop_notify import tell_failure
    from backstop_schedule import every
    from backstop_spark import SparkDutyOperator
    from backstop_wake import WORK, wake_duties


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


@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS)
def audit_after(suite: str, opened: str) -> str:
    """Runs after a failed job as well: that is when it matters most."""
    return duty.audit(suite, json.loads(opened))


@task(retries=2, outlets=[WORK])
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    wake_duties(context)
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
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    for audited in (before, after):
        audited.operator.operator_extra_links = (RunLink(), DataDocsLink())
    closed.operator.operator_extra_links = (RunLink(),)


dag = sweep()
