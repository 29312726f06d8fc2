"""Is a failure the message's own (poison), or is a downstream away? Then no key is parked and the queue backs off.

Poison fails while other keys succeed. When many keys fail within a short time and few succeed, it is what they have in
common: the downstream, or a release of the consumer itself.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta

WINDOW = timedelta(seconds=30)
MANY = 3
"""Fewer keys that fail are never a downstream's fault, unless the handler says so."""
SHARE = 0.5
"""Of the keys tried within the window."""


class DownstreamAway(Exception):
    """A handler raises it (or a subclass) when what it needs is away: the message is not to blame, whatever the counts."""


class Blame:
    """How each key's last try within the window ended. Not shared between threads."""

    def __init__(
        self,
        window: timedelta = WINDOW,
        many: int = MANY,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window, self._many, self._share, self._clock = (
            window.total_seconds(),
            many,
            share,
            clock,
        )
        self._tries: OrderedDict[tuple[str, str], tuple[float, bool]] = OrderedDict()
        self._failing = 0
        self.is_away = False
        """The downstream was found away, and nothing has succeeded since: it stays so until something does."""

    def succeeded(self, topic: str, key: str) -> None:
        self._note(topic, key, failed=False)
        self.is_away = False

    def failed(self, topic: str, key: str, error: BaseException) -> bool:
        """Whether the downstream is to blame, as far as is known now."""
        self._note(topic, key, failed=True)
        self.is_away = self.is_away or isinstance(error, DownstreamAway) or self._many_fail()
        return self.is_away

    def _many_fail(self) -> bool:
        return self._failing >= self._many and self._failing >= self._share * len(self._tries)

    def _note(self, topic: str, key: str, *, failed: bool) -> None:
        now = self._clock()
        before = self._tries.pop((topic, key), None)
        self._failing += failed - (before is not None and before[1])
        self._tries[topic, key] = (now, failed)
        while True:  # keys are in the order of their last try; the one just noted ends the loop
            at, was_failure = next(iter(self._tries.values()))
            if now - at <= self._window:
                return
            self._tries.popitem(last=False)
            self._failing -= was_failure
