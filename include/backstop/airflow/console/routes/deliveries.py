"""Open deliveries."""

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Limit,
    Routes,
    Visiting,
    page_of,
)

# No postponed annotations: FastAPI reads them.


def list_deliveries(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[m.Delivery]:
    """Open deliveries, by message. Filters: topic, group, verdict, shard, reason, id."""
    return page_of(visited, "deliveries", m.Delivery, filter, after, limit)


ROUTES: Routes = (("GET", "/deliveries", list_deliveries),)
