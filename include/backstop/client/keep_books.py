"""Keep the books of one consumer, and write them to the consumer database every minute and at its end."""

import logging
import time
import uuid

from backstop.client.keep_connection import KeptConnection
from backstop.leases import books
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)


class BookKeeper:
    """One process's books. Not shared between threads. `store`: null: they are kept and not written."""

    def __init__(self, store: KeptConnection | None, group: str, member: str) -> None:
        self.books = books.Books()
        self._store, self._group, self._member = store, group, member
        self._life, self._wrote_at = uuid.uuid4().hex, time.monotonic()
        self._limited = LimitedLog(log)

    def is_due(self) -> bool:
        return time.monotonic() - self._wrote_at >= books.EVERY.total_seconds()

    def write(self, in_process: int, *, has_ended: bool = False) -> None:
        """`in_process`: messages that were taken in and have no end yet. Raises StoreUnavailable; it is tried again in a minute."""
        self._wrote_at = time.monotonic()
        if self._store is None:
            return
        if missing := self.books.difference(in_process):
            self._limited.warning(
                f"The books do not balance: {missing} messages. {self.books.counts}, in process {in_process}"
            )
        with self._store.one_statement() as connection:
            books.write(
                connection,
                self._group,
                self._member,
                self._life,
                self.books.counts,
                in_process,
                has_ended=has_ended,
            )
