"""Try one message of an unordered consumer, and tell a message at fault from a database that is away.

A database that does not answer raises: nothing can be done for any message. But one message must not stop the others. If its handler
says that another database is away, it waits for that alone. If its handler ends its own connection each time while the database
answers, it has failed: taken for an outage, it would be handed back uncounted with its whole batch, and come first again, for ever.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from backstop.client.finished import FinishedDeliveries
from backstop.client.keep_connection import KeptConnection
from backstop.client.lease_store import InDatabase, LeaseStore
from backstop.client.process import (
    Ended,
    failed,
    failed_under_row_lock,
    process,
    process_under_row_lock,
)
from backstop.client.read_headers import Copy
from backstop.client.ways import Leased, RowLock, Transactional, Work
from backstop.leases.lease import Acquired, Begun, Busy
from backstop.model.errors import StoreUnavailable
from backstop.model.log_limit import LimitedLog
from backstop.model.records import Key

CUT_OFF = 3
"""So often in a row in one consumer; before that it may have been the database."""
MOST_KNOWN = 10_000
T = TypeVar("T")
TryOutcome = tuple[Ended | Begun, str | None]
"""How it ended, or why it has not, and the handler's error."""


class Tries:
    """Of one consumer. Not shared between threads. Every method raises StoreUnavailable."""

    def __init__(
        self,
        store: LeaseStore,
        group: str,
        finished: FinishedDeliveries,
        limited: LimitedLog,
        retry_after: timedelta,
        owner_host: str | None,
    ) -> None:
        self._store, self._group, self._finished, self._limited = store, group, finished, limited
        self._retry_after, self._owner_host = retry_after, owner_host
        self._cut_off: OrderedDict[Key, int] = OrderedDict()
        """How often the connection of each message's handler ended."""

    def with_lease(
        self, way: Transactional | Leased, copy: Copy, lease: Acquired, work: Work
    ) -> TryOutcome:
        try:
            ended = process(self._store, way, copy.received.message, lease, work)
        except StoreUnavailable as away:
            why, rows = away, self._store.store if isinstance(self._store, InDatabase) else None
            if rows is None or rows.is_open:
                return self._wait_for_another(copy, away, lease)
            if isinstance(way, Leased):
                raise  # its handler has no connection of ours
            return self._fail_if_cut_off_often(copy, away, lambda: failed(self._store, lease, why))
        self._cut_off.pop(copy.arrival.key, None)
        return ended

    def with_row_lock(
        self, rows: KeptConnection, way: RowLock, copy: Copy, work: Work
    ) -> TryOutcome:
        group, arrival, how = self._group, copy.arrival, (self._retry_after, self._owner_host)
        try:
            ended = process_under_row_lock(
                rows, way, group, copy.received.message, arrival, work, *how
            )
        except StoreUnavailable as away:
            why = away
            if rows.is_open:
                return self._wait_for_another(copy, away, None)
            return self._fail_if_cut_off_often(
                copy, away, lambda: failed_under_row_lock(rows, group, arrival, why, *how)
            )
        self._cut_off.pop(arrival.key, None)
        return ended

    def _wait_for_another(
        self, copy: Copy, away: StoreUnavailable, lease: Acquired | None
    ) -> TryOutcome:
        """Uncounted. Raises the error when it is the leases' own database that does not answer."""
        if lease is not None:
            try:
                self._store.give_back([lease], lease)
            except StoreUnavailable:
                raise away from None
        self._limited.warning(f"{copy.arrival.message_id!r} is handed back. {away}")
        return Busy(self._retry_after), None

    def _fail_if_cut_off_often(
        self, copy: Copy, away: StoreUnavailable, fail: Callable[[], T]
    ) -> T:
        """What `fail` answers, which asks the database; raises the error when that does not answer either."""
        key = copy.arrival.key
        times = self._cut_off.pop(key, 0) + 1
        self._cut_off[key] = times
        if len(self._cut_off) > MOST_KNOWN:
            self._cut_off.popitem(last=False)
        if times < CUT_OFF:
            raise away
        try:
            ended = fail()
        except StoreUnavailable:
            raise away from None
        self._finished.forget()  # the database may be an older self of its own
        return ended
