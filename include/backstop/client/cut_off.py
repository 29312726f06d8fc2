"""A message whose handler ends its own database connection, each time and while the database answers, is at fault itself.

It is not an outage: taken for one, it would be handed back uncounted with its whole batch, and come first again, for ever.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key

TIMES = 3
"""So often in one consumer; before that it may have been the database."""
MOST_KNOWN = 10_000
T = TypeVar("T")


class CutOffs:
    """How often the work on each message was cut off. Not shared between threads."""

    def __init__(self) -> None:
        self._times: OrderedDict[Key, int] = OrderedDict()

    def settle(self, key: Key, error: StoreUnavailable, fail: Callable[[], T]) -> T:
        """What `fail` answers, which asks the database. Raises the error while the work was not cut off often enough, and when the
        database does not answer."""
        times = self._times.pop(key, 0) + 1
        self._times[key] = times
        if len(self._times) > MOST_KNOWN:
            self._times.popitem(last=False)
        if times < TIMES:
            raise error
        try:
            return fail()
        except StoreUnavailable:
            raise error from None

    def forget(self, key: Key) -> None:
        """Its work came to an end."""
        self._times.pop(key, None)
