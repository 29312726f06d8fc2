"""### watch: is a loss coming, and do the other duties still succeed?

One light task a minute, without Spark: it looks at offsets, counts what was recorded and logged since the last look, writes
alerts, and sends the heartbeat as long as every duty of `watch.allowed_age` succeeded in time. It wakes `resend`,
`deliver_alerts` and `ask_people` when there is something for them.

    watch

What the task does, and what to do when it is red:

- **watch** looks, tells and beats. Red: a database, the broker or the heartbeat's URL did not answer; its log names it,
  everything else was looked at, and the next minute looks again. Red for long: the heartbeat has stopped too, and whoever
  watches from outside calls.

An overdue duty does not make it red: that is an alert, told by the notifier, and the end of the heartbeat.

**By hand**: *Trigger*, or `backstop run watch`. A second one at the same moment is refused.

**Stop**: pausing this DAG also stops the heartbeat; say so to whoever listens to it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

try:
    from backstop.plugins import backstop_duty as duty
    from backstop.plugins.backstop_notify import tell_failure
    from backstop.plugins.backstop_schedule import every
    from backstop.plugins.backstop_wake import WORK, wake_duties
except ModuleNotFoundError:  # from the source tree, where Airflow puts the plugins folder on the path
    import backstop_duty as duty
    from backstop_notify import tell_failure
    from backstop_schedule import every
    from backstop_wake import WORK, wake_duties


@task(task_id="watch", retries=0, outlets=[WORK])
def look(**context: Any) -> dict[str, Any]:
    """The duty, whole; and the duties that have something to do are woken."""
    watched = duty.watch()
    wake_duties(context)
    return watched


@dag(
    dag_id="watch",
    schedule=every("BACKSTOP_WATCH_SCHEDULE", "1m"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=10),
    default_args={"owner": "backstop", "execution_timeout": timedelta(minutes=5)},
    on_failure_callback=tell_failure,
    tags=["backstop"],
    doc_md=__doc__,
)
def watch() -> None:
    """Wiring only."""
    look()


dag = watch()
