"""What a list can be filtered by."""

from typing import Literal

from backstop.airflow.console.parameters import (
    Routes,
    Visiting,
)
from backstop.reports.console import LISTS

# No postponed annotations: FastAPI reads them.


def suggest_filters(
    visited: Visiting,
    list: Literal[
        "deliveries",
        "cases",
        "causes",
        "dead_letters",
        "requests",
        "batches",
        "replays",
        "replay_deliveries",
        "verdicts",
        "runs",
        "queues",
        "parked",
        "proofs",
    ],
) -> dict[str, tuple[str, ...]]:
    """The filters of a list, each with the values that are known; an empty list: any text."""
    from backstop.decisions.actions import KINDS

    listing = LISTS[list]
    known: dict[str, tuple[str, ...]] = {
        "topic": tuple(visited.topics),
        "kind": KINDS,
        "duty": tuple(visited.duties()),
        "group": tuple(
            sorted(
                {group for topic in visited.topics for group in visited.settings.groups_of(topic)}
            )
        ),
        "category": (
            "duplicate_suppressed",
            "already_confirmed",
            "busy_exhausted",
            "expired",
            "transient",
            "poison",
            "conflict",
            "unknown",
        ),
        "since": ("1h", "1d", "7d"),
        "shard": tuple(visited.settings.producers),
    }
    return {name: tuple(listing.choices.get(name, known.get(name, ()))) for name in listing.filters}


ROUTES: Routes = (("GET", "/filters", suggest_filters),)
