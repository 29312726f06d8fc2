"""Renew the leases of the messages in hand, from a thread of its own.

Losing a lease is only told to the handler, as an event: what makes processing safe is that `complete` is
fenced.
"""

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta

from backstop.client.lease_store import LeaseStore
from backstop.errors import StoreUnavailable
from backstop.leases.lease import Acquired

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews every third of the lease while there is something to renew; the thread lives as long as its
    owner."""

    def __init__(self, store: LeaseStore, lease: timedelta) -> None:
        self._store = store
        self._lease = lease
        self._held: dict[Acquired, threading.Event] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, leases: Iterable[Acquired]) -> dict[Acquired, threading.Event]:
        """Begin to renew these; for each the event that is set when it is lost."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="backstop-leases", daemon=True)
            self._thread.start()
        events = {lease: threading.Event() for lease in leases}
        with self._lock:
            self._held.update(events)
        return events

    def release(self, lease: Acquired) -> None:
        with self._lock:
            self._held.pop(lease, None)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._lease.total_seconds() / 3):
            with self._lock:
                held = dict(self._held)
            if held:
                self._renew(held)
        self._store.close_renewal()

    def _renew(self, held: dict[Acquired, threading.Event]) -> None:
        try:
            renewed = self._store.renew(list(held))
        except StoreUnavailable as error:
            log.warning("Leases of %d messages were not renewed. %s", len(held), error)
            return
        for lease, lost in held.items():
            with self._lock:
                still_held = lease in self._held
            if lease not in renewed and still_held:
                log.warning("The lease of %r in %r was lost.", lease.message_id, lease.topic)
                lost.set()
