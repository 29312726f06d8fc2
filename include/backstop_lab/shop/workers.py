"""The demo's own processes: start a producer or consumer, give it orders, freeze it, see it die, end it.

A process learns its addresses from a file of mode 0600 whose path is all that its command line shows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backstop.model.errors import BackstopError
from backstop.model.private_file import write_private
from backstop_lab.servers.child import is_alive

STOP_SECONDS = 40.0
POLL_SECONDS = 0.05


class DemoBroken(BackstopError):
    """The demo itself could not go on: one of its processes ended, or a condition did not come in time."""


def demo_broken(what: str, next_step: str) -> DemoBroken:
    return DemoBroken(
        what, unaffected="Everything injected so far is in build/demo/ledger.", next_step=next_step
    )


class Worker:
    """One child process, which runs a module of backstop_lab with a private file of addresses.

    `command`: the words before the module's name; a test may put its own program there.
    """

    def __init__(
        self,
        name: str,
        module: str,
        places: dict[str, Any],
        folder: Path,
        command: Sequence[str] = (sys.executable, "-m"),
    ) -> None:
        self.name = name
        self._command = (*command, module)
        self._places = {**places, "owner": os.getpid()}
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.died: list[int] = []
        """How it ended without being asked to, each time."""

    def start(self) -> None:
        file = self._folder / f"{self.name}.json"
        write_private(file, json.dumps(self._places))
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [*self._command, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.answers else descriptor,
                stderr=descriptor,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    @property
    def answers(self) -> bool:
        return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise demo_broken(f"{self.name} was not started.", "Start it first.")
        return self._process

    def ended(self) -> int | None:
        return self.process.poll()

    def pause(self) -> None:
        """Freezes it where it is; returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS
        while self._state() != "T":
            if self.ended() is not None or time.monotonic() > deadline:
                raise demo_broken(f"{self.name} could not be frozen.", f"Read {self._log}.")
            time.sleep(POLL_SECONDS)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def frozen(self) -> int | None:
        """Its process id while it stands still, every thread of it."""
        return self.process.pid if self.ended() is None and self._state() == "T" else None

    def stop(self) -> None:
        """Asks it to finish what it has in hand, and kills what does not end in time."""
        if self._process is None:
            return
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if is_alive(self._process.pid):
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_lines(self) -> str:
        return (
            "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
            if self._log.exists()
            else ""
        )

    def _state(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


class ProducerProcess(Worker):
    """A producer: takes orders one after the other, and is started again after a death that was ordered."""

    def __init__(self, name: str, places: dict[str, Any], folder: Path) -> None:
        super().__init__(name, "backstop_lab.shop.traffic_producer", places, folder)
        self._turn = threading.Lock()
        """It takes one order at a time; two parts of the story may have some."""

    @property
    def answers(self) -> bool:
        return True

    def start(self) -> None:
        super().start()
        self._answer(60.0)

    def make(self, topic: str, count: int, *, seconds: float = 600.0, **wishes: Any) -> list[str]:
        """Has `count` messages made and sent; their ids when `tell` is wished. DemoBroken when it dies."""
        with self._turn:
            self._order(topic, count, wishes)
            return list(self._answer(seconds)["ids"])

    def make_and_die(self, topic: str, count: int, **wishes: Any) -> None:
        """Orders a death, waits for it, and starts the producer again."""
        with self._turn:
            self._order(topic, count, wishes)
            if self.process.wait(60.0) != -signal.SIGKILL:
                raise demo_broken(
                    f"{self.name} did not die as it was ordered to:\n{self.last_lines()}",
                    f"Read {self._log}.",
                )
            self.died.append(-signal.SIGKILL)
            self.start()

    def _order(self, topic: str, count: int, wishes: dict[str, Any]) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write((json.dumps({"topic": topic, "count": count, **wishes}) + "\n").encode())
        stdin.flush()

    def _answer(self, seconds: float) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], seconds)
        line = stdout.readline() if readable else b""
        if not line:
            raise demo_broken(
                f"{self.name} gave no answer within {seconds:.0f} s:\n{self.last_lines()}",
                f"Read {self._log}.",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


class ConsumerGroup:
    """The workers of one group. A worker that kills itself, as some messages order, is started again."""

    def __init__(self, group: str, places: dict[str, Any], folder: Path, workers: int = 2) -> None:
        self.group = group
        self.workers = [
            Worker(
                f"{group}-{number}",
                "backstop_lab.shop.traffic_consumer",
                {**places, "group": group, "worker": f"{group}-{number}"},
                folder,
            )
            for number in range(1, workers + 1)
        ]
        self._watching = threading.Event()
        self._turn = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.broken: str | None = None
        self._away = False

    def start(self) -> None:
        for worker in self.workers:
            worker.start()
        self._watcher.start()

    def pause(self) -> None:
        with self._turn:
            self._each(Worker.pause)

    def resume(self) -> None:
        with self._turn:
            self._each(Worker.resume)

    def leave(self) -> None:
        """Every worker ends in order: nobody of the group is there."""
        with self._turn:
            self._away = True
            self._each(Worker.stop)

    def come_back(self) -> None:
        with self._turn:
            self._each(Worker.start)
            self._away = False

    def frozen(self) -> list[int]:
        """The process ids of workers that stand still."""
        with self._turn:
            return [pid for worker in self.workers if (pid := worker.frozen()) is not None]

    def stop(self) -> None:
        self._watching.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._each(Worker.stop)

    @property
    def killed(self) -> int:
        return sum(len(worker.died) for worker in self.workers)

    def _each(self, what: Callable[[Worker], None]) -> None:
        for worker in self.workers:
            what(worker)

    def _watch(self) -> None:
        while not self._watching.wait(POLL_SECONDS):
            with self._turn:
                for worker in self.workers if not self._away else ():
                    code = worker.ended()
                    if code is None:
                        continue
                    if code != -signal.SIGKILL:
                        self.broken = f"{worker.name} ended with {code}:\n{worker.last_lines()}"
                        return
                    worker.died.append(code)
                    worker.start()


class OrderedGroup:
    """The workers of a group that consumes in order; each names itself by its process id. Nobody kills them."""

    def __init__(self, group: str, places: dict[str, Any], folder: Path, workers: int) -> None:
        self.workers = [
            Worker(
                f"{group}-{number}",
                "backstop_lab.shop.bookkeeper",
                {**places, "group": group, "worker": f"{group}-{number}"},
                folder,
            )
            for number in range(1, workers + 1)
        ]
        self._turn = threading.Lock()
        self._is_up = False

    def start(self) -> None:
        for worker in self.workers:
            worker.start()
        self._is_up = True

    def stop(self) -> None:
        self._is_up = False
        for worker in self.workers:
            worker.stop()

    def members(self) -> set[str]:
        """The names that they have in the database."""
        return {f"{worker.name}-{worker.process.pid}" for worker in self.workers}

    def restart(self, worker: Worker) -> None:
        """It hands over, ends and starts again. DemoBroken when it did not end by itself."""
        with self._turn:
            worker.stop()
            if worker.ended() != 0:
                raise demo_broken(
                    f"{worker.name} did not end in order:\n{worker.last_lines()}",
                    "Read its log in build/demo/processes.",
                )
            worker.start()

    def check(self) -> None:
        """DemoBroken when a worker has ended that is not just being restarted."""
        if not self._is_up or not self._turn.acquire(blocking=False):
            return
        try:
            for worker in self.workers:
                if (code := worker.ended()) is not None:
                    raise demo_broken(
                        f"{worker.name} ended with {code}:\n{worker.last_lines()}",
                        "Read its log in build/demo/processes.",
                    )
        finally:
            self._turn.release()
