"""What becomes of one idempotency record of another program: kept, repaired or freed; pure.

A record is freed only when nobody can be working on it: its own expiry has passed, or nobody has touched it for the
configured time. It is marked done only when the group's log says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from backstop.model.records import Key, LogState
from backstop.sweep.foreign.protocol import LogStanding


class Decision(StrEnum):
    """What the sweep does with one record."""

    KEEP = "keep"
    REPAIR = "repair"
    RECLAIM = "reclaim"


class Held(StrEnum):
    """What the record says of itself."""

    CONSUMING = "CONSUMING"
    CONSUMED = "CONSUMED"
    UNSAID = "UNSAID"
    """That it is there is all it says (a plain key), or its value was not read, because reading would touch it."""


class Expiry(StrEnum):
    """When the record ends by itself, at its store's clock."""

    LATER = "later"
    PAST = "past"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was seen."""

    readings: tuple[Key, ...]
    """The messages it may be about: more than one when the other program joined its key without escaping."""
    held: Held
    expiry: Expiry
    untouched: bool | None
    """Whether nobody has touched it for the configured time; null: the store does not say."""


_LEFT = (LogState.FAILED, LogState.EXPIRED, LogState.PARKED)


def decide(record: Record, says: Mapping[Key, LogStanding]) -> tuple[Decision, str]:
    """The decision and its reason. `says` has what the log says of the record's readings; absent: no row."""
    answers = [_decide(record, says.get(key)) for key in record.readings]
    first = answers[0]
    if all(decision is first[0] for decision, _ in answers):
        return first
    return (
        Decision.KEEP,
        "its key can be read as more than one message, and the log does not say the same of them",
    )


def _decide(record: Record, says: LogStanding | None) -> tuple[Decision, str]:
    if record.held is Held.CONSUMED:
        return Decision.KEEP, "it says that the work is done"
    if record.expiry is Expiry.LATER:
        return Decision.KEEP, "it expires by itself"
    if says is not None:
        if says.state == LogState.CONSUMED:
            return Decision.REPAIR, "the log says that the work is done"
        if says.state == LogState.CONSUMING and says.lease_alive:
            return Decision.KEEP, "a live lease holds the message"
        if says.state != LogState.CONSUMING and says.state not in _LEFT:
            return Decision.KEEP, f"the log has a state that is not known: {says.state}"
    undone = (
        "the log has no row of it"
        if says is None
        else f"the log says {says.state}, and no live lease holds it"
    )
    if record.expiry is Expiry.PAST:
        return Decision.RECLAIM, f"it has expired, and {undone}"
    if record.untouched is None:
        return (
            Decision.KEEP,
            f"{undone}, and its server does not say how long nobody has touched it",
        )
    if record.untouched:
        return Decision.RECLAIM, f"nobody has touched it for the configured time, and {undone}"
    return Decision.KEEP, f"{undone}, but it was touched within the configured time"


def keys_of(records: Sequence[Record]) -> list[Key]:
    """The messages to ask the log about: of those records alone whose decision hangs on it, each once."""
    asked = (key for record in records if _hangs_on_the_log(record) for key in record.readings)
    return list(dict.fromkeys(asked))


def _hangs_on_the_log(record: Record) -> bool:
    return record.held is not Held.CONSUMED and record.expiry is not Expiry.LATER
