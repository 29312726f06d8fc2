"""Is everything done?"""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    OneTopic,
    Routes,
    Visiting,
)
from backstop.airflow.console.routes.cases import waiting_for
from backstop.airflow.console.routes.flow import groups_now
from backstop.airflow.console.visit import Visit
from backstop.reports.console import filter_text, read_one, read_rows
from backstop.watch import duties as watch

# No postponed annotations: FastAPI and Pydantic read them.


class Number(m.Answer):
    """One number of the overview."""

    name: str
    number: int
    rows: m.Rows


class Pair(m.Answer):
    """One topic and group."""

    topic: str
    group: str
    verdicts: dict[str, int]
    dead_letters: int


class OpenCases(m.Answer):
    """Open cases of one severity."""

    severity: str
    number: int
    oldest: datetime
    rows: m.Rows


class DutyAge(m.Answer):
    """How long ago a scheduled duty succeeded."""

    duty: str
    succeeded_at: datetime | None
    success_run: int | None
    failed_at: datetime | None
    failure_run: int | None
    allowed_seconds: float
    overdue: bool


class Finding(m.Answer):
    """What the watch sees now."""

    finding: int
    rule: str
    topic: str
    group: str
    severity: str
    title: str
    began_at: datetime
    last_seen_at: datetime


class NewestRun(m.Answer):
    """What the newest complete run of reconcile read."""

    run: int
    as_of: datetime
    read: int = Field(description="deliveries; the sum of `verdicts`")
    verdicts: dict[str, int]


class Overview(m.Answer):
    """Is everything done?"""

    now: datetime
    newest_look_at: datetime | None
    newest_run: NewestRun | None
    numbers: list[Number]
    pairs: list[Pair]
    cases: list[OpenCases]
    duties: list[DutyAge]
    findings: list[Finding]
    pauses: list[m.Pause]
    waits_for_me: int = Field(description="open cases that the visitor may decide")
    oldest_backlog_seconds: float | None


class Bucket(m.Answer):
    """One hour."""

    hour: datetime
    verdicts: dict[str, int]


class History(m.Answer):
    """Open deliveries by verdict as each hour ended; CONFIRMED: how many became so within it."""

    buckets: list[Bucket]


class Waiting(m.Answer):
    """What waits for the visitor."""

    cases: int


_NAMES = {
    "LOST": "lost",
    "UNSENT": "unsent",
    "STALLED": "stalled",
    "UNKNOWN": "unknown",
    "EXHAUSTED": "exhausted",
    "DEAD_LETTERED": "dead_lettered",
    "PARKED": "parked",
    "BACKLOGGED": "backlogged",
    "IN_PROGRESS": "in_progress",
}


def show_overview(visited: Visiting) -> Overview:
    """Is everything done? Each number names the list and the filter whose rows add up to it."""
    sight, conn = visited.sight, visited.conn
    tallies = read_rows(conn, "tallies", sight)
    with conn, conn.cursor() as cursor:
        ages, now = watch.read_ages(cursor, visited.settings)
    groups = groups_now(visited)
    pauses = [m.Pause(**row) for row in read_rows(conn, "pauses", sight)]
    open_cases = read_rows(conn, "open_cases", sight)
    newest = read_one(conn, "newest_look", sight)
    return Overview(
        now=now,
        newest_look_at=newest["taken_at"] if newest else None,
        newest_run=_newest_run(visited),
        numbers=_numbers(tallies, now),
        pairs=_pairs(visited, tallies),
        cases=_by_severity(open_cases),
        duties=[_duty_age(age) for age in ages],
        findings=[Finding(**row) for row in read_rows(conn, "findings", sight)],
        pauses=pauses,
        waits_for_me=_waits_for(visited, open_cases),
        oldest_backlog_seconds=max((row["backlog_seconds"] for row in groups), default=None),
    )


def show_waiting(visited: Visiting) -> Waiting:
    """How many open cases you may decide."""
    return Waiting(cases=_waits_for(visited, read_rows(visited.conn, "open_cases", visited.sight)))


def _waits_for(visited: Visit, open_cases: list[dict[str, Any]]) -> int:
    return sum(row["number"] for row in waiting_for(visited, open_cases))


