"""### reconcile: did every group do its work for every message?

Reads every due stub and its groups' logs, gives each delivery one verdict, and requests a resend of
what is lost. It publishes nothing: the DAG `resend` does that. It starts when a stub is due,
`reconcile_interval` (10 min) apart, and every 45 minutes (`schedule.safety_interval`).

    open_run >> revisit >> judge (Spark) >> audit_judged >> promote >> audit_requests >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and counts what is due. The rest is skipped if nobody asked for this run
  by hand and the previous such run still works. Red: a run of the same scope is alive (wait for it), or
  the control database is down (restart it).
- **revisit** ends attempts that nobody settled in time, judges the messages of open cases again, and
  confirms exhausted stubs whose work is done by now; also when nothing is due, and then the rest is
  skipped. Red: the log says what happened; the run goes on without it, and the next run does it. A
  shard that cannot be read leaves it green, and **close_run** names it.
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
from datetime import timedelta

from airflow.sdk import TriggerRule

from backstop.airflow.duty_dag import (
    HANDED,
    check,
    close_run,
    duty_dag,
    instant,
    one_of_all,
    switch,
    tear_down,
    with_links,
)
from backstop.airflow.links import DataDocsLink
from backstop.airflow.reconcile import JUDGED, audit_judged, open_run, promote, revisit
from backstop.airflow.schedule import when_due
from backstop.airflow.spark_operator import SparkDutyOperator
from backstop.airflow.wake import SOMETHING_TO_JUDGE, wake_after_failure


@duty_dag(
    __doc__,
    schedule=when_due(SOMETHING_TO_JUDGE, "BACKSTOP_RECONCILE_SCHEDULE", "10m"),
    # A topic or a window by hand need not wait for the scheduled run; leases keep equal scopes apart.
    max_active_runs=int(os.environ.get("BACKSTOP_RECONCILE_AT_ONCE") or 3),
    dagrun_timeout=timedelta(hours=3),
    params={
        "topic": one_of_all("Topic", "Empty: every topic"),
        "from": instant("From", "Only stubs created since"),
        "to": instant("To", "... and before"),
        "dry_run": switch("Dry run", "Judge and stage, promote nothing"),
        "no_send": switch("No send", "Promote, but ask for no resend"),
    },
)
def reconcile() -> None:
    opened = open_run()
    judged = SparkDutyOperator(
        # Judging needs nothing of `revisit`. Without an opened run it is skipped or fails as that did: Airflow sees to it.
        task_id="judge",
        duty="reconcile",
        opened=HANDED,
        trigger_rule=TriggerRule.ALL_DONE,
        execution_timeout=timedelta(hours=1),
    )
    staged = with_links(
        audit_judged(suites=list(JUDGED), opened=opened), *map(DataDocsLink, JUDGED)
    )
    promoted = with_links(promote(opened=opened))
    requests = check("audit_requests", "requests", opened, "What the promotion wrote.")
    closed = tear_down(close_run(opened=opened), opened)

    (
        opened
        >> with_links(revisit(opened=opened))
        >> judged
        >> staged
        >> promoted
        >> requests
        >> closed
    )
    promoted >> wake_after_failure() >> closed


dag = reconcile()
