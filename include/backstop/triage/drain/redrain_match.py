"""Decides whether a dead letter whose broker id is stored already is the same one, or another death under the same id.

The same dead letter is read twice when a drain died before its acknowledgement, or when two drains read one queue. Another
death has the same id where the broker itself sends a message again without giving it a new id. If neither can be excluded,
the dead letter stays in the broker, and the next drain decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from backstop.brokers.protocol import DeadLetter


@dataclass(frozen=True, slots=True)
class Stored:
    """A dead letter that is stored under a broker's id."""

    broker_id: str
    topic: str | None
    group: str | None
    message_id: str | None
    died_at: datetime | None
    batch_id: int
    acknowledged_at: datetime | None
    same_run: bool = True
    """Its page was stored by the run that reads now; else by another one, which may be at work beside us."""


class Met(Enum):
    """What a dead letter is to the store."""

    NEW = "it is stored under the next free id"
    KNOWN = "it is stored, and is acknowledged once more"
    LEFT = "it may be either: it is neither stored nor acknowledged"


def redrain_match(
    letter: DeadLetter, stored: Stored, began: datetime, first_batch: int | None
) -> Met:
    """`stored`: the last one of the same broker id, topic, group and message id. `began`: when this reader was opened.
    `first_batch`: the first page that this reader's letters were stored in."""
    if letter.died_at is not None and stored.died_at is not None:
        return Met.KNOWN if letter.died_at == stored.died_at else Met.NEW
    if stored.same_run and first_batch is not None and stored.batch_id >= first_batch:
        return Met.NEW  # a reader hands out each entry once: these are two
    if stored.acknowledged_at is None:
        return Met.KNOWN
    # What the broker removed before we came cannot be what we were given.
    return Met.NEW if stored.acknowledged_at < began else Met.LEFT
