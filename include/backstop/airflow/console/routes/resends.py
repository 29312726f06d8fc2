"""Resends, the batches in which they go out, and pauses."""

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Limit,
    Routes,
    Visiting,
    page_of,
)
from backstop.airflow.console.visit import require, writing
from backstop.reports.console import read_rows

# No postponed annotations: FastAPI reads them.


def list_requests(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Request]:
    """Resends, the newest first. Filters: topic, state, id, batch, run, day (UTC)."""
    return page_of(visited, "requests", m.Request, filter, after, limit)


def list_batches(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Batch]:
    """Resends that go out in steps, the newest first. Filters: topic, state."""
    return page_of(visited, "batches", m.Batch, filter, after, limit)


def list_pauses(visited: Visiting) -> list[m.Pause]:
    """The pauses in force."""
    return [m.Pause(**row) for row in read_rows(visited.conn, "pauses", visited.sight)]


def add_pause(visited: Visiting, said: m.NewPause) -> m.Changed:
    """Stops sending a topic, or everything, between two batches. Verdicts and cases go on."""
    from backstop.restore.pause import pause

    if said.topic != "*":
        visited.require_sees(said.topic)
    require(visited.why_not_pause(said.topic))
    with writing() as room:
        return m.Changed(
            changed=pause(room.control, visited.topics, said.topic, visited.visitor.name, said.why)
        )


def end_pause(visited: Visiting, said: m.EndOfPause) -> m.Changed:
    """Goes on with a topic; `*` lifts every pause. For who may decide to resend there."""
    from backstop.restore.pause import resume

    if said.topic != "*":
        visited.require_sees(said.topic)
    require(visited.why_not_resume(said.topic))
    with writing() as room:
        return m.Changed(
            changed=resume(room.control, room.settings, said.topic, visited.visitor.name)
        )


ROUTES: Routes = (
    ("GET", "/resends", list_requests),
    ("GET", "/batches", list_batches),
    ("GET", "/pauses", list_pauses),
    ("POST", "/pauses", add_pause),
    ("POST", "/pauses/end", end_pause),
)
