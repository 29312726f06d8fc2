"""Counts what a sweep decided by place, group, topic, host and decision, with one message of each as an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from backstop.model.records import Counts
from backstop.sweep.decide import Decision


class TallyKey(NamedTuple):
    """What a count of the tally is about."""

    place: str
    group: str
    topic: str
    host: str
    decision: str


@dataclass(frozen=True, slots=True)
class SweepDecision:
    """One decision, for the list of a dry run."""

    line: TallyKey
    message_id: str
    why: str

    def __str__(self) -> str:
        line = self.line
        return f"{line.decision} {line.topic} {self.message_id} of {line.group} in {line.place} (held by {line.host}): {self.why}"


class Differs(NamedTuple):
    """A message on which Redis and the database disagreed."""

    place: str
    group: str
    topic: str
    message_id: str
    in_redis: str
    in_database: str
    repaired: bool


@dataclass(slots=True)
class Tally:
    """What one part of a sweep did. `tell` hears of every decision but KEEP, for a dry run."""

    tell: Callable[[SweepDecision], None] | None = None
    lines: dict[TallyKey, int] = field(default_factory=dict)
    examples: dict[TallyKey, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    differs: list[Differs] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)
    """What did not answer -> why."""
    goes_on: dict[str, str] = field(default_factory=dict)
    """Where a walk over this place goes on, the next time."""

    def add(self, line: TallyKey, message_id: str, why: str, number: int = 1) -> None:
        """One decision that was applied, or that a dry run would apply; or so many that are alike."""
        self.lines[line] = self.lines.get(line, 0) + number
        self.examples.setdefault(line, message_id)
        self.counts.add(line.decision.lower(), number)
        if self.tell and line.decision != Decision.KEEP:
            self.tell(SweepDecision(line, message_id, why))
