"""Rows that a shard refused to change while the others were restored, as an error names them."""

from __future__ import annotations

from collections.abc import Iterable

from backstop.model.errors import StoreFailed
from backstop.model.records import Key


def refused_rows(refused: Iterable[tuple[Key, StoreFailed]]) -> str:
    """How many, and one of them with the reason: "2 rows, such as m-1 of orders: not this one"; a row named twice counts once."""
    rows = dict(refused)
    key, error = next(iter(rows.items()))
    number = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    return f"{number}, such as {key.message_id} of {key.topic}: {error.what}"
