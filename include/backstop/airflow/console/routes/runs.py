"""What each run did."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import HTTPException
from pydantic import Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Id,
    Limit,
    Routes,
    Visiting,
)
from backstop.airflow.console.visit import NOT_FOUND, Visit
from backstop.reports.console import read_one, read_page, read_rows

# No postponed annotations: FastAPI and Pydantic read them.


class RunRow(m.Answer):
    """A run in the list."""

    run: int
    duty: str
    scope: str
    state: str
    dry_run: bool
    started_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime
    heartbeat_age: float
    stuck: bool = Field(description="not finished, and without a heartbeat for two minutes")
    counts: dict[str, Any]
    phases: dict[str, Any]
    error: str | None
    check_failed: bool


class BrokenCheck(m.Answer):
    """A check that failed, with the ids of the first rows that break it."""

    name: str
    must_hold: str | None
    count: int
    ids: list[dict[str, Any]]


class Check(m.Answer):
    """One suite of data checks over a run."""

    suite: str
    passed: bool
    expectations: int
    failed: list[BrokenCheck]
    checked_at: datetime


class VerdictCount(m.Answer):
    """What a run found of one topic and group."""

    topic: str
    group: str
    verdict: str
    deliveries: int
    eligible: int
    newly: int


class Unread(m.Answer):
    """What a run could not read to the end."""

    subject: str
    detail: str | None


class Run(m.Answer):
    """One run."""

    run: int
    duty: str
    scope: str
    state: str
    dry_run: bool
    no_send: bool
    started_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime
    heartbeat_age: float
    stuck: bool
    as_of: datetime
    stage: int
    policy_version: str
    code_version: str
    counts: dict[str, Any]
    phases: dict[str, Any]
    error: str | None
    checks: list[Check]
    verdicts: list[VerdictCount]
    unread: list[Unread]


STUCK_SECONDS = 120.0
"""As long as a run's lease lives without a heartbeat."""


def _stuck(row: dict[str, Any]) -> bool:
    return bool(row["finished_at"] is None and row["heartbeat_age"] > STUCK_SECONDS)


def list_runs(
    visited: Visiting,
    filter: Filter = "",
    empty: bool = False,
    after: After = None,
    limit: Limit = 50,
) -> m.Page[RunRow]:
    """Runs of the duties whose DAG you may read, the newest first; `empty`: also those that found nothing to do. Filters: duty,
    state."""
    page = read_page(
        visited.conn,
        "runs",
        visited.sight,
        filter,
        after,
        limit,
        duties=visited.duties(),
        busy=not empty,
    )
    return m.Page[RunRow](
        items=[RunRow(**row, stuck=_stuck(row)) for row in page.rows], next=page.next
    )


def show_run(visited: Visiting, run_id: Annotated[int, Id]) -> Run:
    """One run: phases, counts, heartbeat, what it found of the topics that you see, its data checks with the ids that failed."""
    row = read_one(visited.conn, "run", visited.sight, run_id=run_id, duties=visited.duties())
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    checks = [
        Check(**{**one, "failed": [_broken(visited, broken) for broken in one["failed"]]})
        for one in read_rows(visited.conn, "checks", visited.sight, run_id=run_id)
    ]
    verdicts = [
        VerdictCount(**one)
        for one in read_rows(visited.conn, "verdicts_of_run", visited.sight, run_id=run_id)
    ]
    unread = [
        Unread(**one)
        for one in read_rows(visited.conn, "reads_of_run", visited.sight, run_id=run_id)
    ]
    return Run(**row, stuck=_stuck(row), checks=checks, verdicts=verdicts, unread=unread)


def _broken(visited: Visit, broken: dict[str, Any]) -> BrokenCheck:
    ids = [one for one in broken.get("ids") or [] if visited.sight.sees(one.get("topic"))]
    return BrokenCheck(
        name=broken["name"], must_hold=broken.get("must_hold"), count=broken["count"], ids=ids
    )


ROUTES: Routes = (
    ("GET", "/runs", list_runs),
    ("GET", "/runs/{run_id}", show_run),
)
