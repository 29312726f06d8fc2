"""The audit duty: looks everywhere, writes down what it found, and lets the data checks say what does not hold.

    control | producers (and cases) | consumers | control: looks, findings, alerts | suite `audit`

It only reads other programs' databases, and changes nothing of Backstop's but its own record. Safe to run again: the same day
is looked at anew, in a run of its own, and people are told once a day of each invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import psycopg2

from backstop.audit.day import Day, day_of
from backstop.audit.look_at_consumers import look_at_consumers
from backstop.audit.look_at_control import look_at_control
from backstop.audit.look_at_producers import look_at_producers
from backstop.audit.record import Look, record
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import StoreUnavailable, Unavailable
from backstop.named_sql import load
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.run import DEAD_AFTER, Run, add_counts, close_run, keep_alive, open_run

_SQL = load("backstop.audit", "queries.sql")


def look_everywhere(settings: Settings, connections: Connections, control: Any, run: Run, day: Day) -> Counts:
    """Every invariant at every place, recorded part by part; what did not answer is recorded as not read."""
    parts: Sequence[Callable[[], Sequence[Look]]] = (
        lambda: look_at_control(settings, control, day),
        lambda: look_at_producers(settings, connections, control, day),
        lambda: look_at_consumers(settings, connections, control, day),
    )
    counts = Counts()
    for look in parts:
        counts += record(control, run, day, look())
    add_counts(control, run, counts)
    return counts


def require_complete(control: Any, run: Run) -> None:
    """Raises StoreUnavailable when something was not read: nothing follows from finding nothing there."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["looks"], {"run_id": run.run_id})
        missed = {row[1]: row[5] for row in cursor.fetchall() if not row[4]}
    if missed:
        raise StoreUnavailable(
            f"The audit could not read everything: {'; '.join(f'{place}: {why}' for place, why in sorted(missed.items()))}",
            kept="What was read was checked and is recorded; nothing was changed.",
            next_step="Bring it back, then run the audit of the day again.",
        )


def run_duty(
    settings: Settings, connections: Connections, *, day: date | None = None, audit: Callable[[Run, str], None] | None = None,
    dead_after: timedelta = DEAD_AFTER,
) -> Counts:  # fmt: skip
    """The whole duty without an orchestrator; `day` null: yesterday (UTC). `audit` runs a suite of data checks.

    Raises AuditFailed when an invariant does not hold, Unavailable when something was not read; the run is closed with it.
    """
    control = connect(settings, connections)
    try:
        run = open_run(control, "audit", "*", settings, dead_after=dead_after)
        try:
            with keep_alive(lambda: connect(settings, connections), run):
                counts = look_everywhere(settings, connections, control, run, day_of(settings, run.as_of, day))
                if audit is not None:
                    audit(run, "audit")
                require_complete(control, run)
        except BaseException as error:
            control.rollback()
            close_run(control, run, "incomplete" if isinstance(error, Unavailable) else "failed", Counts(), error=str(error))
            raise
        close_run(control, run, "done", Counts())
        return counts
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        raise StoreUnavailable(
            f"The control database ({settings.control}) did not answer: {str(error).splitlines()[0]}.",
            kept="Nothing was changed.",
            next_step="Bring it back, then run the audit again.",
        ) from error
    finally:
        control.close()
