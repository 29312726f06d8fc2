"""Refuses to touch anything while sends may go out, and lets nobody send before a restore that was begun is done."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstop.config.durations import written
from backstop.model.errors import ConfigurationError, DecisionRefused
from backstop.model.records import WAITS_FOR_RELAY
from backstop.runs.run import DEAD_AFTER
from backstop.sql.named import load

_SQL = load("backstop.restore", "queries.sql")


def begin(control: Any, place: str, since: datetime) -> datetime:
    """Keeps that the restore of this place ("producer shop_a") was begun, and commits; returns the instant that it goes back to.

    Until `end`, nothing is sent: each of its steps commits by itself, and whoever comes next has to finish it. ConfigurationError
    for an instant that lies ahead: the restore would be done without having looked at anything.
    """
    require_quiet(control)
    with control, control.cursor() as cursor:
        _alone(cursor)
        cursor.execute(_SQL["paused"])
        if not cursor.fetchone()[0]:
            raise _not_paused()  # somebody resumed since
        cursor.execute(_SQL["begin"], {"place": place, "since": since})
        row = cursor.fetchone()
    if row is None:
        raise ConfigurationError(
            f"{since.isoformat()} lies ahead, and no backup was taken then: as if nothing had been forgotten.",
            unaffected="No message was changed, and nothing goes out.",
            next_step="Name an instant before the backup was taken, as 2026-11-21T02:00Z; an earlier one only costs judging.",
        )
    begun: datetime = row[0]
    return begun


def end(control: Any, place: str, begun: datetime) -> None:
    """The restore from the instant that `begin` answered is done; commits. One that somebody has begun from an earlier instant
    since then stays unfinished."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["end"], {"place": place, "begun": begun})


def require_finished(cursor: Any) -> None:
    """Raises DecisionRefused while a restore is unfinished; none begins until the caller's transaction has ended."""
    _alone(cursor)
    cursor.execute(_SQL["unfinished"])
    if found := cursor.fetchall():
        commands = [
            f"backstop restore {place} --since {since.isoformat()}" for place, since in found
        ]
        raise DecisionRefused(
            "A database was restored, and not all of what others know of it was put back.",
            unaffected="Nothing goes out.",
            next_step=f"Finish it, which is safe to do twice: {'; '.join(commands)}",
        )


def _alone(cursor: Any) -> None:
    """Between a restore that begins and a resume: each would look before the other had written."""
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('backstop restore', 0))")


def _not_paused() -> DecisionRefused:
    return DecisionRefused(
        "Resends are not paused.",
        unaffected="Nothing was changed.",
        next_step='Pause them first: backstop pause --all --why "a database was restored"',
    )


def require_quiet(control: Any) -> None:
    """Raises DecisionRefused unless everything is paused, and while a run or a claim may still be at work. Then forgets what
    earlier runs decided and have not promoted: they read a database that is not there any more."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["paused"])
        everything_paused = bool(cursor.fetchone()[0])
        cursor.execute(_SQL["claimed"], {"waits": WAITS_FOR_RELAY})
        claimed = int(cursor.fetchone()[0])
        cursor.execute(_SQL["alive"], {"dead_after": DEAD_AFTER})
        alive = [name for (name,) in cursor.fetchall()]
    if not everything_paused:
        raise _not_paused()
    if claimed:
        raise DecisionRefused(
            f"{claimed} requests are still claimed by a worker that may be at work.",
            unaffected="Nothing was changed.",
            next_step="Wait until the resend run has ended, or their claims have run out, and do it again.",
        )
    if alive:
        raise DecisionRefused(
            f"Runs are alive: {', '.join(alive)}.",
            unaffected="Nothing was changed.",
            next_step="Pause the DAGs, wait until the runs have ended (a dead one counts as ended after "
            f"{written(DEAD_AFTER)}), do it again.",
        )
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["forget_staged"])
