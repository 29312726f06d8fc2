"""What the task of the DAG `watch` does."""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import TriggerRule, task

from backstop.airflow import notify
from backstop.airflow.control_room import control_room, log_errors
from backstop.airflow.wake import WORK, wake_duties, wake_in_place_of_the_trigger

log = logging.getLogger(__name__)


@task(task_id="watch", retries=0, outlets=[WORK])
def watch_once(**context: Any) -> dict[str, Any]:
    """The duty, whole; and the duties that have something to do are woken."""
    watched = watch()
    wake_duties(context)
    wake_in_place_of_the_trigger(context)
    return watched


@task(task_id="wake", trigger_rule=TriggerRule.ONE_FAILED, outlets=[WORK])
def wake_after_failed_watch(**context: Any) -> list[str]:
    """Wakes the same duties after a failed watch: it stands in for a silent trigger also while something else keeps it red."""
    return [*wake_duties(context), *wake_in_place_of_the_trigger(context)]


@log_errors
def watch() -> dict[str, Any]:
    """One look of the watch, its alerts and heartbeat, and what the notifier has still to tell; returns its summary.

    Raises what the watch raises, after the notifier had its turn: an alert is told even when something did not answer.
    """
    from backstop.watch.run_once import run_once

    with control_room() as room:
        notify.tell_back(room.control)
        try:
            watched = run_once(room.settings, room.connections)
        finally:
            told_now = notify.tell_unsaid(room.settings, room.connections, room.control)
        for sentence in watched.overdue.values():
            log.error("backstop: %s", sentence)
        if room.settings.metrics is not None and room.settings.metrics.otlp is not None:
            from backstop.reports.otlp import export

            export(room.control, room.settings, room.connections)
        return {**watched.counts, "told": told_now}
