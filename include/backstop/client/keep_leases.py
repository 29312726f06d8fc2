"""Renew the leases of the messages in hand, from a thread and a connection of its own.

Losing a lease is only told to the handler, as an event: what makes processing safe is that `complete` is
fenced.
"""

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta

from backstop.client.keep_connection import Connect, KeptConnection
from backstop.errors import StoreUnavailable
from backstop.leases.guard import Acquired, renew_many

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews every third of the lease while there is something to renew; the thread lives as long as its
    owner."""

    def __init__(self, connect: Connect, group: str, lease: timedelta) -> None:
        self._store = KeptConnection(connect, "consumer database")
        self._group = group
        self._lease = lease
        self._held: dict[str, tuple[Acquired, threading.Event]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, leases: Iterable[Acquired]) -> dict[str, threading.Event]:
        """Begin to renew these; for each token the event that is set when its lease is lost."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="backstop-leases", daemon=True)
            self._thread.start()
        events = {lease.token: (lease, threading.Event()) for lease in leases}
        with self._lock:
            self._held.update(events)
        return {token: event for token, (_, event) in events.items()}

    def release(self, token: str) -> None:
        with self._lock:
            self._held.pop(token, None)

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
        self._store.close()

    def _renew(self, held: dict[str, tuple[Acquired, threading.Event]]) -> None:
        leases = [lease for lease, _ in held.values()]
        try:
            with self._store.short_transaction() as connection:
                renewed = renew_many(
                    connection, self._group, leases, lease_seconds=self._lease.total_seconds()
                )
        except StoreUnavailable as error:
            log.warning("Leases of %d messages were not renewed. %s", len(leases), error)
            return
        for token, (lease, lost) in held.items():
            with self._lock:
                still_held = token in self._held
            if token not in renewed and still_held:
                log.warning("The lease of %r in %r was lost.", lease.message_id, lease.topic)
                lost.set()
