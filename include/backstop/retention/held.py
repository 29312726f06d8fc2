"""Asks the control database which messages somebody is still busy with: nothing of theirs is purged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstop.model.records import Key
from backstop.sql.named import load

_SQL = load("backstop.retention", "queries.sql")


def held(control: Any, keys: Sequence[Key]) -> set[Key]:
    """Those with a request that is not closed, a dead letter that is not decided, or a case that waits for them."""
    if not keys:
        return set()
    with control, control.cursor() as cursor:
        cursor.execute(
            _SQL["held"],
            {
                "topics": [key.topic for key in keys],
                "message_ids": [key.message_id for key in keys],
            },
        )
        return {Key(*row) for row in cursor.fetchall()}
