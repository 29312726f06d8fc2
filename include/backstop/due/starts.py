"""When a duty that has something to do is started. Pure: what was seen goes in, yes or no comes out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import inf

AGAIN = timedelta(minutes=5)
"""A start of which no run came is asked for once more after this long: Airflow keeps an event until its scheduler is back."""
UNRECORDED = timedelta(minutes=1)
"""The same for a duty that keeps no runs of its own, or has none yet."""


@dataclass(frozen=True, slots=True)
class DutySeen:
    """One duty, as a look saw it."""

    apart: timedelta | None = None
    """Something is due, and a run for it begins no sooner than this after the run before it began; None: nothing is due."""
    began: float | None = None
    """Seconds since its newest run over everything began; None: no run is recorded."""
    alive: bool = False
    """That run still works."""


@dataclass(slots=True)
class Starts:
    """Decides for one duty, and remembers when it said yes. A lost memory costs one run that finds nothing to do."""

    said: float | None = None

    def now(self, seen: DutySeen, clock: float) -> bool:
        """Whether to start the duty at this instant of a monotonic clock (seconds); a yes is remembered."""
        if seen.apart is None or seen.alive:
            return False
        if (inf if seen.began is None else seen.began) < seen.apart.total_seconds():
            return False
        if self.said is not None:
            waited = clock - self.said
            if seen.began is None and waited < max(seen.apart, UNRECORDED).total_seconds():
                return False
            if seen.began is not None and waited <= seen.began and waited < AGAIN.total_seconds():
                return False  # no run has begun since
        self.said = clock
        return True
