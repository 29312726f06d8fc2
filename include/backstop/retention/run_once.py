"""The retention duty: inside its window, step by step, takes away what is over; safe to run twice, beside another, and killed.

    logs | stubs | what is remembered of them | letters | the control database | brokers' queues | the reports

Logs go before their stubs: whether a log may go is asked of its stub.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from backstop.config.connections import Connections
from backstop.config.kept import control_kept, require_safe
from backstop.config.settings import Settings
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts
from backstop.retention.pace import Pace
from backstop.retention.purge_control import purge_control
from backstop.retention.purge_dead_letters import purge_dead_letters
from backstop.retention.purge_history import purge_history
from backstop.retention.purge_logs import purge_logs
from backstop.retention.purge_reports import purge_reports
from backstop.retention.purge_stubs import purge_stubs
from backstop.retention.trim_queues import trim_queues
from backstop.retention.window import DAY, time_left
from backstop.runs.duty import Duty, Step, Work, walk_duty
from backstop.runs.run import DEAD_AFTER, Run
from backstop.sql.named import load

_SQL = load("backstop.retention", "queries.sql")


def purge(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    pace: Pace,
    reports: Path | None = None,
) -> Counts:
    """All of it, for an open run. Raises Unavailable after all else was done, when something did not answer."""
    require_safe(settings)
    missed: dict[str, str] = {}
    # First: a broker that is full refuses producers, and this depends on nothing else.
    counts = trim_queues(settings, connections, control, pace, missed, dry_run=run.dry_run)
    counts += purge_logs(settings, connections, control, pace, missed, dry_run=run.dry_run)
    counts += purge_stubs(settings, connections, control, pace, missed, dry_run=run.dry_run)
    counts += purge_history(settings, connections, control, run, pace, missed)
    counts += purge_dead_letters(settings, control, run, pace)
    counts += purge_control(settings, control, run, pace)
    if reports is not None and not pace.is_over():
        counts += purge_reports(
            control, reports, run.as_of - control_kept(settings), dry_run=run.dry_run
        )
    if missed:
        raise _away(counts, missed)
    return Counts({name: number for name, number in counts.items() if number})


@dataclass(frozen=True, slots=True)
class RetentionInput:
    """`now`: a person asked for it, whatever the window says. `longest`: it ends by itself, between two steps."""

    now: bool = False
    reports: Path | None = None
    longest: timedelta | None = None


def due(work: Work[RetentionInput]) -> int | None:
    """0 inside the window: how much is over is counted as it goes. Null outside."""
    if _pace(work) is not None:
        return 0
    work.record(Counts(window_is_shut=1))
    return None


def purge_all(work: Work[RetentionInput]) -> Counts | None:
    """All of it, at the pace of the window."""
    pace = _pace(work)
    if pace is None:
        return None  # the window has shut meanwhile
    if work.input.longest is not None:
        pace.end_after(work.input.longest)
    pace.stop = work.lost
    return purge(*work.parts, pace, work.input.reports)


def _pace(work: Work[RetentionInput]) -> Pace | None:
    """Its pace until the window ends, as it is now: a task may come to its turn long after its run was opened, and again."""
    window = work.settings.retention.window
    if work.input.now or work.run.dry_run:
        left: timedelta | None = DAY
    else:
        with work.control, work.control.cursor() as cursor:
            cursor.execute(_SQL["clock"])
            left = time_left(window, cursor.fetchone()[0])
    return None if left is None else Pace(work.settings.retention.busy_share, left)


RETENTION = Duty(
    "retention",
    due=due,
    steps=(Step("purge", purge_all),),
    unaffected="Only what retention allows was purged; everything else is as it was.",
)


def run_duty(
    settings: Settings,
    connections: Connections,
    *,
    now: bool = False,
    dry_run: bool = False,
    reports: Path | None = None,
    dead_after: timedelta = DEAD_AFTER,
) -> Counts:
    """The whole duty in this process, as `walk_duty`. Outside its window it does nothing, unless asked for `now`.

    Raises ConfigurationError when something would be forgotten too soon.
    """
    require_safe(settings)
    given = RetentionInput(now, reports)
    return walk_duty(
        RETENTION, settings, connections, given, dry_run=dry_run, dead_after=dead_after
    ).counts


def _away(counts: Counts, missed: Mapping[str, str]) -> StoreUnavailable:
    return StoreUnavailable(
        f"Not everything answered: {'; '.join(f'{name}: {why}' for name, why in sorted(missed.items()))}",
        unaffected=f"What could not be asked for stays. Done: {counts}.",
        next_step="Bring it back; the next run goes on.",
    )
