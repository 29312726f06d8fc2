"""What a proof of a window answers (pure): from counts by standing and what could not be read to one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Answer(StrEnum):
    """The answers, the gravest last tested first: a loss is told even when not everything could be read."""

    NOTHING_LOST = "nothing_lost"
    LOST = "lost"
    UNFINISHED = "unfinished"
    INCOMPLETE = "incomplete"


EXIT_CODES = {Answer.NOTHING_LOST: 0, Answer.LOST: 1, Answer.INCOMPLETE: 3, Answer.UNFINISHED: 7}
"""What `backstop prove` ends with."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Deliveries of one group, standing, verdict and reason."""

    consumer_group: str
    standing: str
    verdict: str
    reason: str
    deliveries: int


@dataclass(frozen=True, slots=True)
class Window:
    """A topic's stubs created in [start, end)."""

    topic: str
    start: datetime
    end: datetime

    def __str__(self) -> str:
        start, end = (instant.isoformat(timespec="seconds") for instant in (self.start, self.end))
        return f"of {self.topic} between {start} and {end}"


def answer(
    window: Window,
    stubs: int,
    owed: int,
    counts: list[Counted],
    broken: int,
    missed: Mapping[str, str],
) -> tuple[Answer, str]:
    """The answer and its sentence. `stubs`: all that were read; `owed`: those that some group owes; `broken`: rows that break
    their contract."""
    by_standing: dict[str, int] = {}
    for one in counts:
        by_standing[one.standing] = by_standing.get(one.standing, 0) + one.deliveries
    total = sum(by_standing.values())
    read = f"{stubs:,} stubs, {total:,} deliveries"
    gaps = [f"{name}: {why}" for name, why in sorted(missed.items())]
    if broken:
        gaps.append(f"{broken:,} stubs break their contract and were not judged")
    if unowed := stubs - broken - owed:
        gaps.append(
            f"{unowed:,} stubs are owed by no group, so no log can prove anything about them"
        )
    if unknown := by_standing.get("unknown", 0):
        gaps.append(f"{unknown:,} deliveries could not be judged")
    if not_proven := by_standing.get("not_proven", 0):
        gaps.append(
            f"{not_proven:,} deliveries were confirmed earlier, and their logs are not there though nothing was purged"
        )
    if lost := by_standing.get("lost", 0):
        also = f"; and not everything is known: {'; '.join(gaps)}" if gaps else ""
        return Answer.LOST, f"{lost:,} deliveries {window} are lost ({read}){also}."
    if gaps:
        return Answer.INCOMPLETE, f"Nothing can be proven {window} ({read}): {'; '.join(gaps)}."
    if unfinished := by_standing.get("unfinished", 0):
        return (
            Answer.UNFINISHED,
            f"Nothing {window} is lost so far; {unfinished:,} deliveries are not finished ({read}).",
        )
    if not stubs:
        return Answer.NOTHING_LOST, f"Nothing was lost {window}, and nothing promised: no stub."
    earlier = by_standing.get("confirmed_earlier", 0)
    purged = (
        f"; {earlier:,} of them were confirmed by earlier runs, and their logs purged since"
        if earlier
        else ""
    )
    return Answer.NOTHING_LOST, f"Nothing was lost {window}: {read}{purged}."
