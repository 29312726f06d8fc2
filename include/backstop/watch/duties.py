"""Says of each scheduled duty when it last succeeded and whether that is too long ago: for the watch, the console and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from backstop.config.durations import written
from backstop.config.settings import Settings
from backstop.model.records import LATEST
from backstop.sql.named import load
from backstop.watch.samples import Answer, Finding

_SQL = load("backstop.watch", "queries.sql")


@dataclass(frozen=True, slots=True)
class DutyAge:
    """One watched duty, by its runs over everything that were no dry ones; a run that was incomplete is no success."""

    duty: str
    last_success: datetime | None
    success_run: int | None
    last_failure: datetime | None
    failure_run: int | None
    allowed: timedelta
    """How long ago it may have succeeded last."""
    late_from: datetime
    """The instant after which it is overdue, unless it succeeds before."""
    is_overdue: bool


def read_ages(cursor: Any, settings: Settings) -> tuple[list[DutyAge], datetime]:
    """Each watched duty, and the control database's now. A duty that never succeeded has time from the first run of all, and one
    that is idle until its slow schedule starts it."""
    watched = settings.watched_duties()
    idle = _idle_duties(cursor, settings)
    cursor.execute(_SQL["now"])
    (now,) = cursor.fetchone()
    cursor.execute(_SQL["duties"], {"duties": list(watched)})
    ages = []
    for duty, success, success_run, failure, failure_run, counted_from in cursor.fetchall():
        allowed = watched[duty]
        if duty in idle:
            allowed += settings.schedule.safety_interval
        counted_from = counted_from or now
        late_from = counted_from + min(allowed, LATEST - counted_from)
        ages.append(
            DutyAge(
                duty,
                success,
                success_run,
                failure,
                failure_run,
                allowed,
                late_from,
                now > late_from,
            )
        )
    return ages, now


def _idle_duties(cursor: Any, settings: Settings) -> frozenset[str]:
    """Duties that are started when there is something to do, and had nothing to do for as long as they may be late."""
    allowed = settings.watched_duties().get("deliver_alerts")
    if allowed is None or not settings.schedule.on_demand:
        return frozenset()
    cursor.execute(_SQL["alert_waits"], {"longer": allowed})
    return frozenset() if cursor.fetchone()[0] else frozenset({"deliver_alerts"})


def overdue(ages: Sequence[DutyAge]) -> list[Answer]:
    """One answer for each duty that is to be watched."""
    answers = []
    for age in ages:
        duty, last, failed = age.duty, age.last_success, age.last_failure
        if not age.is_overdue:
            answers.append(Answer("duty_overdue", duty, "*", None))
            continue
        since = f"since {last:%Y-%m-%d %H:%M:%S} UTC" if last else "as long as Backstop knows"
        why = (
            f"Its last failure was at {failed:%H:%M:%S}: read it with `backstop runs list --duty {duty}`."
            if failed and (last is None or failed > last)
            else "No run failed meanwhile: it was not started, was killed, or its DAG does not load"
            " (`airflow dags list-import-errors`; is the scheduler alive, is the DAG paused?)."
        )
        answers.append(
            Answer(
                "duty_overdue",
                duty,
                "*",
                Finding(
                    "critical",
                    f"The duty {duty} has not succeeded {since}",
                    f"It may not be longer than {written(age.allowed)} (watch.allowed_age). {why} Nothing is lost by the delay alone: the"
                    f" next run goes on where the last one stopped. Until then no new loss is found or repaired.",
                ),
            )
        )
    return answers
