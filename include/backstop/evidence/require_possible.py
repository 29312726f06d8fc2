"""Refuses an answer that no broker can mean: numbers, texts and instants that no database holds.

Recorded with the others, one of them would end the run for every topic; so it is its own topic's or group's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from backstop.brokers.protocol import GroupPosition, QueueState
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import EARLIEST, LATEST
from backstop.model.storable_text import fits

_OFFSETS = range(2**63)
_QUEUES = range(2**31)


def require_possible_queues(subject: str, queues: Sequence[QueueState]) -> Sequence[QueueState]:
    """The queues of one topic; BrokerUnavailable when one of them cannot be."""
    for queue in queues:
        numbers = (queue.next_offset, queue.first_offset or 0)
        _require(subject, queue, queue.queue_id, queue.epoch, numbers, queue.read_at)
    return queues


def require_possible_positions(
    subject: str, positions: Iterable[GroupPosition]
) -> list[GroupPosition]:
    """How far one group is; BrokerUnavailable when it cannot be there."""
    found = list(positions)
    for one in found:
        _require(subject, one, one.queue_id, one.epoch, (one.next_offset,), one.passed_until)
    return found


def _require(
    subject: str,
    answer: object,
    queue_id: int,
    epoch: str,
    offsets: Iterable[int],
    instant: datetime,
) -> None:
    if (
        queue_id in _QUEUES
        and all(offset in _OFFSETS for offset in offsets)
        and fits(epoch)
        and instant.tzinfo is not None
        and EARLIEST <= instant <= LATEST
    ):
        return
    raise BrokerUnavailable(
        f"What the broker says of {subject} cannot be: {answer!a}.",
        unaffected="Nothing was decided by it, and nothing else depends on it.",
        next_step="Look what the broker stores about it; the next run reads it again.",
    )
