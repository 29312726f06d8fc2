"""What the task of the DAG `deliver_alerts` does."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task

from backstop.airflow.control_room import control_room, log_errors


@task(task_id="deliver_alerts", retries=0)
@log_errors
def deliver() -> dict[str, Any]:
    """The duty, whole."""
    from backstop.alerts.run_once import run_once

    with control_room() as room:
        settings, connections = room.settings, room.connections
    return dict(run_once(settings, connections))
