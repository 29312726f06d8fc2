"""Open deliveries."""

from datetime import datetime

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Limit,
    Routes,
    Visiting,
    page_of,
)

# No postponed annotations: FastAPI and Pydantic read them.


class Delivery(m.Answer):
    """An open delivery with its newest verdict."""

    topic: str
    message_id: str
    group: str
    shard: str
    verdict: str
    reason: str
    eligible: bool
    case_kind: str | None
    run: int
    since: datetime
    judged_at: datetime
    next_look_at: datetime | None


def list_deliveries(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Delivery]:
    """Open deliveries, by message. Filters: topic, group, verdict, shard, reason, id."""
    return page_of(visited, "deliveries", Delivery, filter, after, limit)


ROUTES: Routes = (("GET", "/deliveries", list_deliveries),)
