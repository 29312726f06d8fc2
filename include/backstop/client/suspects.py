"""What may have killed its worker is tried alone, for a bounded time, so that it takes no other message with it often enough to
park that one."""

import time

from backstop.client.lanes import Lane

ALONE_FOR = 10.0
"""Seconds: so long others wait for a suspect, and it for what is in handlers; one that hangs must not stop its queue."""


class Suspects:
    """Which suspect of one consumer is in the pool, and since when one waits. Not shared between threads."""

    def __init__(self) -> None:
        self._alone: Lane | None = None
        self._alone_until = float("-inf")
        self._waits_since: float | None = None

    def hold_up(self) -> bool:
        """One is in the pool: nothing is started beside it yet."""
        return self._alone is not None and time.monotonic() < self._alone_until

    def choose(self, lanes: list[Lane], *, is_idle: bool) -> list[Lane]:
        """Those that may be started of lanes that could be: all, or a suspect alone, or none while it waits for the pool.

        `is_idle`: nothing is in the pool."""
        suspect = next((lane for lane in lanes if lane.is_suspect), None)
        if suspect is None:
            return lanes
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if not is_idle and now - self._waits_since < ALONE_FOR:
            return []
        self._waits_since = None
        return [suspect]

    def entered(self, lane: Lane) -> None:
        """The lane's head is in the pool."""
        if lane.is_suspect:
            self._alone, self._alone_until = lane, time.monotonic() + ALONE_FOR

    def ended(self, lane: Lane) -> None:
        """It has left the pool."""
        if self._alone is lane:
            self._alone = None
