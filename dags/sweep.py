"""### sweep: take back the leases of workers that died

Takes back expired leases that nobody completed, renewed or released, corrects Redis where it
disagrees with the database, and frees the stuck records of other programs. It starts when a lease
expired or a message fails repeatedly, `sweep_interval` (30 s) apart, and every 45 minutes
(`schedule.safety_interval`). Without expired leases, and if no sample is due (once an hour), the
rest is skipped.

    open_run >> audit_before >> sweep (Spark from 2000 leases on) >> audit_after >> [wake] >> close_run

What each task does, and what to do when it is red:

- **open_run** opens the run and counts; without expired leases the rest is skipped. It also opens a
  case (`repeated_failure`) for messages that fail repeatedly, before the broker gives up on them.
  Red: another run is alive (wait for it), or a database or Redis is down (restart it; the next run
  sweeps the places that answered).
- **audit_before** checks what open_run found. Red: a sweep of the last two minutes says that it
  succeeded, and a place that it counted has leases that ended long before; so does a consumer
  database that was restored from a backup since. Nothing is taken back anywhere until that sweep is
  two minutes old, about four sweeps. The button Data Docs shows the place.
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

from datetime import timedelta

from airflow.sdk import TriggerRule

from backstop.airflow.duty_dag import (
    HANDED,
    check,
    close_run,
    duty_dag,
    one_of_all,
    switch,
    tear_down,
    with_links,
)
from backstop.airflow.links import DataDocsLink
from backstop.airflow.schedule import when_due
from backstop.airflow.spark_operator import SparkDutyOperator
from backstop.airflow.sweep import audit_after, open_run, sweep_here
from backstop.airflow.wake import SOMETHING_TO_SWEEP, wake_after_failure


@duty_dag(
    __doc__,
    schedule=when_due(SOMETHING_TO_SWEEP, "BACKSTOP_SWEEP_SCHEDULE", "30s"),
    dagrun_timeout=timedelta(hours=2),
    params={
        "group": one_of_all("Group", "Empty: every consumer group"),
        "dry_run": switch("Dry run", "List what would be decided, change nothing"),
    },
)
def sweep() -> None:
    opened = open_run()
    before = check("audit_before", "leases_before", opened, "What the sweep meets.")
    swept = SparkDutyOperator(
        # A dry run, which wrote nothing to check, skips the check and not the sweep.
        task_id="sweep",
        duty="sweep",
        opened=HANDED,
        here=sweep_here,
        execution_timeout=timedelta(hours=1),
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    after = with_links(audit_after(suite="leases_after", opened=HANDED), DataDocsLink())
    closed = tear_down(close_run(opened=opened), opened)

    opened >> before >> swept >> after >> closed
    # It runs although the sweep failed, not where the first check kept that from starting.
    before >> after
    after >> wake_after_failure() >> closed


dag = sweep()
