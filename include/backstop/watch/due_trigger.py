"""Notices that nobody looks for due work, or not in one place: then duties run on their slow schedules alone, and nothing else
says so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from backstop.config.durations import written
from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.watch.samples import Answer, Finding

_SQL = load("backstop.watch", "queries.sql")
NOBODY_LOOKS = "nobody_looks"
_SUBJECT = "due work is looked for"
_UNSEEN = "due work is not seen: "
"""... and the name of a place: since when it does not answer."""
SILENT_AFTER = timedelta(minutes=5)
"""Thirty notes of the trigger: a triggerer that is started again, or hands over to another, is back by then."""
NEVER_AFTER = timedelta(hours=1)
"""Of an installation that nobody ever looked in, since its first run."""


def note_looked(cursor: Any, silent: Mapping[str, float]) -> None:
    """In the caller's transaction: somebody looks for due work now, and for so many seconds these places have not answered."""
    cursor.execute(_SQL["note_looked"], {"subject": _SUBJECT})
    subjects = [f"{_UNSEEN}{place}" for place in silent]
    values = {"unseen": _UNSEEN, "subjects": subjects, "seconds": list(silent.values())}
    cursor.execute(_SQL["note_unseen"], values)


def read_silence(cursor: Any) -> tuple[timedelta, bool]:
    """For how long nobody has looked, and whether anybody ever did; if not, how long ago the first run was."""
    cursor.execute(_SQL["silence"], {"subject": _SUBJECT})
    silent, ever = cursor.fetchone()
    return silent, ever


def read_unseen(cursor: Any) -> dict[str, datetime | None]:
    """Place -> since when it has not answered who looks; None: it answers, and a finding still says that it does not."""
    cursor.execute(_SQL["unseen"], {"unseen": _UNSEEN, "rule": NOBODY_LOOKS})
    return dict(cursor.fetchall())


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


def judge_unseen(
    settings: Settings, silent: timedelta, ever: bool, unseen: Mapping[str, datetime | None]
) -> list[Answer]:
    """The same of single places. While nobody looks at all, none of them is known to answer or not to."""
    if settings.schedule.on_demand and is_silent(silent, ever):
        return []
    slow = written(settings.schedule.safety_interval)
    return [
        Answer(
            NOBODY_LOOKS,
            place,
            "*",
            None
            if since is None or not settings.schedule.on_demand
            else Finding(
                "warning",
                f"Due work is not seen in {place} since {since:%Y-%m-%d %H:%M} UTC",
                f"It does not answer the trigger in Airflow's triggerer, which starts duties when they have something to do. What is due"
                f" there starts by the slow schedules alone, every {slow}. Nothing is lost by that. Do: see whether it is up, and"
                f" whether its connection in Airflow is valid for the triggerer, too; the triggerer's log names the error. The trigger"
                f" asks Airflow for the connection again at each try.",
            ),
        )
        for place, since in unseen.items()
    ]
