"""Renew the leases of the messages that a consumer processes, from a thread of its own.

A lost lease only sets an event for the handler: processing is safe because `complete` is fenced. A renewal that finds no lease
is not logged: the message may have been completed while the renewal waited for its row.
"""

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from backstop.client.lease_store import LeaseStore
from backstop.leases.lease import Acquired

log = logging.getLogger(__name__)

JOIN_SECONDS = 5.0
"""A renewal that hangs in its database may not hold up a worker that stops; its thread ends with the process."""


class LeaseKeeper:
    """Renews every third of the lease while there is something to renew. A second thread watches the ends, for a renewal that hangs.
    Both live as long as their owner."""

    def __init__(self, store: LeaseStore, lease: timedelta) -> None:
        self._store = store
        self._seconds = lease.total_seconds()
        self._held: dict[Acquired, _Held] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch_thread: threading.Thread | None = None

    def hold(self, leases: Iterable[Acquired]) -> dict[Acquired, threading.Event]:
        """Begin to renew these; for each the event that is set when it is lost, or when it may be: no renewal was
        answered for as long as it lasts."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._beat, name="backstop-leases", daemon=True)
            self._thread.start()
        if self._watch_thread is None or not self._watch_thread.is_alive():
            self._watch_thread = threading.Thread(
                target=self._watch, name="backstop-lease-ends", daemon=True
            )
            self._watch_thread.start()
        held = {lease: _Held(threading.Event(), time.monotonic()) for lease in leases}
        with self._lock:
            self._held.update(held)
        return {lease: one.lost for lease, one in held.items()}

    def release(self, lease: Acquired) -> None:
        with self._lock:
            self._held.pop(lease, None)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _beat(self) -> None:
        try:
            while not self._stop.wait(self._seconds / 3):
                with self._lock:
                    held = dict(self._held)
                if held:
                    self._renew(held)
        finally:
            self._store.close_renewal()

    def _renew(self, held: dict[Acquired, "_Held"]) -> None:
        begun = time.monotonic()
        try:
            renewed = self._store.renew(list(held))
        except Exception as error:  # noqa: BLE001 - whatever it was, the next beat asks again
            log.warning("Leases of %d messages were not renewed. %s", len(held), error)
            return
        for lease, one in held.items():
            if lease in renewed:
                one.renewed_at = begun
            else:
                one.lost.set()

    def _watch(self) -> None:
        """What was not renewed for as long as it lasts counts as lost, also while a renewal waits for its answer."""
        wait = self._seconds / 3
        while not self._stop.wait(wait):
            with self._lock:
                held = dict(self._held)
            now, wait = time.monotonic(), self._seconds / 3
            for lease, one in held.items():
                left = one.renewed_at + self._seconds - now
                if left <= 0:
                    self._expire(lease, one)
                else:
                    wait = min(wait, left)

    def _expire(self, lease: Acquired, one: "_Held") -> None:
        with self._lock:
            still_held = lease in self._held
        if still_held and not one.lost.is_set():
            log.warning(
                "The lease of %r in %r was not renewed in time.", lease.message_id, lease.topic
            )
            one.lost.set()


@dataclass(slots=True)
class _Held:
    """One lease that is held, and when (monotonic) it was last known to be ours."""

    lost: threading.Event
    renewed_at: float
