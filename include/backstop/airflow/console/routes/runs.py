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
    page_of,
)
from backstop.airflow.console.visit import NOT_FOUND, Visit
from backstop.reports.console import read_one, read_page, read_rows
from backstop.runs.run import DEAD_AFTER

# No postponed annotations: FastAPI and Pydantic read them.


class Phase(m.Answer):
    """What a run does now; of an abandoned one, what it did when it was last heard of."""

    name: str
    since: datetime
    done: int | None = Field(description="how much of it is done; null: nobody counts")
    of: int | None


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
    phase: Phase | None
    counts: dict[str, Any]
    phases: dict[str, Any] = Field(description="seconds of each phase that ended")
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
    phase: Phase | None
    counts: dict[str, Any]
    phases: dict[str, Any] = Field(description="seconds of each phase that ended")
    error: str | None
    checks: list[Check]
    verdicts: list[VerdictCount] = Field(
        description="the first 1,000; /runs/{run_id}/verdicts has all of them, page by page"
    )
    unread: list[Unread]


def _live(row: dict[str, Any]) -> dict[str, Any]:
    """The row with what it says of the present in the API's words."""
    rest = {name: value for name, value in row.items() if not name.startswith("phase_")}
    at_work = row["finished_at"] is None
    phase = None
    if row["phase"] is not None and (at_work or row["state"] == "abandoned"):
        phase = Phase(
            name=row["phase"],
            since=row["phase_at"],
            done=row["phase_done"],
            of=row["phase_of"],
        )
    return {
        **rest,
        "phase": phase,
        "stuck": at_work and row["heartbeat_age"] > DEAD_AFTER.total_seconds(),
    }


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
    return m.Page[RunRow](items=[RunRow(**_live(row)) for row in page.rows], next=page.next)


def _require_run(visited: Visit, run_id: int) -> dict[str, Any]:
    row = read_one(visited.conn, "run", visited.sight, run_id=run_id, duties=visited.duties())
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    return row


def list_verdicts(
    visited: Visiting,
    run_id: Annotated[int, Id],
    filter: Filter = "",
    after: After = None,
    limit: Limit = 50,
) -> m.Page[VerdictCount]:
    """What a run found, by topic, group and verdict. Filters: topic, group, verdict."""
    _require_run(visited, run_id)
    return page_of(visited, "verdicts", VerdictCount, filter, after, limit, run_id=run_id)


def show_run(visited: Visiting, run_id: Annotated[int, Id]) -> Run:
    """One run: its phase, counts, heartbeat, what it found of the topics that you see, its data checks with the ids that failed."""
    row = _require_run(visited, run_id)
    checks = [
        Check(**{**one, "failed": [_broken(visited, broken) for broken in one["failed"]]})
        for one in read_rows(visited.conn, "checks", visited.sight, run_id=run_id)
    ]
    first = dict.fromkeys(("topic", "group", "verdict", "after_1", "after_2", "after_3"))
    verdicts = [
        VerdictCount(**one)
        for one in read_rows(
            visited.conn, "verdicts_of_run", visited.sight, run_id=run_id, limit=1_000, **first
        )
    ]
    unread = [
        Unread(**one)
        for one in read_rows(visited.conn, "reads_of_run", visited.sight, run_id=run_id)
    ]
    return Run(**_live(row), checks=checks, verdicts=verdicts, unread=unread)


def _broken(visited: Visit, broken: dict[str, Any]) -> BrokenCheck:
    ids = [one for one in broken.get("ids") or [] if visited.sight.sees(one.get("topic"))]
    return BrokenCheck(
        name=broken["name"], must_hold=broken.get("must_hold"), count=broken["count"], ids=ids
    )


ROUTES: Routes = (
    ("GET", "/runs", list_runs),
    ("GET", "/runs/{run_id}", show_run),
    ("GET", "/runs/{run_id}/verdicts", list_verdicts),
)
