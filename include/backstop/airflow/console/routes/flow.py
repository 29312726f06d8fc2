"""How messages flow: backlogs, queues, parked keys."""

from datetime import timedelta
from typing import Any

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

# No postponed annotations: FastAPI reads them.


def groups_now(visited: Visit) -> list[dict[str, Any]]:
    """The newest look at each group that the visitor sees."""
    pairs = [
        (topic, group) for topic in visited.topics for group in visited.settings.groups_of(topic)
    ]
    values = {"topics": [topic for topic, _ in pairs], "groups": [group for _, group in pairs]}
    return read_rows(visited.conn, "groups", visited.sight, **values)


def show_flow(visited: Visiting) -> m.Flows:
    """How far each group is behind, how fast it goes, and when the broker's retention would remove what waits."""
    found = []
    for row in groups_now(visited):
        topic, group, waiting = row["topic"], row["group"], row["waiting"]
        kept: timedelta = visited.settings.policy_for(topic, group).broker_retention
        rate = row["rate"] if row["rate"] is None or row["rate"] >= 0 else None
        found.append(
            m.Flow(
                **{**row, "rate": rate},
                retention_seconds=kept.total_seconds(),
                empty_in_seconds=waiting / rate if rate else (0.0 if waiting == 0 else None),
                lost_in_seconds=max(kept.total_seconds() - row["backlog_seconds"], 0.0)
                if waiting
                else None,
            )
        )
    return m.Flows(groups=found)


def list_queues(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Queue]:
    """Where each group is in each queue, and who owns it. Filters: topic, group."""
    return page_of(visited, "queues", m.Queue, filter, after, limit)


def list_parked(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.ParkedKey]:
    """Ordering keys that are parked and wait for a person, the newest first. Filters: topic, group, key."""
    return page_of(visited, "parked", m.ParkedKey, filter, after, limit)


ROUTES: Routes = (
    ("GET", "/flow", show_flow),
    ("GET", "/queues", list_queues),
    ("GET", "/parked-keys", list_parked),
)
