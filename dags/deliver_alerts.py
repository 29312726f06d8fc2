"""### deliver_alerts: send waiting alerts

One light task, without Spark. It sends waiting alerts to the channels of `alerts.channels` and
`notify` in backstop.yaml. It repeats alerts of undecided cases, and reports the end of a case to
the channels that got its opening. It starts when an alert waits, and every 45 minutes
(`schedule.safety_interval`).

    deliver_alerts

What the task does, and what to do when it is red:

- **deliver_alerts** sends. Red: alerts wait and no channel takes them, or none is configured; the
  log names each channel and the kind of failure. Nothing is lost: every alert stays in the outbox
  and is tried again. Check that the service is up and its connection valid: `backstop alerts test`.
  While this task is red, no alert about its own failure gets out: after 15 minutes the watch
  reports it as overdue (if an alert waits), and the outside heartbeat stops.

**By hand**: *Trigger*, or `backstop alerts deliver`. A second one at the same moment is refused.

**Stop**: pausing this DAG stops sending, escalating and closing. The watch still sends waiting
alerts each time it runs, and reports this DAG as overdue.
"""

from __future__ import annotations

from datetime import timedelta

from backstop.airflow.deliver_alerts import deliver
from backstop.airflow.duty_dag import backstop_dag
from backstop.airflow.schedule import when_due
from backstop.airflow.wake import SOMETHING_TO_TELL


@backstop_dag(
    __doc__,
    schedule=when_due(SOMETHING_TO_TELL, "BACKSTOP_ALERTS_SCHEDULE", "5m"),
    dagrun_timeout=timedelta(minutes=15),
    default_args={"execution_timeout": timedelta(minutes=10)},
)
def deliver_alerts() -> None:
    deliver()


dag = deliver_alerts()
