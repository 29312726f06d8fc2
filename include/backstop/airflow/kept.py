"""Keeps what is costly to open for the next request, in a server that asks the same things again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Open things that nobody uses at the moment, by a key: at most `most` of one key, and each for at most `seconds`. What is taken
    belongs to the taker alone until it is put back."""

    def __init__(self, most: int, seconds: float, close: Callable[[T], object]) -> None:
        self._most, self._seconds, self._close = most, seconds, close
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[tuple[float, T]]] = {}
        self._timer: threading.Timer | None = None

    def take(self, key: Hashable) -> T | None:
        """The one that was used last; None: none is kept."""
        with self._lock:
            idle = self._idle.get(key)
            return idle.pop()[1] if idle else None

    def put_back(self, key: Hashable, thing: T) -> None:
        """Keeps it; closes it where there are enough."""
        with self._lock:
            idle = self._idle.setdefault(key, [])
            if kept := len(idle) < self._most:
                idle.append((time.monotonic(), thing))
                self._watch()
        if not kept:
            self._close(thing)

    def close_old(self) -> None:
        """Closes those that nobody has used for as long as they are kept."""
        oldest = time.monotonic() - self._seconds
        with self._lock:
            old = [one for idle in self._idle.values() for since, one in idle if since <= oldest]
            young = {
                key: [entry for entry in idle if entry[0] > oldest]
                for key, idle in self._idle.items()
            }
            self._idle = {key: idle for key, idle in young.items() if idle}
            self._timer = None
            if self._idle:
                self._watch()
        for one in old:
            self._close(one)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self.close_old)
            self._timer.daemon = True
            self._timer.start()
