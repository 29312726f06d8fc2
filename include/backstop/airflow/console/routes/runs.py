"""What each run did."""

from typing import Annotated, Any

from fastapi import HTTPException

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

# No postponed annotations: FastAPI reads them.
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
) -> m.Page[m.RunRow]:
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
    return m.Page[m.RunRow](
        items=[m.RunRow(**row, stuck=_stuck(row)) for row in page.rows], next=page.next
    )


def show_run(visited: Visiting, run_id: Annotated[int, Id]) -> m.Run:
    """One run: phases, counts, heartbeat, what it found of the topics that you see, its data checks with the ids that failed."""
    row = read_one(visited.conn, "run", visited.sight, run_id=run_id, duties=visited.duties())
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    checks = [
        m.Check(**{**one, "failed": [_broken(visited, broken) for broken in one["failed"]]})
        for one in read_rows(visited.conn, "checks", visited.sight, run_id=run_id)
    ]
    verdicts = [
        m.VerdictCount(**one)
        for one in read_rows(visited.conn, "verdicts_of_run", visited.sight, run_id=run_id)
    ]
    unread = [
        m.Unread(**one)
        for one in read_rows(visited.conn, "reads_of_run", visited.sight, run_id=run_id)
    ]
    return m.Run(**row, stuck=_stuck(row), checks=checks, verdicts=verdicts, unread=unread)


def _broken(visited: Visit, broken: dict[str, Any]) -> m.BrokenCheck:
    ids = [one for one in broken.get("ids") or [] if visited.sight.sees(one.get("topic"))]
    return m.BrokenCheck(
        name=broken["name"], must_hold=broken.get("must_hold"), count=broken["count"], ids=ids
    )


ROUTES: Routes = (
    ("GET", "/runs", list_runs),
    ("GET", "/runs/{run_id}", show_run),
)
