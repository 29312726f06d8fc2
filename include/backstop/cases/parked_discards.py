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


def keep_discards(cur: Any, discards: Sequence[Discard]) -> list[Discard]:
    """No later run acts on these deliveries; in the caller's transaction. Returns those that are kept.

    Whoever may write in the consumer database can write any name there. So only what the log of decisions says, too, is a decision:
    of this case, in this name, for this reason. The others stay where they are, for the watch to tell of.
    """
    decided = _decided(cur, [one for one in discards if one.was_parked and one.case_id is not None])
    for one in decided:
        cur.execute(_SQL["keep_discard"], one._asdict())
    settle(cur, [(one.topic, one.message_id, one.group) for one in decided])
    return decided


def _decided(cur: Any, discards: Sequence[Discard]) -> list[Discard]:
    cur.execute(
        _SQL["decided_discards"],
        {
            "groups": [one.group for one in discards],
            "topics": [one.topic for one in discards],
            "keys": [one.key for one in discards],
            "bys": [one.by for one in discards],
            "whys": [one.why for one in discards],
            "case_ids": [one.case_id for one in discards],
        },
    )
    return [discards[place - 1] for (place,) in cur.fetchall()]
