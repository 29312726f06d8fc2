"""Settled progress (pure): how far a group has got for certain, from what was seen live and what earlier runs recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group got in one queue: the first offset not passed, and the instant before which all is passed."""

    epoch: str
    next_offset: int
    passed_until: datetime


def cut(
    as_of: datetime, grace: timedelta, retry_pending: int, retry_last_empty: datetime | None
) -> datetime | None:
    """The instant up to which recorded progress is settled; null: none is. `retry_pending`: what waits and is not known by id.

    While the group's retry queue has messages, only what was passed before it was last seen empty is settled: a message
    that failed since then may still be in it.
    """
    until = as_of - grace
    if retry_pending == 0:
        return until
    return None if retry_last_empty is None else min(until, retry_last_empty)


def settle(live: Mapping[int, Progress], recorded: Mapping[int, Progress]) -> dict[int, Progress]:
    """Recorded progress by queue, never above the live one; a queue that is not recorded, or in another epoch, is left out."""
    settled: dict[int, Progress] = {}
    for queue_id, now in live.items():
        then = recorded.get(queue_id)
        if then is not None and then.epoch == now.epoch:
            settled[queue_id] = Progress(
                now.epoch,
                min(then.next_offset, now.next_offset),
                min(then.passed_until, now.passed_until),
            )
    return settled


def present_epoch(
    seen: str, next_offset: int, stored: str | None, stored_next_offset: int | None
) -> tuple[str, bool]:
    """(label of the queue's present epoch, whether it is the stored one).

    A queue whose next offset fell below the stored one began a new life even if the broker kept its id: the label then
    gets a number that no copy can carry, so that copies of the life before are not trusted by offset.
    """
    if stored is None:
        return seen, True
    base, _, life = stored.partition("~")
    if base != seen:
        return seen, False
    if stored_next_offset is not None and next_offset < stored_next_offset:
        return f"{base}~{int(life or 0) + 1}", False
    return stored, True
