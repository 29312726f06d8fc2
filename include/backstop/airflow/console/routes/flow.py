"""How messages flow: backlogs, queues, parked keys."""

from datetime import datetime, timedelta
from typing import Any

from pydantic import Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Limit,
    Routes,
    Visiting,
    page_of,
)
from backstop.airflow.console.visit import Visit
from backstop.reports.console import read_rows

# No postponed annotations: FastAPI and Pydantic read them.


class Flow(m.Answer):
    """How far a group is behind."""

    topic: str
    group: str
    taken_at: datetime
    waiting: int
    expired: int
    backlog_seconds: float
    rate: float | None = Field(description="messages a second between the last two looks")
    empty_in_seconds: float | None = Field(
        description="at this rate, when nothing more comes; null: not at this rate"
    )
    retention_seconds: float
    lost_in_seconds: float | None = Field(
        description="when the broker removes the oldest waiting message; null: nothing waits"
    )


class Flows(m.Answer):
    """Every group that the watch saw within an hour."""

    groups: list[Flow]


class Queue(m.Answer):
    """Where a group is in one queue."""

    topic: str
    group: str
    queue: int
    passed: int
    stored: int = Field(
        description="the queue's next offset when the group came to its place (`stands_since`), not what is stored now"
    )
    stands_since: datetime
    moved: bool
    taken_at: datetime
    owner: str | None = Field(
        description="the consumer that owns the queue; null: nobody, or the group owns no queues"
    )
    owner_state: str | None = Field(description="OWNED, DRAINING, FREE, or EXPIRED")
    owner_since: datetime | None


class ParkedKey(m.Answer):
    """An ordering key whose messages wait for a person's answer to its case."""

    case: int
    topic: str
    group: str
    key: str
    state: str = Field(description="of the case: open, or decided and on its way")
    messages: int | None
    queue: int | None
    head: str | None = Field(description="the id of the message that failed")
    error: str | None
    parked_at: datetime | None


def groups_now(visited: Visit) -> list[dict[str, Any]]:
    """The newest look at each group that the visitor sees."""
    pairs = [
        (topic, group) for topic in visited.topics for group in visited.settings.groups_of(topic)
    ]
    values = {"topics": [topic for topic, _ in pairs], "groups": [group for _, group in pairs]}
    return read_rows(visited.conn, "groups", visited.sight, **values)


def show_flow(visited: Visiting) -> Flows:
    """How far each group is behind, how fast it goes, and when the broker's retention would remove what waits."""
    found = []
    for row in groups_now(visited):
        topic, group, waiting = row["topic"], row["group"], row["waiting"]
        kept: timedelta = visited.settings.policy_for(topic, group).broker_retention
        rate = row["rate"] if row["rate"] is None or row["rate"] >= 0 else None
        found.append(
            Flow(
                **{**row, "rate": rate},
                retention_seconds=kept.total_seconds(),
                empty_in_seconds=waiting / rate if rate else (0.0 if waiting == 0 else None),
                lost_in_seconds=max(kept.total_seconds() - row["backlog_seconds"], 0.0)
                if waiting
                else None,
            )
        )
    return Flows(groups=found)


def list_queues(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Queue]:
    """Where each group is in each queue, and who owns it. Filters: topic, group."""
    return page_of(visited, "queues", Queue, filter, after, limit)


def list_parked(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[ParkedKey]:
    """Ordering keys that are parked and wait for a person, the newest first. Filters: topic, group, key."""
    return page_of(visited, "parked", ParkedKey, filter, after, limit)


ROUTES: Routes = (
    ("GET", "/flow", show_flow),
    ("GET", "/queues", list_queues),
    ("GET", "/parked-keys", list_parked),
)
