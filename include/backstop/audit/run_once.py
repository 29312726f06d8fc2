"""The audit duty: looks everywhere, writes down what it found, and lets the data checks say what does not hold.

    control | producers (and cases) | consumers | control: looks, findings, alerts | suite `audit`

It only reads other programs' databases, and changes nothing of Backstop's but its own record. Safe to run again: the same day
is looked at anew, in a run of its own, and people are told once a day of each invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from backstop.audit.audit_consumers import audit_consumers
from backstop.audit.audit_control import audit_control
from backstop.audit.audit_producers import audit_producers
from backstop.audit.day import Day, day_of
from backstop.audit.record import Look, record
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts
from backstop.runs.duty import Check, Duty, RunCheck, Step, Work, walk_duty
from backstop.runs.run import DEAD_AFTER, Run, add_counts, hold
from backstop.sql.named import load

_SQL = load("backstop.audit", "queries.sql")


def audit_everywhere(
    settings: Settings, connections: Connections, control: Any, run: Run, day: Day
) -> Counts:
    """Every invariant at every place, recorded part by part; what did not answer is recorded as not read."""
    parts: Sequence[Callable[[], Sequence[Look]]] = (
        lambda: audit_control(settings, control, day),
        lambda: audit_producers(settings, connections, control, day),
        lambda: audit_consumers(settings, connections, control, day),
    )
    counts = Counts()
    for part in parts:
        counts += record(control, run, day, part())
    add_counts(control, run, counts)
    return counts


def see_decisions(control: Any, run: Run) -> str | None:
    """Keeps the newest entry of the log of decisions for later audits, and says it: whoever keeps the sentence elsewhere can tell
    later whether it was taken away. Commits. Null: there is no entry."""
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["see_decisions"])
        cursor.execute(_SQL["newest_decision"])
        row = cursor.fetchone()
    return None if row is None else f"the newest entry of decision_log is {row[0]}, hash {row[1]}"


def require_complete(control: Any, run: Run) -> None:
    """Raises StoreUnavailable when something was not read: nothing follows from finding nothing there."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["looks"], {"run_id": run.run_id})
        missed = {row[1]: row[5] for row in cursor.fetchall() if not row[4]}
    if missed:
        raise StoreUnavailable(
            f"The audit could not read everything: {'; '.join(f'{place}: {why}' for place, why in sorted(missed.items()))}",
            unaffected="What was read was checked and is recorded; nothing was changed.",
            next_step="Bring it back, then run the audit of the day again.",
        )


@dataclass(frozen=True, slots=True)
class AuditInput:
    """`day` null: yesterday (UTC). `tell`: what whoever runs it is to keep."""

    day: date | None = None
    tell: Callable[[str], None] = lambda _: None


def look(work: Work[AuditInput]) -> None:
    """Every invariant at every place; each part records what it found."""
    day = day_of(work.settings, work.run.as_of, work.input.day)
    work.counts += audit_everywhere(*work.parts, day)
    if newest := see_decisions(work.control, work.run):
        work.input.tell(newest)
    require_complete(work.control, work.run)


AUDIT = Duty(
    "audit",
    # What was read is checked also when something was away.
    steps=(Step("look", look, goes_on="when_away"), Check("audit")),
    unaffected="Nothing was changed.",
    next_step="Bring it back, then run the audit again.",
)


def run_duty(
    settings: Settings,
    connections: Connections,
    *,
    day: date | None = None,
    tell: Callable[[str], None] = lambda _: None,
    audit: RunCheck | None = None,
    dead_after: timedelta = DEAD_AFTER,
) -> Counts:
    """The whole duty in this process, as `walk_duty`; raises AuditFailed when an invariant does not hold."""
    return walk_duty(
        AUDIT, settings, connections, AuditInput(day, tell), dead_after=dead_after, check=audit
    ).counts
