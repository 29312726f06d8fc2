"""### reconcile: did every group do its work for every message?

Reads every due stub and its groups' logs, gives each delivery one verdict, and requests a resend of
what is lost. It publishes nothing: the DAG `resend` does that.

    open_run >> judge (Spark) >> audit_judged >> promote >> audit_requests >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and counts what is due. The rest is skipped if nothing is due, or if
  this run was scheduled and the previous scheduled run still works. Red: a run of the same scope is
  alive (wait for it), or a database is down (restart it).
- **judge** reads, judges and stages; it promotes nothing. Red: the last lines of the log say what
  happened, what is unaffected and what to do; clear it to judge again.
- **audit_judged** checks the staged stubs, logs and verdicts. Red: the buttons Data Docs show the
  check that failed; nothing was promoted, and the next run judges again.
- **promote** applies verdicts, requests and cases, then the stubs of each shard. It starts
  `resend`, `deliver_alerts` and `ask_people` if there is work for them. Red: clear it, or let the
  next run finish it; each step may be done twice.
- **wake** runs only if `promote` failed: it starts the same three for what was promoted before. Red:
  their own schedules start them.
- **audit_requests** checks what was promoted. Red: read the report, and pause the topic if in
  doubt; each resend is judged again before it goes out.
- **close_run** closes the run, whatever happened. Red: the run could not read everything, and the
  message names what was down; what was judged stays valid.

**By hand**: *Trigger* with `topic` for one topic, and `from` and `to` for the stubs created in a
window; it runs beside the scheduled run. `dry_run` judges and stages without promoting anything.
`no_send` promotes verdicts, cases and statuses, and requests no resend: what it found lost stays
due, and the next scheduled run requests it.

**Stop**: `backstop pause --all --why ...` stops every resend at once and leaves judging alone;
pausing this DAG stops the judging.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from backstop.airflow import steps as duty
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import every
from backstop.airflow.spark_operator import SparkDutyOperator
from backstop.airflow.wake import WORK, wake_after_failure, wake_duties

JUDGED = ("stubs_at_the_door", "logs_at_the_door", "verdicts")
"""What is checked between judging and promoting."""


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when nothing is due."""
    from airflow.sdk.exceptions import AirflowSkipException

    from backstop.errors import RunRefused

    try:
        opened = duty.open_duty(
            "reconcile", params["topic"], params["dry_run"], duty.reconcile_due,
            start=params["from"], end=params["to"], no_send=params["no_send"],
        )  # fmt: skip
    except RunRefused as error:
        # The live run judges what is due. If it never ends, `watch` reports an overdue duty.
        if context["dag_run"].run_type == "scheduled":
            raise AirflowSkipException(error.what) from error
        raise
    if opened is None:
        raise AirflowSkipException("nothing is due")
    return opened


@task
def audit_judged(suites: list[str], opened: dict[str, Any]) -> list[str]:
    """Stops everything after it if a check fails."""
    return duty.audit_phase(suites, opened)


@task
def audit_requests(suite: str, opened: dict[str, Any]) -> str:
    """What the promotion wrote."""
    return duty.audit(suite, opened)


@task(outlets=[WORK])
def promote(opened: dict[str, Any], **context: Any) -> dict[str, int]:
    """Control database first, then each shard; a dry run stops here."""
    from airflow.sdk.exceptions import AirflowSkipException

    if opened["dry_run"]:
        raise AirflowSkipException("a dry run promotes nothing")
    counts = duty.promote(opened)
    wake_duties(context)
    return counts


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    return duty.close(opened, failed, away=duty.away(context, failed))


@dag(
    dag_id="reconcile",
    schedule=every("BACKSTOP_RECONCILE_SCHEDULE", "10m"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # A topic or a window by hand need not wait for the scheduled run; leases keep equal scopes apart.
    max_active_runs=int(os.environ.get("BACKSTOP_RECONCILE_AT_ONCE") or 3),
    dagrun_timeout=timedelta(hours=3),
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=15),
    },
    params={
        "topic": Param(None, type=["null", "string"], minLength=1, title="Topic", description="Empty: every topic"),
        "from": Param(
            None, type=["null", "string"], format="date-time", title="From", description="Only stubs created since"
        ),
        "to": Param(None, type=["null", "string"], format="date-time", title="To", description="... and before"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Judge and stage, promote nothing"),
        "no_send": Param(False, type="boolean", title="No send", description="Promote, but ask for no resend"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def reconcile() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    judged = SparkDutyOperator(task_id="judge", duty="reconcile", opened=opened, execution_timeout=timedelta(hours=1))
    staged = audit_judged(suites=list(JUDGED), opened=opened)
    promoted = promote(opened=opened)
    requests = audit_requests(suite="requests", opened=opened)
    closed = close_run(opened=opened)

    opened >> judged >> staged >> promoted >> requests >> closed
    promoted >> wake_after_failure() >> closed
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    staged.operator.operator_extra_links = (RunLink(), *map(DataDocsLink, JUDGED))
    requests.operator.operator_extra_links = (RunLink(), DataDocsLink())
    for other in (promoted, closed):
        other.operator.operator_extra_links = (RunLink(),)


dag = reconcile()
