"""What the task of deliver_alerts does."""

from __future__ import annotations

from typing import Any

from backstop.airflow.steps import control_room, told


@told
def deliver_alerts() -> dict[str, Any]:
    """One look at the outbox; returns its summary. Raises AlertsUndelivered when nobody could be told of what waits."""
    from backstop.alerts.run_once import run_once

    with control_room() as room:
        settings, connections = room.settings, room.connections
    return dict(run_once(settings, connections))
