"""Is a failure the message's own (poison), or is a downstream away? Then no key is parked and the queue backs off.

Poison fails while other keys succeed. When many keys fail within a short time and few succeed, it is what they have in
common: the downstream, or a release of the consumer itself. On a quiet topic few keys are tried within a short time, so a
head that goes on failing is looked at over all the time that it fails.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from itertools import chain, takewhile
from typing import NamedTuple

WINDOW = timedelta(seconds=30)
MANY = 3
"""Fewer keys that fail are never a downstream's fault, unless the handler says so."""
SHARE = 0.5
"""Of the keys tried within the window."""
MOST_OLDER = 10_000
"""Keys last tried before the window that are known."""
_Place = tuple[str, str]


class DownstreamAway(Exception):
    """A handler raises it (or a subclass) when what it needs is away: the message is not to blame, whatever the counts."""


class _Try(NamedTuple):
    """How a key was tried last."""

    at: float
    fails_since: float | None
    """When the first of the failures was that nothing has ended; null: it succeeded."""
    failed_at: float
    """When it failed last."""


class Blame:
    """How each key's last try ended, within the window and before. Not shared between threads."""

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
        self._tries: OrderedDict[_Place, _Try] = OrderedDict()
        self._older: OrderedDict[_Place, _Try] = OrderedDict()
        self._failing = 0
        """Within the window."""
        self._spoke_at = float("-inf")
        """When a handler spoke of a downstream last: of failures before that, nothing is known."""
        self.is_away = False
        """The downstream was found away, and nothing has succeeded since: it stays so until something does."""

    def succeeded(self, topic: str, key: str) -> None:
        now, before = self._clock(), self._take((topic, key))
        failed_at = float("-inf") if before is None else before.failed_at
        self._note((topic, key), _Try(now, None, failed_at))
        self.is_away = False

    def failed(self, topic: str, key: str, error: BaseException) -> bool:
        """Whether the downstream is to blame, as far as is known now."""
        now, before = self._clock(), self._take((topic, key))
        since = now if before is None or before.fails_since is None else before.fails_since
        self._note((topic, key), _Try(now, since, now))
        if isinstance(error, DownstreamAway):
            self._spoke_at, self.is_away = now, True
        self.is_away = self.is_away or (
            self._is_share(self._failing, len(self._tries))
            and not self._is_poison(max(since, self._spoke_at), now)
        )
        return self.is_away

    def _is_poison(self, since: float, now: float) -> bool:
        """It fails for longer than a window, and most keys that were tried meanwhile have not failed even once."""
        if now - since <= self._window:
            return False
        older = list(takewhile(lambda one: one.at >= since, reversed(self._older.values())))
        tried = len(self._tries) + len(older)
        if self._is_share(self._failing, tried):
            return False
        failed = sum(one.failed_at >= since for one in chain(self._tries.values(), older))
        return not self._is_share(failed, tried)

    def _is_share(self, failing: int, tried: int) -> bool:
        return failing >= self._many and failing >= self._share * tried

    def _take(self, place: _Place) -> _Try | None:
        """Its last try, which is followed by another one."""
        found = self._tries.pop(place, None)
        if found is None:
            return self._older.pop(place, None)
        self._failing -= found.fails_since is not None
        return found

    def _note(self, place: _Place, last: _Try) -> None:
        self._tries[place] = last
        self._failing += last.fails_since is not None
        while True:  # keys are in the order of their last try; the one just noted ends the loop
            oldest, its = next(iter(self._tries.items()))
            if last.at - its.at <= self._window:
                break
            del self._tries[oldest]
            self._failing -= its.fails_since is not None
            self._older[oldest] = its
        while len(self._older) > MOST_OLDER:
            self._older.popitem(last=False)
