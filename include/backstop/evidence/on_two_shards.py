"""Messages that a run met on more than one shard. While a shard does not answer, only this says that it may have a second stub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstop.model.records import Key
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load

_SQL = load("backstop.evidence", "queries.sql")


def met_on_two_shards(cursor: Any, keys: Sequence[Key]) -> set[Key]:
    """Which of these messages a run met on two shards. No index leads from a message to quarantined rows: all of them are read."""
    values = {
        "topics": array_literal([key.topic for key in keys]),
        "ids": array_literal([key.message_id for key in keys]),
    }
    cursor.execute(_SQL["met_on_two_shards"], values)
    return {Key(*row) for row in cursor.fetchall()}
