"""Looks at everything again and again, so that a duty with nothing to do is never started to find that out.

What does not answer is not due: the duty's slow schedule finds it, and says that it is away. Each place is asked by a thread of
its own, so that one that hangs keeps nobody else's work waiting, and never for more than a small share of its time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from types import TracebackType
from typing import Self

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.due.probes import DUTIES, Apart, Asked, ControlProbe, Probe, probes_of
from backstop.due.starts import DutySeen, Starts
from backstop.model.errors import BackstopError
from backstop.watch.due_trigger import is_silent

log = logging.getLogger(__name__)
EVERY = 0.5
"""Seconds from one look to the next."""
SHARE = 20
"""A place that takes a second to answer is asked every 20: looking takes five per cent of anybody's time at most."""
PATIENCE = 0.5
"""A look waits so many seconds for places; a later answer counts for the look after it."""
AWAY_FOR = 60.0
"""The longest pause before a place that does not answer is asked again."""
NOTED_EVERY = 10.0


@dataclass(slots=True)
class _Place:
    probe: Probe
    asked_next: float = 0.0
    asking: Future[tuple[Apart, float]] | None = None
    said: Apart = field(default_factory=dict)
    failures: int = 0
    unanswered_since: float | None = None
    """When the first of the questions was asked that it has not answered since its last answer."""
    failed_at: float = 0.0

    def silence(self) -> float:
        """For how many seconds it has been asked without an answer. Time in which nobody asked it is no silence."""
        if self.unanswered_since is None:
            return 0.0
        return (self.failed_at if self.asking is None else monotonic()) - self.unanswered_since


class Looker:
    """For one thread at a time; close it as a context manager. No method raises for a place that is away."""

    def __init__(
        self,
        settings: Settings,
        connections: Connections,
        *,
        patience: float = PATIENCE,
        notes: bool = True,
    ) -> None:
        """`notes`: the watch is to know that somebody looks again and again."""
        self._control = ControlProbe(settings, connections)
        self._places = [_Place(probe) for probe in probes_of(settings, connections)]
        self._threads = ThreadPoolExecutor(max(1, len(self._places)), "backstop-due")
        self._control_next, self._control_failures = 0.0, 0
        self._patience, self._note_next = patience, 0.0 if notes else inf

    def look(self) -> Mapping[str, DutySeen] | None:
        """Each duty as it is now; None: the control database is away or not to be asked yet, and nothing is known."""
        if monotonic() < self._control_next:
            return None
        begun = monotonic()
        note = begun >= self._note_next
        try:
            asked, due = self._control.look(silent=self._silent() if note else None)
        except Exception as error:  # noqa: BLE001 - of a place that is away nothing is known
            self._control_failures += 1
            self._control_next = begun + _pause(self._control_failures)
            if self._control_failures == 1:
                log.warning("backstop: due work is not looked for: %s", _why(error))
            return None
        if self._control_failures:
            log.info("backstop: the control database answers again")
        self._control_failures = 0
        self._control_next = begun + min(AWAY_FOR, (monotonic() - begun) * SHARE)
        self._note_next = begun + NOTED_EVERY if note else self._note_next
        self._ask_places(asked)
        return _joined(asked, [due, *(place.said for place in self._places)])

    def _silent(self) -> dict[str, float]:
        """Places that the watch is to know of, and for how many seconds they have not answered."""
        silences = {place.probe.name: place.silence() for place in self._places}
        return {
            name: seconds
            for name, seconds in silences.items()
            if is_silent(timedelta(seconds=seconds), True)
        }

    def _ask_places(self, asked: Asked) -> None:
        """Asks those whose turn it is, and takes the answers that came."""
        alive = {duty for duty, seen in asked.runs.items() if seen.alive}
        now = monotonic()
        for place in self._places:
            # What a run that still works has seen is not news when it ends.
            place.said = {duty: apart for duty, apart in place.said.items() if duty not in alive}
            if place.asking is None and place.asked_next <= now and place.probe.serves - alive:
                place.asking = self._threads.submit(_timed, place.probe, asked.now)
                if place.unanswered_since is None:
                    place.unanswered_since = now
        wait([place.asking for place in self._places if place.asking is not None], self._patience)
        for place in self._places:
            if place.asking is not None and place.asking.done():
                self._take(place, place.asking, alive)
                place.asking = None

    def _take(self, place: _Place, answer: Future[tuple[Apart, float]], alive: set[str]) -> None:
        error = answer.exception()
        if error is not None:
            place.failures += 1
            place.failed_at = monotonic()
            place.said = {}
            place.asked_next = monotonic() + _pause(place.failures)
            if place.failures == 1:
                log.warning("backstop: %s is not looked at: %s", place.probe.name, _why(error))
            return
        if place.failures:
            log.info("backstop: %s answers again", place.probe.name)
        place.failures, place.unanswered_since = 0, None
        said, took = answer.result()
        place.said = {duty: apart for duty, apart in said.items() if duty not in alive}
        place.asked_next = monotonic() + max(place.probe.every - took - EVERY / 2, took * SHARE)

    def close(self) -> None:
        """Waits for no place: one that hangs is left behind with its thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._control.close()
        for place in self._places:
            if place.asking is None or place.asking.done():
                place.probe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def due_now(settings: Settings, connections: Connections, patience: float = 10.0) -> list[str]:
    """The duties that should run now, by one look that waits so many seconds for places that are slow."""
    with Looker(settings, connections, patience=patience, notes=False) as looker:
        seen = looker.look() or {}
    return [duty for duty, its in seen.items() if Starts().now(its, 0.0)]


def _timed(probe: Probe, now: datetime) -> tuple[Apart, float]:
    begun = monotonic()
    return probe.look(now), monotonic() - begun


def _joined(asked: Asked, said: list[Apart]) -> dict[str, DutySeen]:
    """The shortest time apart that any place gives a duty."""
    found: dict[str, timedelta] = {}
    for due in said:
        for duty, apart in due.items():
            found[duty] = min(apart, found.get(duty, apart))
    return {
        duty: replace(asked.runs.get(duty, DutySeen()), apart=found.get(duty)) for duty in DUTIES
    }


def _pause(failures: int) -> float:
    return min(AWAY_FOR, 2.0**failures)


def _why(error: BaseException) -> str:
    """Of an error of ours what happened; of any other its kind, because its text may quote a row."""
    return error.what if isinstance(error, BackstopError) else type(error).__name__
