"""Moves what people discarded of parked keys from the consumer database into the control database.

    consumer: the discard, with the release of its key | control: the decision about the delivery | consumer: forgotten

A crash at any `|` leaves a row that the next watch moves; a decision that is there already is not written twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstop.cases.close import settle
from backstop.sql.named import load
from backstop.stores.postgresql.parking import Discard

_SQL = load("backstop.cases", "queries.sql")


def keep_discards(cur: Any, discards: Sequence[Discard]) -> int:
    """No later run acts on these deliveries; in the caller's transaction. Returns how many were new."""
    kept = 0
    for one in discards:
        cur.execute(_SQL["keep_discard"], one._asdict())
        kept += cur.rowcount
    settle(cur, [(one.topic, one.message_id, one.group) for one in discards])
    return kept
