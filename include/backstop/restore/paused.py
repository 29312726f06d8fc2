"""Refuses to touch anything while sends may go out: a restored database is not yet to be trusted."""

from __future__ import annotations

from typing import Any

from backstop.errors import DecisionRefused
from backstop.named_sql import load

_SQL = load("backstop.restore", "queries.sql")


def require_paused(control: Any) -> None:
    """Raises DecisionRefused unless everything is paused, and while claims may still be at work."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["paused"])
        everything_paused = bool(cursor.fetchone()[0])
        cursor.execute(_SQL["claimed"])
        claimed = int(cursor.fetchone()[0])
    if not everything_paused:
        raise DecisionRefused(
            "Resends are not paused.",
            kept="Nothing was changed.",
            next_step='Pause them first: backstop pause --all --why "a database was restored"',
        )
    if claimed:
        raise DecisionRefused(
            f"{claimed} requests are still claimed by a worker that may be at work.",
            kept="Nothing was changed.",
            next_step="Wait until the resend run has ended, or their claims have run out, and do it again.",
        )
