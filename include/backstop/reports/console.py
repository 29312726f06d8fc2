"""Reads what the console shows: pages of rows by keyset, and single things. Everything within what the visitor may see."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backstop.control.read_rows import read
from backstop.model.errors import ConfigurationError
from backstop.model.read_json import read_json
from backstop.model.records import Verdict
from backstop.model.storable_text import fits
from backstop.reports.filters import read_filter
from backstop.sql.named import load

_SQL = load("backstop.reports", "console.sql")
MOST = 200
"""Rows of a page."""
LONGEST_PLACE = 16_000
"""Characters of a place: a topic, an id and a group of the longest, each of whose bytes JSON writes as six characters."""
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Sight:
    """Which topics somebody may see. `of_teams` null: all of them, and what belongs to no topic."""

    of_teams: Sequence[str] | None = None
    readable: Sequence[str] = ()
    others: bool = True

    def values(self) -> dict[str, Any]:
        """As the queries take it."""
        of_teams = None if self.of_teams is None else list(self.of_teams)
        return {"of_teams": of_teams, "readable": list(self.readable), "others": self.others}

    def sees(self, topic: str | None) -> bool:
        """Whether a topic, or what belongs to none, may be seen."""
        return self.of_teams is None or (
            topic in self.readable if topic in self.of_teams else self.others
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """A list: its query, what it is paged by (column -> type), what it can be filtered by."""

    query: str
    key: Mapping[str, type]
    filters: Sequence[str]
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)


_DELIVERY = {"topic": str, "message_id": str, "group": str}
_VERDICTS = (
    "DEAD_LETTERED",
    "PARKED",
    "IN_PROGRESS",
    "BACKLOGGED",
    "UNKNOWN",
    "STALLED",
    "UNSENT",
    "LOST",
    "EXHAUSTED",
)
_REQUESTS = ("open", "claimed", "sent", "refused", "unknown", "not_needed", "superseded")
_RUNS = ("running", "audited", "promoting", "done", "incomplete", "failed", "abandoned")
LISTS = {
    "deliveries": Listing(
        "deliveries",
        _DELIVERY,
        ("topic", "group", "verdict", "shard", "reason", "id"),
        {"verdict": _VERDICTS},
    ),
    "cases": Listing(
        "cases",
        {"case": int},
        ("topic", "group", "kind", "state", "severity", "waits"),
        {
            "state": ("open", "decided", "closed"),
            "severity": ("info", "warning", "critical"),
            "waits": ("me",),
        },
    ),
    "members": Listing("members", _DELIVERY, ()),
    "causes": Listing(
        "causes",
        {"dead_letters": int, "cause": int, "category": str},
        ("topic", "group", "category"),
    ),
    "dead_letters": Listing(
        "dead_letters",
        {"dead_letter": int},
        ("topic", "group", "state", "category", "cause", "case", "id", "since"),
        {"state": ("undecided", "open", "replaying", "replayed", "discarded")},
    ),
    "requests": Listing(
        "requests",
        {"request": int},
        ("topic", "state", "id", "batch", "run", "plan", "day", "held"),
        {"state": _REQUESTS, "held": ("yes", "no")},
    ),
    "batches": Listing(
        "batches",
        {"batch": int},
        ("topic", "state"),
        {"state": ("ramping", "stopped", "done", "given_up")},
    ),
    "replays": Listing("replays", {"plan": int}, ("topic", "run")),
    "replay_deliveries": Listing(
        "replay_deliveries",
        {"place": int},
        ("group", "reason", "state"),
        {"state": ("planned", "requested", "left_out")},
    ),
    "verdicts": Listing(
        "verdicts_of_run",
        {"topic": str, "group": str, "verdict": str},
        ("topic", "group", "verdict"),
        {"verdict": tuple(Verdict.__members__)},
    ),
    "runs": Listing("runs", {"run": int}, ("duty", "state"), {"state": _RUNS}),
    "queues": Listing("queues", {"topic": str, "group": str, "queue": int}, ("topic", "group")),
    "parked": Listing("parked", {"case": int}, ("topic", "group", "key")),
    "proofs": Listing("proofs", {"run": int}, ("topic", "run")),
}


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, and where the next page begins; null: there is none."""

    rows: list[dict[str, Any]]
    next: str | None


def read_page(
    conn: Any,
    name: str,
    sight: Sight,
    text: str = "",
    after: str | None = None,
    limit: int = 50,
    **values: Any,
) -> Page:
    """One page of a list. ConfigurationError for a filter or a place that is none."""
    listing = LISTS[name]
    wanted = read_filter(text, listing.filters, listing.choices)
    keys = _read_place(after, listing.key)
    limit = max(1, min(limit, MOST))
    given = {**sight.values(), **wanted, **keys, **values, "limit": limit + 1}
    found = read(conn, _SQL[listing.query], given)
    rows = found[:limit]
    return Page(rows, _place(rows[-1], listing.key) if len(found) > limit else None)


def read_rows(conn: Any, name: str, sight: Sight, **values: Any) -> list[dict[str, Any]]:
    """All rows of a query that has few."""
    return read(conn, _SQL[name], {**sight.values(), **values})


def read_one(conn: Any, name: str, sight: Sight, **values: Any) -> dict[str, Any] | None:
    """One row; null: there is none, or the visitor may not know of it."""
    return next(iter(read_rows(conn, name, sight, **values)), None)


def filter_text(**values: object) -> str:
    """The filter that names these values, as people type it; null ones are left out."""
    return " ".join(
        f"{name}:{_quoted(str(value))}" for name, value in values.items() if value is not None
    )


def _quoted(value: str) -> str:
    if value and not any(one.isspace() or one in '"\\' for one in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _place(row: Mapping[str, Any], key: Mapping[str, type]) -> str:
    values = [row[name] if row[name] is not None else kind() for name, kind in key.items()]
    return base64.urlsafe_b64encode(json.dumps(values, ensure_ascii=False).encode()).decode()


def _read_place(after: str | None, key: Mapping[str, type]) -> dict[str, Any]:
    if after is None:
        return {f"after_{number}": None for number in range(1, len(key) + 1)}
    try:
        if len(after) > LONGEST_PLACE:
            raise ValueError
        values = read_json(base64.b64decode(after.encode("ascii"), altchars=b"-_", validate=True))
        is_place = (
            isinstance(values, list)
            and len(values) == len(key)
            and all(
                type(value) is kind
                and (
                    fits(value)
                    if isinstance(value, str)
                    else isinstance(value, int) and abs(value) <= _LARGEST
                )
                for value, kind in zip(values, key.values(), strict=True)
            )
        )
        if not is_place:
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            "`after` names no place in this list.",
            unaffected="Nothing was read.",
            next_step="Take it from `next` of the page before.",
        ) from None
    return {f"after_{number}": value for number, value in enumerate(values, 1)}
