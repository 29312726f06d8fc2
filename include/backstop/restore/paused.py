"""Refuses to touch anything while sends may go out: a restored database is not yet to be trusted."""

from __future__ import annotations

from typing import Any

from backstop.errors import DecisionRefused
from backstop.named_sql import load

_SQL = load("backstop.restore", "queries.sql")


def require_quiet(control: Any) -> None:
    """Raises DecisionRefused unless everything is paused, and while a run or a claim may still be at work. Then forgets what
    earlier runs decided and have not promoted: they read a database that is not there any more."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["paused"])
        everything_paused = bool(cursor.fetchone()[0])
        cursor.execute(_SQL["claimed"])
        claimed = int(cursor.fetchone()[0])
        cursor.execute(_SQL["alive"])
        alive = [name for (name,) in cursor.fetchall()]
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
    if alive:
        raise DecisionRefused(
            f"Runs are alive: {', '.join(alive)}.",
            kept="Nothing was changed.",
            next_step="Pause the DAGs, wait until the runs have ended (a dead one counts as ended after 2 minutes), do it again.",
        )
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["forget_staged"])
