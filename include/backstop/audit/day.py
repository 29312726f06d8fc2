"""The day that is audited, and the instants that belong to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from backstop.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Day:
    """One day (UTC), as far as it is over at `as_of`."""

    day: date
    start: datetime
    end: datetime
    as_of: datetime
    patient_since: datetime
    """Whatever was begun before it should have ended by now."""

    @property
    def name(self) -> str:
        return self.day.isoformat()


def day_of(settings: Settings, as_of: datetime, day: date | None = None) -> Day:
    """The day before `as_of`, unless another one is named."""
    chosen = (as_of - timedelta(days=1)).date() if day is None else day
    start = datetime.combine(chosen, time(), UTC)
    return Day(chosen, start, min(start + timedelta(days=1), as_of), as_of, as_of - patience(settings))


def patience(settings: Settings) -> timedelta:
    """After so long nothing may be half done: the longest time after which an UNKNOWN is a person's, over all topics."""
    return max(settings.policy_for(topic).unknown_horizon for topic in settings.topics)
