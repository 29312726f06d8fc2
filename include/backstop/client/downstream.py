"""While what the handlers need is away, all queues of a consumer wait: nothing is parked, and no attempt is counted."""

import logging
import time
from collections.abc import Callable

from backstop.client.blame import Blame
from backstop.client.keep_connection import KeptConnection
from backstop.leases import parking
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)


class Downstream:
    """What one consumer knows of what its handlers need. Not shared between threads. `after`: seconds before the next try, by
    how often it was found away in a row."""

    def __init__(
        self,
        store: KeptConnection,
        group: str,
        member: str,
        after: Callable[[int], float],
        blame: Blame,
    ) -> None:
        self._store, self._group, self._member = store, group, member
        self._after, self._blame = after, blame
        self._resume_at, self._rounds, self._was_said = float("-inf"), 0, False
        self._limited = LimitedLog(log)

    def is_waited_for(self) -> bool:
        """Nothing is started yet."""
        return time.monotonic() < self._resume_at

    def succeeded(self, topic: str, key: str) -> None:
        """Raises StoreUnavailable."""
        self._blame.succeeded(topic, key)
        self._resume_at, self._rounds = float("-inf"), 0
        self.say_back()

    def is_to_blame(self, topic: str, key: str, error: BaseException, text: str) -> bool:
        """Whether this failure is not the message's own; then all wait. Raises StoreUnavailable."""
        if not self._blame.failed(topic, key, error):
            return False
        now = time.monotonic()
        if now >= self._resume_at:
            self._rounds += 1
            self._resume_at = now + self._after(self._rounds)
            self._limited.warning(
                f"A downstream seems to be away: nothing is parked, all queues wait. {text}"
            )
            with self._store.short_transaction() as connection:
                parking.say_away(connection, self._group, topic, self._member, text)
            self._was_said = True
        return True

    def say_back(self) -> None:
        """Something succeeded, or the consumer stops. Raises StoreUnavailable."""
        if self._was_said:
            with self._store.short_transaction() as connection:
                parking.say_back(connection, self._group, self._member)
            self._was_said = False
