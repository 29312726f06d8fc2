"""Lists the dead-letter queues of a broker: a group whose queues cannot be listed hides no other group's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backstop.brokers.protocol import Broker
from backstop.evidence.sources import answers
from backstop.model.errors import Unavailable
from backstop.triage.drain.guard_reader import guard_reader


@dataclass(frozen=True, slots=True)
class Listed:
    queues: list[str]
    missed: dict[str, str] = field(default_factory=dict)
    """By group, why its queues cannot be listed."""
    error: Unavailable | None = None
    """The first of them."""


def list_queues(broker: Broker, groups: Sequence[str]) -> Listed:
    """Asks for all groups at once, and for each alone where the broker answers but refuses one of them, as without the right to its
    queue. Raises Unavailable when the broker does not answer."""
    try:
        return Listed(guard_reader(broker.dead_letter_queues, groups))
    except Unavailable as error:
        first = error
    if not answers(lambda: broker):
        raise first
    queues: dict[str, None] = {}
    missed: dict[str, str] = {}
    for group in groups:
        try:
            queues |= dict.fromkeys(guard_reader(broker.dead_letter_queues, [group]))
        except Unavailable as error:
            missed[group] = error.what
            if not answers(lambda: broker):  # else each further group would wait for it, too
                raise
    return Listed(list(queues), missed, first)
