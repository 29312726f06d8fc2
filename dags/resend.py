"""### resend: publish what was requested, each send number at most once

Takes the due requests, judges each message again, publishes what is still needed, and stores the
outcome. It starts when there is something to send, and every 45 minutes
(`schedule.safety_interval`).

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

from datetime import timedelta

from airflow.sdk import Param, TriggerRule

from backstop.airflow.duty_dag import (
    HANDED,
    check,
    close_run,
    duty_dag,
    one_of_all,
    switch,
    tear_down,
)
from backstop.airflow.resend import open_run, resend_here
from backstop.airflow.schedule import when_due
from backstop.airflow.spark_operator import SparkDutyOperator
from backstop.airflow.wake import SOMETHING_TO_SEND


@duty_dag(
    __doc__,
    schedule=when_due(SOMETHING_TO_SEND, "BACKSTOP_RESEND_SCHEDULE", "5m"),
    dagrun_timeout=timedelta(hours=3),
    params={
        "topic": one_of_all("Topic", "Empty: every topic"),
        "dry_run": switch("Dry run", "List what would go, publish nothing"),
        "ids": Param(
            None,
            type=["null", "string"],
            format="multiline",
            title="Ids",
            description="Only these of the topic, one a line",
        ),
        "why": Param(
            None, type=["null", "string"], title="Why", description="With ids: the reason"
        ),
    },
)
def resend() -> None:
    opened = open_run()
    sent = SparkDutyOperator(
        task_id="claim_publish_settle",
        duty="resend",
        opened=opened,
        here=resend_here,
        execution_timeout=timedelta(hours=1),
    )
    audited = check(
        "audit_attempts",
        "attempts",
        HANDED,
        "Runs after a failed job as well: that is when it matters most.",
        trigger_rule=TriggerRule.ALL_DONE,
    )
    closed = tear_down(close_run(opened=opened), opened)

    opened >> sent >> audited >> closed


dag = resend()
