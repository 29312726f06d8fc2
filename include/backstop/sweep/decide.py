"""Decides what becomes of a lease: KEEP, REPAIR or RECLAIM. Pure; the caller acts, by compare-and-set on what was seen.

| the lease has ended | the log says | decision |
| --- | --- | --- |
| no | whatever | KEEP: it was renewed meanwhile, or never ended |
| yes | DONE | REPAIR: what stands in front is corrected |
| yes | ALIVE | KEEP: the database renewed it, and it decides |
| yes | UNREAD | KEEP: nothing is decided from silence |
| yes | FREE | RECLAIM |
| yes | NO_LOG: this place decides alone | RECLAIM |
"""

from __future__ import annotations

from enum import Enum

from backstop.model.records import State


class Decision(State):
    """What the sweep does with a lease."""

    KEEP = "KEEP", "it is held, or nobody can say that it is not"
    REPAIR = "REPAIR", "the database knows better: Redis is corrected"
    RECLAIM = (
        "RECLAIM",
        "its holder is gone: the next begin may take it; the token stays, so a late end still counts",
    )


class Truth(Enum):
    """What the log of the message says, for a lease that stands in front of it."""

    DONE = "done"
    ALIVE = "alive"
    FREE = "free"
    """No log, or one that nobody holds."""
    UNREAD = "unread"
    """Its database did not answer."""
    NO_LOG = "no log"
    """There is no database behind this place."""


def decide(is_expired: bool, truth: Truth) -> Decision:
    """What becomes of a lease that is looked at."""
    if not is_expired or truth in (Truth.ALIVE, Truth.UNREAD):
        return Decision.KEEP
    return Decision.REPAIR if truth is Truth.DONE else Decision.RECLAIM


def decide_done(truth: Truth) -> Decision:
    """What becomes of a DONE in front of the database: it stands only while the database says the same."""
    return Decision.KEEP if truth in (Truth.DONE, Truth.UNREAD, Truth.NO_LOG) else Decision.REPAIR
