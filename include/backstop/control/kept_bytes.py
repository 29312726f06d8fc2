"""Reads how much of the control database dead letters take: the drain stops by it, the watch and the metrics tell it."""

from __future__ import annotations

from typing import Any

from backstop.sql.named import load

_SQL = load("backstop.control", "queries.sql")
ROW_BYTES = 1024
"""What a dead letter takes beside its content, about: its keys, texts and indexes."""
EVERYTHING = "*"
"""All groups together; as a group: none that is known."""


def read_kept_bytes(cursor: Any) -> dict[str, int]:
    """By group; an index alone is read. In the caller's transaction."""
    cursor.execute(_SQL["kept_bytes"], {"row_bytes": ROW_BYTES})
    return {group: int(used) for group, used in cursor.fetchall()}
