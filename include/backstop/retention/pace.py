"""Keeps a purge slow enough for everybody else, and ends it in time: it pauses after each step, and says when to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

LONGEST_PAUSE = 10.0
"""Seconds. A step that took a minute met something slow; a longer pause would not make it faster."""


@dataclass(slots=True)
class Pace:
    """`busy_share` of the time is worked, the rest is paused. `stop` ends it (the run was lost), and so does `left`."""

    busy_share: float
    left: timedelta
    stop: threading.Event = field(default_factory=threading.Event)
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.left.total_seconds()

    def end_after(self, longest: timedelta) -> None:
        """Ends it no later than so long from now."""
        self._until = min(self._until, time.monotonic() + longest.total_seconds())

    def is_over(self) -> bool:
        """Whether no further step may begin."""
        return self.stop.is_set() or time.monotonic() >= self._until

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step; afterwards a pause in proportion to what it took, which ends early when the run is lost."""
        began = time.monotonic()
        yield
        worked = time.monotonic() - began
        pause = min(
            worked * (1 - self.busy_share) / self.busy_share,
            LONGEST_PAUSE,
            self._until - time.monotonic(),
        )
        if pause > 0:
            self.stop.wait(pause)
