"""What befalls a worker in the middle of its handler: it is killed, or stands still and wakes up late; the ledger says so first.

A message orders it by a header that names the group (the first worker of the group that has it in hand is hit), or whoever
runs the system by a file in the folder of orders (the worker of that name is hit, at its next message).
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from backstop.client import Work
from backstop.model.records import Message
from backstop_lab.shop.ledger import Ledger

KILLED, LEASE_KILLED, WOKEN_LATE = "consumer_killed", "lease_killed", "worker_woken_late"
HEADERS = {KILLED: "demo-kill", LEASE_KILLED: "demo-kill-holding", WOKEN_LATE: "demo-stand-still"}
"""Fault -> the header that orders it."""
STOOD_STILL, WOKE_UP = "stood still with fence", "woke up with fence"
"""A late worker's two lines in the ledger; the second one is written before it goes on."""


def order(folder: Path, worker: str, fault: str) -> Path:
    """The file that orders a fault of a worker; whoever removes it has taken the order, or withdrawn it."""
    return folder / f"{worker}.{fault}"


class Mishaps:
    """One worker's."""

    def __init__(self, group: str, worker: str, ledger: Ledger, orders: Path | None) -> None:
        self._group, self._worker, self._ledger, self._orders = group, worker, ledger, orders

    def before_the_effect(self, message: Message, work: Work) -> None:
        """Dead with the lease in hand: it is all that there is of the work."""
        if self._meant(message, LEASE_KILLED):
            self._note(LEASE_KILLED, message, f"with fence {work.fence}")
            os.kill(os.getpid(), signal.SIGKILL)

    def before_the_commit(self, message: Message, work: Work) -> None:
        """Dead between the effect and its commit; or standing still there, with every thread, until somebody wakes it."""
        if self._meant(message, KILLED):
            self._note(KILLED, message, f"with fence {work.fence}")
            os.kill(os.getpid(), signal.SIGKILL)
        if self._meant(message, WOKEN_LATE):
            self._note(WOKEN_LATE, message, f"{STOOD_STILL} {work.fence}")
            # To this thread: it must not take another step before all of them stand still.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            self._note(WOKEN_LATE, message, f"{WOKE_UP} {work.fence}")

    def _meant(self, message: Message, fault: str) -> bool:
        if message.headers.get(
            HEADERS[fault]
        ) == self._group and message.key not in self._ledger.keys(fault):
            return True
        if self._orders is None:
            return False
        try:
            order(self._orders, self._worker, fault).unlink()
        except FileNotFoundError:
            return False
        return True

    def _note(self, fault: str, message: Message, detail: str) -> None:
        self._ledger.append(
            fault, [message.key], consumer_group=self._group, detail=f"{self._worker} {detail}"
        )
