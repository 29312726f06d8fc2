"""Notices that nobody looks for due work: then duties run on their slow schedules alone, and nothing else says so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from backstop.config.durations import written
from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.watch.samples import Answer, Finding

_SQL = load("backstop.watch", "queries.sql")
NOBODY_LOOKS = "nobody_looks"
_SUBJECT = "due work is looked for"
SILENT_AFTER = timedelta(minutes=5)
"""Thirty notes of the trigger: a triggerer that is started again, or hands over to another, is back by then."""
NEVER_AFTER = timedelta(hours=1)
"""Of an installation that nobody ever looked in, since its first run."""


def note_looked(cursor: Any) -> None:
    """In the caller's transaction: somebody looks for due work now."""
    cursor.execute(_SQL["note_looked"], {"subject": _SUBJECT})


def read_silence(cursor: Any) -> tuple[timedelta, bool]:
    """For how long nobody has looked, and whether anybody ever did; if not, how long ago the first run was."""
    cursor.execute(_SQL["silence"], {"subject": _SUBJECT})
    silent, ever = cursor.fetchone()
    return silent, ever


def is_silent(silent: timedelta, ever: bool) -> bool:
    return silent >= (SILENT_AFTER if ever else NEVER_AFTER)


def judge_silence(settings: Settings, silent: timedelta, ever: bool) -> Answer:
    """The rule's answer; none is wanted where the settings say that nobody looks."""
    if not settings.schedule.on_demand or not is_silent(silent, ever):
        return Answer(NOBODY_LOOKS, "*", "*", None)
    since = f"for {silent.total_seconds() / 60:.0f} minutes" if ever else "so far"
    return Answer(
        NOBODY_LOOKS,
        "*",
        "*",
        Finding(
            "warning",
            f"Nobody has looked for due work {since}",
            "The trigger in Airflow's triggerer starts each duty when it has something to do. Without it duties start late: at each run"
            f" of the watch, and every {written(settings.schedule.safety_interval)} by themselves. Nothing is lost by that. Do: see"
            " whether the triggerer runs (`airflow jobs check --job-type TriggererJob`), its log, and whether it reaches the control"
            " database. Without a triggerer, write `schedule: {on_demand: false}` in backstop.yaml.",
        ),
    )
