"""Plans to send again what an incident lost."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import HTTPException, Path
from pydantic import Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    LARGEST,
    NO_NUL,
    After,
    Filter,
    Limit,
    Routes,
    Visiting,
    page_of,
    part,
)
from backstop.airflow.console.visit import NOT_FOUND, REPLAY, Visit
from backstop.airflow.links import base_url
from backstop.airflow.replay_incident import NO
from backstop.reports.console import read_one, read_rows

# No postponed annotations: FastAPI and Pydantic read them.


class Replay(m.Answer):
    """A plan to send again what an incident lost."""

    plan: int = Field(description="the number of its run")
    topic: str
    planned_by: str
    planned_at: datetime
    why: str
    wanted: dict[str, Any]
    whole: bool = Field(description="false: its planning was cut short, or is under way")
    too_wide: bool = Field(description="more than the blast radius of the policy")
    approved_by: str | None
    approved_at: datetime | None
    dag_run: str | None = Field(description="of replay_incident; null: planned by command line")


class ReplayPart(m.Answer):
    """The deliveries of a plan to one group for one reason."""

    group: str
    reason: str
    deliveries: int
    requested: int
    left_out: int = Field(description="because they changed between plan and request")


class ReplayDelivery(m.Answer):
    """A delivery of a plan."""

    place: int = Field(description="plans are requested in this order")
    topic: str
    message_id: str
    group: str
    send: int
    route: str
    reason: str
    state: str = Field(description="planned, requested, or left_out: it changed since")
    asked_at: datetime | None
    left_out: str | None = Field(description="why it was left out")


class WholeReplay(Replay):
    """A plan with its progress."""

    parts: list[ReplayPart]
    left_out: dict[str, int] = Field(description="why -> deliveries that were not planned")
    examples: list[str]
    sends: dict[str, int] = Field(
        description="state of the request -> how many, for the first `sends_of` deliveries that were requested"
    )
    sends_of: int = Field(
        description="requested deliveries that `sends` counts the requests of. Where `parts` have more requested, the rest is"
        " in /resends with the filter plan:<plan> alone"
    )
    actions: list[m.Action]
    form: m.Form | None = Field(description="null: Airflow asks nobody about this plan")


SENDS_COUNTED = 2_000
"""Deliveries of a plan whose requests its page counts: each is looked up."""
PlanName = Annotated[str, Path(max_length=1_000, pattern=NO_NUL)]


def list_replays(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Replay]:
    """Plans to send again what an incident lost, the newest first. Filters: topic, run (of the plan)."""
    return page_of(visited, "replays", Replay, filter, after, limit)


def _require_replay(visited: Visit, plan: str) -> dict[str, Any]:
    number = int(plan) if plan.isascii() and plan.isdigit() and int(plan) <= LARGEST else None
    row = read_one(
        visited.conn, "replay", visited.sight, run=number, dag_run=None if number else plan
    )
    if row is None:
        raise HTTPException(404, NOT_FOUND)
    return row


def show_replay(visited: Visiting, plan: PlanName) -> WholeReplay:
    """One plan, by its number or by the run of replay_incident that made it: what is in it, how far it is, and where Airflow takes
    the approval. The approval names the digest of what is shown here."""
    row = _require_replay(visited, plan)
    row["left_out"] = row["left_out"] or {}
    yes, values = row.pop("yes"), {"run": row["plan"]}
    parts = [
        ReplayPart(**one)
        for one in read_rows(visited.conn, "replay_parts", visited.sight, **values)
    ]
    examples = [
        one["message_id"]
        for one in read_rows(visited.conn, "replay_examples", visited.sight, **values)
    ]
    sends = {
        one["state"]: one["number"]
        for one in read_rows(
            visited.conn, "replay_sends", visited.sight, **values, most=SENDS_COUNTED
        )
    }
    requested = sum(one.requested for one in parts)
    why_not = visited.why_not_approve(row["topic"])
    form = None
    if row["dag_run"] is not None and yes is not None and row["approved_at"] is None:
        dag_run = part(row["dag_run"])
        form = m.Form(
            href=f"/api/v2/dags/{REPLAY}/dagRuns/{dag_run}/taskInstances/approve/-1/hitlDetails",
            page=f"{base_url()}/dags/{REPLAY}/runs/{dag_run}/tasks/approve/required_actions",
            options=[yes, NO],
            fields=[],
        )
    return WholeReplay(
        **row,
        parts=parts,
        examples=examples,
        sends=sends,
        sends_of=min(requested, SENDS_COUNTED),
        actions=[m.Action(name="approve", allowed=why_not is None, why_not=why_not)],
        form=form,
    )


def list_deliveries_of(
    visited: Visiting,
    plan: PlanName,
    filter: Filter = "",
    after: After = None,
    limit: Limit = 50,
) -> m.Page[ReplayDelivery]:
    """What is in a plan, in the order in which it is requested. Filters: group, reason, state."""
    number = _require_replay(visited, plan)["plan"]
    return page_of(visited, "replay_deliveries", ReplayDelivery, filter, after, limit, plan=number)


ROUTES: Routes = (
    ("GET", "/replays", list_replays),
    ("GET", "/replays/{plan}", show_replay),
    ("GET", "/replays/{plan}/deliveries", list_deliveries_of),
)
