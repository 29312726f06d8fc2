"""Is everything done?"""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query

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

# No postponed annotations: FastAPI reads them.

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


def show_overview(visited: Visiting) -> m.Overview:
    """Is everything done? Each number names the list and the filter whose rows add up to it."""
    sight, conn = visited.sight, visited.conn
    tallies = read_rows(conn, "tallies", sight)
    duties = read_rows(conn, "duties", sight, duties=list(visited.settings.watched_duties()))
    now = duties[0]["now"] if duties else datetime.now(UTC)
    groups = groups_now(visited)
    pauses = [m.Pause(**row) for row in read_rows(conn, "pauses", sight)]
    open_cases = read_rows(conn, "open_cases", sight)
    newest = read_one(conn, "newest_look", sight)
    return m.Overview(
        now=now,
        newest_look_at=newest["taken_at"] if newest else None,
        newest_run=_newest_run(visited),
        numbers=_numbers(tallies, now),
        pairs=_pairs(visited, tallies),
        cases=_by_severity(open_cases),
        duties=[_duty_age(visited, row) for row in duties],
        findings=[m.Finding(**row) for row in read_rows(conn, "findings", sight)],
        pauses=pauses,
        waits_for_me=_waits_for(visited, open_cases),
        oldest_backlog_seconds=max((row["backlog_seconds"] for row in groups), default=None),
    )


def show_waiting(visited: Visiting) -> m.Waiting:
    """How many open cases you may decide."""
    return m.Waiting(
        cases=_waits_for(visited, read_rows(visited.conn, "open_cases", visited.sight))
    )


def _waits_for(visited: Visit, open_cases: list[dict[str, Any]]) -> int:
    return sum(row["number"] for row in waiting_for(visited, open_cases))


def _numbers(tallies: list[dict[str, Any]], now: datetime) -> list[m.Number]:
    def count(subject: str, state: str) -> int:
        return sum(
            row["number"] for row in tallies if (row["subject"], row["state"]) == (subject, state)
        )

    numbers = [
        m.Number(
            name=name,
            number=count("delivery", verdict),
            rows=m.Rows(list="/deliveries", filter=filter_text(verdict=verdict)),
        )
        for verdict, name in _NAMES.items()
    ]
    numbers += [
        m.Number(
            name=f"dead_letters_{state}",
            number=count("dead_letter", state),
            rows=m.Rows(list="/dead-letters", filter=filter_text(state=state)),
        )
        for state in ("open", "replaying")
    ]
    # Open requests count whatever their day; ended ones of today.
    numbers += [
        m.Number(
            name=f"resends_{state}",
            number=count("request", state),
            rows=m.Rows(list="/resends", filter=filter_text(state=state)),
        )
        for state in ("open", "claimed")
    ]
    day = now.astimezone(UTC).date()
    numbers += [
        m.Number(
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


def _pairs(visited: Visit, tallies: list[dict[str, Any]]) -> list[m.Pair]:
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
        m.Pair(
            topic=topic,
            group=group,
            verdicts=verdicts.get((topic, group), {}),
            dead_letters=letters.get((topic, group), 0),
        )
        for topic, group in sorted({*verdicts, *letters})
    ]


def _by_severity(rows: list[dict[str, Any]]) -> list[m.OpenCases]:
    found = []
    for severity in ("critical", "warning", "info"):
        mine = [row for row in rows if row["severity"] == severity]
        if mine:
            found.append(
                m.OpenCases(
                    severity=severity,
                    number=sum(row["number"] for row in mine),
                    oldest=min(row["oldest"] for row in mine),
                    rows=m.Rows(list="/cases", filter=filter_text(state="open", severity=severity)),
                )
            )
    return found


def _duty_age(visited: Visit, row: dict[str, Any]) -> m.DutyAge:
    allowed = visited.settings.watched_duties()[row["duty"]]
    last = row["succeeded_at"]
    return m.DutyAge(
        **{name: value for name, value in row.items() if name != "now"},
        allowed_seconds=allowed.total_seconds(),
        overdue=last is None or row["now"] - last > allowed,
    )


def _newest_run(visited: Visit) -> m.NewestRun | None:
    rows = read_rows(visited.conn, "newest_reconcile", visited.sight)
    verdicts = {row["verdict"]: row["deliveries"] for row in rows if row["verdict"] is not None}
    if not rows:
        return None
    return m.NewestRun(
        run=rows[0]["run"], as_of=rows[0]["as_of"], read=sum(verdicts.values()), verdicts=verdicts
    )


def show_history(
    visited: Visiting,
    hours: Annotated[int, Query(ge=1, le=24 * 31)] = 24,
    topic: OneTopic = None,
    group: OneTopic = None,
) -> m.History:
    """Open deliveries by verdict, hour by hour."""
    buckets: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in read_rows(
        visited.conn, "history", visited.sight, hours=hours, topic=topic, group=group
    ):
        buckets[row["hour"]][row["verdict"]] = row["deliveries"]
    return m.History(
        buckets=[
            m.Bucket(hour=hour, verdicts=verdicts) for hour, verdicts in sorted(buckets.items())
        ]
    )


ROUTES: Routes = (
    ("GET", "/waiting", show_waiting),
    ("GET", "/overview", show_overview),
    ("GET", "/history", show_history),
)
