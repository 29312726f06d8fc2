"""The day that is audited, and the instants that belong to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from backstop.config.durations import written
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Day:
    """One day (UTC), as far as it is over at `as_of`."""

    day: date
    start: datetime
    end: datetime
    as_of: datetime
    patient_since: datetime
    """Whatever was begun before it should have ended by now."""
    farthest_look: datetime
    """No stub is due later, unless a clock was wrong when it was recorded."""

    @property
    def name(self) -> str:
        return self.day.isoformat()


def day_of(settings: Settings, as_of: datetime, day: date | None = None) -> Day:
    """The day before `as_of`, unless another one is named. Raises ConfigurationError for one of which retention may have taken
    something away, or that has not begun."""
    chosen = (as_of - timedelta(days=1)).date() if day is None else day
    start = datetime.combine(chosen, time(), UTC)
    kept = min(settings.policy_for(topic).stub_retention for topic in settings.topics)
    if day is not None and not as_of - kept - timedelta(days=1) < start < as_of:
        raise ConfigurationError(
            f"The day {chosen.isoformat()} cannot be audited: it has not begun, or what belongs to it is not kept any more.",
            unaffected="Nothing was started.",
            next_step=f"Name a day of the last {written(kept)}.",
        )
    policies = [settings.policy_for(topic) for topic in settings.topics]
    farthest = max(one.longest_delay + one.first_check + one.replay_horizon for one in policies)
    return Day(
        chosen,
        start,
        min(start + timedelta(days=1), as_of),
        as_of,
        as_of - patience(settings),
        as_of + farthest + timedelta(days=1),
    )


def patience(settings: Settings) -> timedelta:
    """After so long nothing may be half done: the longest time after which an UNKNOWN is a person's, over all topics."""
    return max(settings.policy_for(topic).unknown_horizon for topic in settings.topics)
