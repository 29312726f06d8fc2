"""Says in a line which consumer of a group holds which queues, and which of them it has locked (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from backstop.brokers.protocol import Finding, Holder

SHOWN = 10
"""Consumers that one line names."""


def tell_holders(
    topic: str, group: str, queues: Sequence[int], holders: Sequence[Holder]
) -> Finding:
    """Bad: a queue that none of the group's consumers holds, or that two of them have locked."""
    subject = f"topic {topic}, group {group}: queues held"
    consumers = sorted({holder.consumer for holder in holders})
    if not consumers:
        return Finding(subject, True, "no consumer is connected now")
    said = [
        _of(consumer, [one for one in holders if one.consumer == consumer])
        for consumer in consumers[:SHOWN]
    ]
    says = "; ".join(said) + (
        f"; and {len(consumers) - SHOWN} more consumers" if len(consumers) > SHOWN else ""
    )
    locked = [one.queue_id for one in holders if one.locked and one.queue_id is not None]
    twice = sorted({number for number in locked if locked.count(number) > 1})
    if twice:
        return Finding(
            subject,
            False,
            f"{says}; locked by two: {_numbers(twice)}",
            "Look again in a minute; if it stays so, restart one of the two: its lock is only its own belief.",
        )
    held = {holder.queue_id for holder in holders}
    free = [number for number in queues if number not in held]
    if free and None not in held:
        return Finding(
            subject,
            False,
            f"{says}; held by nobody: {_numbers(free)}",
            "Look again in a minute (consumers redistribute the queues when one joins or leaves). If that changes nothing, check "
            "that all consumers of the group have the same subscription.",
        )
    return Finding(subject, True, says)


def _of(consumer: str, its: Sequence[Holder]) -> str:
    """One consumer's queues. A consumer has its own clock, which is the one shown."""
    numbers = [one.queue_id for one in its if one.queue_id is not None]
    if not numbers:
        return f"{consumer} does not say which queues it has"
    locked = [one for one in its if one.locked]
    if not locked:
        return f"{consumer} has {_numbers(numbers)}"
    renewed = min((one.locked_at for one in locked if one.locked_at is not None), default=None)
    when = f", last renewed {renewed:%H:%M:%S} UTC" if renewed is not None else ""
    open_ones = [one.queue_id for one in its if not one.locked and one.queue_id is not None]
    without = f", and without a lock {_numbers(open_ones)}" if open_ones else ""
    return f"{consumer} has locked {_numbers([one.queue_id for one in locked if one.queue_id is not None])}{when}{without}"


def _numbers(numbers: Sequence[int]) -> str:
    """0-3, 7"""
    parts = []
    for _, run in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(parts)
