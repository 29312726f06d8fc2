"""What a run does at the moment, for people who look. Nothing rests on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PhaseNow:
    """A phase, and how much of it is done: None where nobody counts."""

    name: str
    done: int | None = None
    of: int | None = None


class CurrentPhase:
    """The phase that a run is in, in this process. The run's heartbeat writes it, so that naming one neither waits for a database
    nor fails with it. A copy in another process, such as an executor's, is written by nobody."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """A phase began that is not written yet, or the heartbeat is to end."""
        self.measure: Callable[[], tuple[int, int] | None] = lambda: None
        """How much of the phase is done, and of how much, where somebody knows it besides."""
        self._now: PhaseNow | None = None
        self._written: PhaseNow | None = None

    def __reduce__(self) -> tuple[type[CurrentPhase], tuple[()]]:
        return CurrentPhase, ()

    def begin(self, name: str) -> None:
        self._now = PhaseNow(name)
        self.changed.set()

    def advance(self, done: int, of: int | None = None) -> None:
        """So much of the phase is done; the next heartbeat says so."""
        if self._now is not None:
            self._now = PhaseNow(self._now.name, done, of)

    def unwritten(self) -> PhaseNow | None:
        """What has changed since it was last written; None: nothing."""
        now = self._now
        if now is None:
            return None
        try:
            measured = self.measure()
        except Exception as error:  # noqa: BLE001 - a phase without its progress is still worth showing
            log.debug("backstop: progress is unknown: %s", type(error).__name__)
            measured = None
        if measured is not None:
            now = PhaseNow(now.name, *measured)
        return None if now == self._written else now

    def wrote(self, phase: PhaseNow) -> None:
        self._written = phase
