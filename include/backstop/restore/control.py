"""After the control database was restored: dead letters that were drained since the backup are known to nobody any more.

    now -> watermark | the next reconcile runs: received, not finished, log not touched since -> case, no request

The drain takes dead letters out of the broker once they are stored here, so those that it stored since the backup are gone from
both. Some had been left to people. Of a message with a stub the log is still there, and looks like one whose broker gave up.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstop.config.settings import Settings
from backstop.restore.paused import require_quiet
from backstop.sql.named import load

_SQL = load("backstop.restore", "queries.sql")


def restore_control(settings: Settings, control: Any) -> datetime:
    """Returns the instant up to which logs count as touched before the restore; commits. Safe to run twice.

    Raises DecisionRefused unless everything is paused and nothing is at work.
    """
    require_quiet(control)
    # Logs are dated by the clocks of other databases.
    skew = max(settings.policy_for(topic).max_clock_skew for topic in settings.topics)
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["control_restored"], {"seconds": skew.total_seconds()})
        reached: datetime = cursor.fetchone()[0]
    return reached
