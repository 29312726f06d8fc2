"""What the task of deliver_alerts does."""

from __future__ import annotations

from typing import Any

try:
    from backstop.plugins.backstop_duty import control_room, told
except ModuleNotFoundError:  # from the source tree, where Airflow puts the plugins folder on the path
    from backstop_duty import control_room, told


@told
def deliver_alerts() -> dict[str, Any]:
    """One look at the outbox; returns its summary. Raises AlertsUndelivered when nobody could be told of what waits."""
    from backstop.alerts.run_once import run_once

    with control_room() as room:
        settings, connections = room.settings, room.connections
    return dict(run_once(settings, connections))
