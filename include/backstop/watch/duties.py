"""Says of each scheduled duty when it last succeeded and whether that is too long ago. Pure, but for one question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from backstop.config.durations import written
from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.watch.samples import Answer, Finding

_SQL = load("backstop.watch", "queries.sql")
EVERYTHING = "*"
"""The scope of the scheduled runs: one of a single topic, by hand, proves nothing about the schedule."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One duty over one scope, by its runs that were no dry ones; a run that was incomplete is no success."""

    duty: str
    scope: str
    last_success: datetime | None
    last_failure: datetime | None
    first_run: datetime | None


def read_duties(cursor: Any) -> tuple[list[Standing], datetime, datetime]:
    """Every duty and scope that ever ran, the instant of the first run of all, and the control database's now."""
    cursor.execute(_SQL["duties"])
    standings = [Standing(*row) for row in cursor.fetchall()]
    cursor.execute(_SQL["installed"])
    installed, now = cursor.fetchone()
    return standings, installed, now


def allowed_now(cursor: Any, settings: Settings) -> dict[str, timedelta]:
    """How long ago each watched duty may have succeeded last. One that had nothing to do for as long has time until its slow schedule
    starts it."""
    allowed = settings.watched_duties()
    if settings.schedule.on_demand and "deliver_alerts" in allowed:
        cursor.execute(_SQL["alert_waits"], {"longer": allowed["deliver_alerts"]})
        if not cursor.fetchone()[0]:
            allowed["deliver_alerts"] += settings.schedule.safety_interval
    return allowed


def overdue(
    watched: Mapping[str, timedelta],
    standings: Sequence[Standing],
    installed: datetime,
    now: datetime,
) -> list[Answer]:
    """One answer for each duty of `watched`, which says how long ago it may have succeeded last; one that never ran has time from
    the first run of all."""
    known = {standing.duty: standing for standing in standings if standing.scope == EVERYTHING}
    answers = []
    for duty, allowed in watched.items():
        standing = known.get(duty)
        last = standing.last_success if standing else None
        if now - (last or installed) <= allowed:
            answers.append(Answer("duty_overdue", duty, "*", None))
            continue
        since = f"since {last:%Y-%m-%d %H:%M:%S} UTC" if last else "as long as Backstop knows"
        failed = standing.last_failure if standing else None
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
                    f"It may not be longer than {written(allowed)} (watch.allowed_age). {why} Nothing is lost by the delay alone: the"
                    f" next run goes on where the last one stopped. Until then no new loss is found or repaired.",
                ),
            )
        )
    return answers
