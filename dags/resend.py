"""### resend: publish what was requested, each send number at most once

Takes the due requests, judges each message again, publishes what is still needed, and stores the
outcome. `reconcile` starts it when there is something to send, and it runs every few minutes by
itself.

    open_run >> claim_publish_settle (Spark from 2000 requests on) >> audit_attempts >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and counts the due requests; without any, the rest is skipped. Red:
  another run is alive (wait for it), or the control database is down (restart it).
- **claim_publish_settle** recovers what a crash left, then claims, publishes and settles in
  batches: in the task's own process, and with Spark from 2000 requests on (`BACKSTOP_SPARK_FROM`).
  Red: the log says what happened, what is unaffected and what to do; the next run recovers and goes
  on.
- **audit_attempts** checks the result, after a failed job too. Red: the button Data Docs shows the
  check that failed; pause the topic and investigate before the next run.
- **close_run** closes the run, whatever happened. Red: the run failed, or a database or broker was
  down: the message names it.

**Is it safe to run twice?** Yes. A request is for one send number, and only the worker that moves
the stub's number publishes it.

**By hand**: *Trigger* with `topic` for one topic, and `dry_run` to list what would be published.
With `ids` (one for each line) only these messages of the topic go out, requested or not: give the
reason in `why`; the log of **open_run** has an answer for each. They are requested in the name of
whoever triggers, who must be somebody who may decide (as in `decide_case`). A list above the blast
radius is refused: `replay_incident` shows such a plan to somebody who approves it. A list is taken
once: clearing its run requests nothing again.

**A large resend** goes out in steps: a canary, then more in each run, as long as the last step was
confirmed. It stops with a case (`ramp_stopped`) when something goes wrong.

**Stop**: `backstop pause TOPIC --why ...` (or `--all`) takes effect between two batches.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import AssetOrTimeSchedule, Param, TriggerRule, dag, task

from backstop.airflow import resend as listing
from backstop.airflow import steps as duty
from backstop.airflow.decide_case import is_young
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure
from backstop.airflow.schedule import every
from backstop.airflow.spark_operator import SparkDutyOperator
from backstop.airflow.wake import SOMETHING_TO_SEND

NET = every("BACKSTOP_RESEND_SCHEDULE", "5m")


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the run, its lease and its token; skips everything when no request is due. A list is asked for by who triggered."""
    from airflow.sdk.exceptions import AirflowSkipException

    count = duty.resend_due
    if params["ids"]:
        run = context["dag_run"]
        count = listing.resend_listed(
            params["topic"], params["ids"], run.triggering_user_name, params["why"] or "", context["run_id"], young=is_young(run)
        )
    opened = duty.open_duty("resend", params["topic"], params["dry_run"], count)
    if opened is None:
        raise AirflowSkipException("no request is due")
    return opened


@task(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS)
def audit_attempts(suite: str, opened: str) -> str:
    """Runs after a failed job as well: that is when it matters most."""
    return duty.audit(suite, json.loads(opened))


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    failed = duty.failed_tasks(context)
    return duty.close(opened, failed, away=duty.away(context, failed))


@dag(
    dag_id="resend",
    schedule=AssetOrTimeSchedule(timetable=NET, assets=[SOMETHING_TO_SEND]) if NET else [SOMETHING_TO_SEND],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=3),
    default_args={
        "owner": "backstop",
        "retries": 1,
        "retry_delay": timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10"))),
        "execution_timeout": timedelta(minutes=15),
    },
    params={
        "topic": Param(None, type=["null", "string"], minLength=1, title="Topic", description="Empty: every topic"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="List what would go, publish nothing"),
        "ids": Param(
            None, type=["null", "string"], format="multiline", title="Ids", description="Only these of the topic, one a line"
        ),
        "why": Param(None, type=["null", "string"], title="Why", description="With ids: the reason"),
    },
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def resend() -> None:
    """Wiring only. Arguments have names, by which the buttons find the run."""
    opened = open_run()
    sent = SparkDutyOperator(
        task_id="claim_publish_settle", duty="resend", opened=opened, here=duty.resend_here, execution_timeout=timedelta(hours=1)
    )
    # As a template, because what follows a set-up directly must not have a trigger rule of its own.
    audited = audit_attempts(suite="attempts", opened="{{ ti.xcom_pull(task_ids='open_run') | tojson }}")
    closed = close_run(opened=opened)

    opened >> sent >> audited >> closed
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    audited.operator.operator_extra_links = (RunLink(), DataDocsLink())
    closed.operator.operator_extra_links = (RunLink(),)


dag = resend()
