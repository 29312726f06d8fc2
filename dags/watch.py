"""### watch: find coming losses, and duties that no longer succeed

One light task, without Spark: a minute apart while messages are under way, else every 15 minutes
(`schedule.watch_interval`). It reads offsets, counts what was recorded and logged since
the last run, writes alerts, and sends the heartbeat as long as every duty of `watch.allowed_age`
succeeded in time. It starts `resend`, `deliver_alerts` and `ask_people` if there is work for them.

    watch >> [wake, ended]

What the task does, and what to do when it is red:

- **watch** checks, writes alerts and sends the heartbeat. Red: a database, the broker or the
  heartbeat's URL did not answer. The log names it; everything else was checked, and the next minute
  checks again. Red for long: the heartbeat has stopped too, and the outside service calls somebody.

- **wake** runs only if **watch** failed: it starts the DAGs that have work nevertheless.
- **ended** does nothing; it keeps the run red if **watch** is red.

An overdue duty does not make this task red: it sends an alert, and stops the heartbeat.

**By hand**: *Trigger*, or `backstop run watch`. A second run at the same moment is refused.

**Stop**: pausing this DAG also stops the heartbeat; tell whoever gets its calls.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator

from backstop.airflow.duty_dag import backstop_dag
from backstop.airflow.schedule import when_due
from backstop.airflow.wake import SOMETHING_TO_WATCH
from backstop.airflow.watch import wake_after_failed_watch, watch_once


@backstop_dag(
    __doc__,
    schedule=when_due(
        SOMETHING_TO_WATCH, "BACKSTOP_WATCH_SCHEDULE", "1m", beneath="watch_interval"
    ),
    dagrun_timeout=timedelta(minutes=10),
    default_args={"execution_timeout": timedelta(minutes=5)},
)
def watch() -> None:
    # A run is as red as its last tasks. Airflow starts no process for the empty one.
    watch_once() >> [wake_after_failed_watch(), EmptyOperator(task_id="ended")]


dag = watch()
