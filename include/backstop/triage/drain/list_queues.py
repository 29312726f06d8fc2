"""Lists the dead-letter queues of a broker: a group whose queues cannot be listed hides no other group's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from backstop.brokers.protocol import Broker
from backstop.model.errors import Unavailable
from backstop.triage.drain.guard_reader import guard_reader

_AT_ONCE = 2.0
"""Seconds within which a refusal about one group comes; what took longer was waited for in vain."""


class QueueListing(NamedTuple):
    queues: Sequence[str]
    missed: Mapping[str, str]
    """By group, why its queues cannot be listed."""
    error: Unavailable | None
    """What the first question raised; None where every group's queues are known."""


def list_queues(broker: Broker, groups: Sequence[str]) -> QueueListing:
    """Asks for all groups at once, and for each alone where the broker answers but refuses one of them, as without the right to its
    queue. Raises Unavailable when the broker does not answer."""
    try:
        return QueueListing(guard_reader(broker.dead_letter_queues, groups), {}, None)
    except Unavailable as error:
        first = error
        _require_answer(broker, error)
    queues: dict[str, None] = {}
    missed: dict[str, str] = {}
    for group in groups:
        began = monotonic()
        try:
            queues |= dict.fromkeys(guard_reader(broker.dead_letter_queues, [group]))
        except Unavailable as error:
            # Each further group would wait for it, too.
            if monotonic() - began > _AT_ONCE:
                raise
            _require_answer(broker, error)
            missed[group] = error.what
    return QueueListing(list(queues), missed, first if missed else None)


def _require_answer(broker: Broker, error: Unavailable) -> None:
    """Raises the error where the broker does not answer at all."""
    try:
        guard_reader(broker.clock)
    except Unavailable:
        raise error from None
