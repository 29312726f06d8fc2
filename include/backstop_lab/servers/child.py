"""Own a server as a child process: start it, wait for it by condition, stop it in order, or kill it for a
fault test.

Servers stay our own children instead of daemons: a daemon's zombie under a process 1 that does not reap looks
alive for ever, and a port or a data directory looks taken.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from backstop.model.errors import Unavailable

POLL_SECONDS = 0.02
LEFTOVER_SECONDS = 10.0


class LocalServerError(Unavailable):
    """A server of the embedded platform did not start, or did not stop, in time."""


class Child:
    """One server process of ours, its output in a log file, in a session of its own.

    The session keeps Ctrl-C at the terminal from reaching the server before its supervisor decides the order.
    """

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path = Path("/")
    ) -> None:
        if self.running:
            raise self._error("is already running", "stop it first")
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with uninterrupted():
                self._process = subprocess.Popen(
                    argv,
                    env=env,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    start_new_session=True,
                )
        finally:
            os.close(descriptor)

    def wait_until(
        self, ready: Callable[[], bool], seconds: float, every: float = POLL_SECONDS
    ) -> None:
        """Return when `ready()` holds, asked once in `every` seconds; raise LocalServerError when the process ends or the time
        is over."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise self._error(
                    "ended while it was starting", f"read {self.log}\n{self.last_lines()}"
                )
            if time.monotonic() > deadline:
                raise self._error(
                    f"was not ready after {seconds:.0f} s", f"read {self.log}\n{self.last_lines()}"
                )
            time.sleep(every)

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Whether the process ended within the time (and its zombie is gone)."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30.0) -> None:
        """Ask the process to end and wait; what is left of it after that is killed."""
        self.send(number)
        self.finish(seconds)

    def finish(self, seconds: float) -> None:
        """Wait for a process that was asked to end; kill it, and what is left of its session, when it does
        not."""
        if self._process is None:
            return
        if self.wait(seconds):
            kill_session(self._process.pid)
        else:
            self.kill()

    def kill(self) -> None:
        """SIGKILL for the process, its descendants and its session, and wait until none of them runs any
        more."""
        if self._process is None:
            return
        family = (
            [self._process.pid, *descendants(self._process.pid)]
            if self.running
            else [self._process.pid]
        )
        for pid in family:
            kill_if_there(pid)
        kill_session(self._process.pid)
        self._process.wait()
        wait_until_gone(family)

    def last_lines(self, count: int = 15) -> str:
        return (
            "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
            if self.log.exists()
            else ""
        )

    def _error(self, what: str, next_step: str) -> LocalServerError:
        return LocalServerError(
            f"{self.name} {what}.",
            unaffected="Its data directory is as its last commit left it.",
            next_step=f"{next_step[0].upper()}{next_step[1:]}",
        )


def run_to_end(
    argv: Sequence[str], *, env: Mapping[str, str], seconds: float
) -> "subprocess.CompletedProcess[str]":
    """Run a program that makes something and ends. Interrupted, or out of time, it leaves no process of its own behind.

    Raises what interrupted it, or subprocess.TimeoutExpired.
    """
    process = None
    try:
        with uninterrupted():
            process = subprocess.Popen(
                argv,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        output, errors = process.communicate(timeout=seconds)
    except BaseException:
        if process is not None:
            with process:  # closes its pipes, and waits
                family = [process.pid, *descendants(process.pid)]
                kill_session(process.pid)
            wait_until_gone(family)
        raise
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """What Ctrl-C and SIGTERM would do here they do at the end: raised between the start of a process and its assignment, they
    would leave a process that nobody knows."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is handled here
        return
    arrived: list[int] = []
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    for number in handlers:
        signal.signal(number, lambda sent, _: arrived.append(sent))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for sent in arrived:
            signal.raise_signal(sent)


def kill_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody of it is left, which is what was wanted


def kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself, which is what was wanted


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not, whoever should have reaped it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    """The process's children and theirs."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found  # it ended since somebody listed it
    for thread in threads:
        try:
            children = [
                int(child)
                for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
            ]
        except (FileNotFoundError, ProcessLookupError):
            continue  # that thread ended between the listing and the reading
        for child in children:
            found += [child, *descendants(child)]
    return found


def gone_within(pids: Sequence[int], seconds: float) -> bool:
    """Whether all of these processes ended within the time."""
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def wait_until_gone(pids: Sequence[int], seconds: float = 30.0) -> None:
    if not gone_within(pids, seconds):
        raise LocalServerError(
            f"Processes {[pid for pid in pids if is_alive(pid)]} did not end within {seconds:.0f} s.",
            unaffected="Nothing was deleted.",
            next_step="End them by hand, then try again.",
        )


def end_leftover(pid_file: Path, directory: Path, number: signal.Signals) -> None:
    """End a server that outlived its supervisor: the pid in its file, and only if it works in its
    directory."""
    if not pid_file.exists():
        return
    first = pid_file.read_text().split()
    pid = int(first[0]) if first and first[0].isdigit() else 0
    if pid <= 0 or not is_alive(pid):
        return
    try:
        works_in = Path(os.readlink(f"/proc/{pid}/cwd"))
    except (FileNotFoundError, PermissionError):
        return  # not ours: a process of ours can be read by us
    if works_in != directory.resolve():
        return
    family = [pid, *descendants(pid)]
    os.kill(pid, number)
    if not gone_within([pid], LEFTOVER_SECONDS):
        for member in family:
            kill_if_there(member)
    wait_until_gone(family)
