"""Takes away decided dead letters, and earlier than them their contents where the policy says so; never an undecided one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg2 import errors

from backstop.config.kept import contents_kept, dead_letters_kept
from backstop.config.settings import Settings
from backstop.model.records import Counts
from backstop.retention.pace import Pace
from backstop.runs.run import Run, hold
from backstop.sql.named import load

_SQL = load("backstop.retention", "dead_letters.sql")


def purge_dead_letters(settings: Settings, control: Any, run: Run, pace: Pace) -> Counts:
    """Each step is a transaction that holds the run."""
    letters = _by_topic(run.as_of, dead_letters_kept(settings))
    if run.dry_run:
        with control, control.cursor() as cursor:
            cursor.execute(_SQL["would_go"], letters)
            return Counts(letters=cursor.fetchone()[0])
    counts = Counts()
    if kept := contents_kept(settings):
        counts += _steps(settings, control, run, pace, "contents", _by_topic(run.as_of, kept))
    return counts + _steps(settings, control, run, pace, "letters", letters)


def _steps(
    settings: Settings, control: Any, run: Run, pace: Pace, name: str, values: dict[str, Any]
) -> Counts:
    counts, rows = Counts(), settings.retention.step_rows
    while True:
        if pace.is_over():
            counts.add("unfinished")
            return counts
        try:
            with pace.step(), control, control.cursor() as cursor:
                hold(cursor, run)
                cursor.execute(_SQL[name], {**values, "limit": rows})
                gone: int = cursor.fetchone()[0]
        except (errors.ForeignKeyViolation, errors.DeadlockDetected):
            # Somebody is at work on one of them in this moment: the next run finds the others.
            counts.add(f"{name}_put_off")
            return counts
        counts.add(name, gone)
        if gone < rows:
            return counts


def _by_topic(as_of: datetime, kept: dict[str, timedelta]) -> dict[str, Any]:
    """The instants up to which each topic's go. Topics that are not configured any more follow ''; without it they stay."""
    named = {topic: as_of - length for topic, length in kept.items() if topic}
    other = as_of - kept[""] if "" in kept else datetime.min.replace(tzinfo=UTC)
    return {
        "topics": list(named),
        "instants": list(named.values()),
        "other": other,
        "latest": max([*named.values(), other]),
    }