def _numbers(tallies: list[dict[str, Any]], now: datetime) -> list[Number]:
    def count(subject: str, state: str) -> int:
        return sum(
            row["number"] for row in tallies if (row["subject"], row["state"]) == (subject, state)
        )

    numbers = [
        Number(
            name=name,
            number=count("delivery", verdict),
            rows=m.Rows(list="/deliveries", filter=filter_text(verdict=verdict)),
        )
        for verdict, name in _NAMES.items()
    ]
    numbers += [
        Number(
            name=f"dead_letters_{state}",
            number=count("dead_letter", state),
            rows=m.Rows(list="/dead-letters", filter=filter_text(state=state)),
        )
        for state in ("open", "replaying")
    ]
    # Open requests count whatever their day; ended ones of today.
    numbers += [
        Number(
            name=f"resends_{state}",
            number=count("request", state),
            rows=m.Rows(list="/resends", filter=filter_text(state=state)),
        )
        for state in ("open", "claimed")
    ]
    day = now.astimezone(UTC).date()
    numbers += [
        Number(
            name=f"{name}_today",
            number=sum(
                row["number"]
                for row in tallies
                if (row["subject"], row["state"], row["day"]) == ("request", state, day)
            ),
            rows=m.Rows(list="/resends", filter=filter_text(state=state, day=day)),
        )
        for state, name in (
            ("sent", "resent"),
            ("refused", "refused"),
            ("unknown", "unknown_sends"),
        )
    ]
    return numbers


def _pairs(visited: Visit, tallies: list[dict[str, Any]]) -> list[Pair]:
    verdicts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    letters: dict[tuple[str, str], int] = defaultdict(int)
    for topic in visited.topics:
        for group in visited.settings.groups_of(topic):
            verdicts[topic, group] = {}
    for row in tallies:
        pair = row["topic"], row["group"]
        if row["subject"] == "delivery":
            verdicts[pair][row["state"]] = row["number"]
        elif row["subject"] == "dead_letter":
            letters[pair] += row["number"]
    return [
        Pair(
            topic=topic,
            group=group,
            verdicts=verdicts.get((topic, group), {}),
            dead_letters=letters.get((topic, group), 0),
        )
        for topic, group in sorted({*verdicts, *letters})
    ]


def _by_severity(rows: list[dict[str, Any]]) -> list[OpenCases]:
    found = []
    for severity in ("critical", "warning", "info"):
        mine = [row for row in rows if row["severity"] == severity]
        if mine:
            found.append(
                OpenCases(
                    severity=severity,
                    number=sum(row["number"] for row in mine),
                    oldest=min(row["oldest"] for row in mine),
                    rows=m.Rows(list="/cases", filter=filter_text(state="open", severity=severity)),
                )
            )
    return found


def _duty_age(age: watch.DutyAge) -> DutyAge:
    return DutyAge(
        duty=age.duty,
        succeeded_at=age.last_success,
        success_run=age.success_run,
        failed_at=age.last_failure,
        failure_run=age.failure_run,
        allowed_seconds=age.allowed.total_seconds(),
        overdue=age.is_overdue,
    )


def _newest_run(visited: Visit) -> NewestRun | None:
    rows = read_rows(visited.conn, "newest_reconcile", visited.sight)
    verdicts = {row["verdict"]: row["deliveries"] for row in rows if row["verdict"] is not None}
    if not rows:
        return None
    return NewestRun(
        run=rows[0]["run"], as_of=rows[0]["as_of"], read=sum(verdicts.values()), verdicts=verdicts
    )


def show_history(
    visited: Visiting,
    hours: Annotated[int, Query(ge=1, le=24 * 31)] = 24,
    topic: OneTopic = None,
    group: OneTopic = None,
) -> History:
    """Open deliveries by verdict, hour by hour."""
    buckets: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in read_rows(
        visited.conn, "history", visited.sight, hours=hours, topic=topic, group=group
    ):
        buckets[row["hour"]][row["verdict"]] = row["deliveries"]
    return History(
        buckets=[Bucket(hour=hour, verdicts=verdicts) for hour, verdicts in sorted(buckets.items())]
    )


ROUTES: Routes = (
    ("GET", "/waiting", show_waiting),
    ("GET", "/overview", show_overview),
    ("GET", "/history", show_history),
)
