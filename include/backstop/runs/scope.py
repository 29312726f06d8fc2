"""The name of a run's scope, by which runs of the same scope exclude one another: '*', or the topics as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

EVERYTHING = "*"


def name_of(topics: Sequence[str] | None) -> str:
    """The scope of these topics; null or none: everything. Names may hold any character, so they are not joined."""
    return json.dumps(sorted(set(topics)), ensure_ascii=False) if topics else EVERYTHING


def topics_of(scope: str) -> list[str] | None:
    """The topics of a scope; null: all."""
    return None if scope == EVERYTHING else list(json.loads(scope))
