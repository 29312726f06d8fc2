"""Keep a process running as an init system would: whatever ended it, it is started again, unless somebody holds it down."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from backstop_lab.chaos.record import Record
from backstop_lab.chaos.servers import signal_if_there
from backstop_lab.servers.child import descendants, kill_if_there
from backstop_lab.shop.workers import Worker


class Kept:
    """A process that is started again whenever it ended, unless somebody holds it down."""

    def __init__(self, worker: Worker, record: Record) -> None:
        self.worker, self._record = worker, record
        self.turn = threading.RLock()
        self.held = False
        self.frozen: list[int] = []
        self.starts = 0

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def pid(self) -> int | None:
        return self.worker.process.pid if self.starts and self.worker.ended() is None else None

    def start(self) -> None:
        with self.turn:
            self.worker.start()
            self.starts += 1

    def watch(self) -> None:
        with self.turn:
            code = self.worker.ended() if self.starts else None
            if code is None or self.held:
                return
            self._record.write("process ended", process=self.name, code=code)
            self.start()

    def kill(self) -> bool:
        """SIGKILL, with what it started; whether there was somebody to kill."""
        with self.turn:
            pid = self.pid
            if pid is None:
                return False
            family = [pid, *descendants(pid)]
            for one in family:
                kill_if_there(one)
            self.worker.process.wait()
            return True

    def freeze(self) -> list[int]:
        with self.turn:
            pid = self.pid
            self.frozen = [pid, *descendants(pid)] if pid else []
            for one in self.frozen:
                signal_if_there(one, signal.SIGSTOP)
            return self.frozen

    def thaw(self) -> None:
        with self.turn:
            for one in self.frozen:
                signal_if_there(one, signal.SIGCONT)
            self.frozen = []

    def wake(self) -> None:
        """It goes on when it has stopped itself."""
        with self.turn:
            if self.pid is not None:
                signal_if_there(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        with self.turn:
            self.held = True
            if self.starts:
                self.thaw()
                self.worker.stop()
                with suppress(
                    ProcessLookupError
                ):  # nobody of its session is left, which is what is wanted
                    os.killpg(self.worker.process.pid, signal.SIGKILL)
