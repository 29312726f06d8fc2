"""Resends, the batches in which they go out, and pauses."""

from datetime import datetime

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Limit,
    Routes,
    Visiting,
    page_of,
)
from backstop.airflow.console.visit import NOT_FOUND, require, writing
from backstop.reports.console import read_rows

# No postponed annotations: FastAPI and Pydantic read them.


class Request(m.Answer):
    """A resend."""

    request: int
    topic: str
    message_id: str
    send: int
    groups: list[str] | None
    reason: str
    requested_by: str
    route: str
    state: str
    held: bool
    batch: int | None
    step: int | None
    not_before: datetime
    run: int | None
    closed_by_run: int | None
    created_at: datetime
    updated_at: datetime


class Batch(m.Answer):
    """Resends of one topic that go out in steps."""

    batch: int
    topic: str
    state: str
    step: int
    step_size: int
    released: int
    released_at: datetime
    created_at: datetime
    ended_at: datetime | None
    case: int | None
    held: int | None = Field(description="how many wait for a step; null: the batch has ended")
    sent_last_minute: int | None = Field(
        description="how many went out within the last minute (10001: more); null: it has ended"
    )


class NewPause(BaseModel):
    """What to pause, and why."""

    model_config = ConfigDict(extra="forbid")
    topic: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="`*`: everything"
    )
    why: str = Field(min_length=1, max_length=10_000, pattern=r"^[^\x00]*$")


class EndOfPause(BaseModel):
    """What to go on with."""

    model_config = ConfigDict(extra="forbid")
    topic: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="`*`: everything"
    )


def list_requests(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Request]:
    """Resends, the newest first. Filters: topic, state, id, batch, run, plan, day (UTC)."""
    return page_of(visited, "requests", Request, filter, after, limit)


def list_batches(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Batch]:
    """Resends that go out in steps, the newest first. Filters: topic, state."""
    return page_of(visited, "batches", Batch, filter, after, limit)


def list_pauses(visited: Visiting) -> list[m.Pause]:
    """The pauses in force."""
    return [m.Pause(**row) for row in read_rows(visited.conn, "pauses", visited.sight)]


def add_pause(visited: Visiting, said: NewPause) -> m.Changed:
    """Stops sending a topic, or everything, between two batches. Verdicts and cases go on."""
    from backstop.restore.pause import pause

    if said.topic != "*":
        visited.require_sees(said.topic)
    require(visited.why_not_pause(said.topic))
    with writing() as room:
        return m.Changed(
            changed=pause(room.control, visited.topics, said.topic, visited.visitor.name, said.why)
        )


def end_pause(visited: Visiting, said: EndOfPause) -> m.Changed:
    """Goes on with a topic; `*` lifts every pause. For who may decide to resend there."""
    from backstop.restore.pause import resume

    if said.topic != "*":
        visited.require_sees(said.topic)
        if said.topic not in visited.topics:  # the refusal would name every team's topics
            raise HTTPException(404, NOT_FOUND)
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
