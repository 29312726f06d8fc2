"""### deliver_alerts: is everybody told who should be?

One light task, without Spark: it takes what waits in the outbox and sends it to the channels of `alerts.channels`
and `notify` in backstop.yaml, tells undecided cases again, and what is over to those who were told that it began. The duties
that write alerts wake it, and so does `watch` within a minute; every five minutes it looks by itself.

    deliver_alerts

What the task does, and what to do when it is red:

- **deliver_alerts** sends. Red: alerts wait, and no channel takes them, or none is configured; its log names each channel
  and what kind of failure it was. Nothing is lost: every alert stays in the outbox and is tried again. Look whether the
  service is up and its connection still valid: `backstop alerts test`. While it is red its own failure cannot be told either:
  after 15 minutes the watch calls it overdue, and the heartbeat outside stops.

**By hand**: *Trigger*, or `backstop alerts deliver`. A second one at the same moment is refused.

**Stop**: pausing this DAG stops telling, escalating and closing. The watch still sends what waits, once a minute, but only
while it runs itself, and it calls this DAG overdue.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

try:
    from backstop.plugins import backstop_alerts as alerts
    from backstop.plugins.backstop_notify import tell_failure
    from backstop.plugins.backstop_schedule import woken_by
    from backstop.plugins.backstop_wake import SOMETHING_TO_TELL
except ModuleNotFoundError:  # from the source tree, where Airflow puts the plugins folder on the path
    import backstop_alerts as alerts
    from backstop_notify import tell_failure
    from backstop_schedule import woken_by
    from backstop_wake import SOMETHING_TO_TELL


@task(task_id="deliver_alerts", retries=0)
def deliver() -> dict[str, Any]:
    """The duty, whole."""
    return alerts.deliver_alerts()


@dag(
    dag_id="deliver_alerts",
    schedule=woken_by(SOMETHING_TO_TELL, "BACKSTOP_ALERTS_SCHEDULE", "5m"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=15),
    default_args={"owner": "backstop", "execution_timeout": timedelta(minutes=10)},
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def deliver_alerts() -> None:
    """Wiring only."""
    deliver()


dag = deliver_alerts()
