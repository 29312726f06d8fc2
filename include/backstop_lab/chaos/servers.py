"""The servers of a run under fire: each database role, the broker and the leases' Redis, each with a clock and a disk of its own.

A clock is moved by libfaketime (a wheel brings it), without touching the machine's; a small disk is a tmpfs under the run's
own folder, which needs root.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
from pathlib import Path

from backstop.model.errors import ConfigurationError
from backstop_lab.chaos.schedule import DATABASES, DISKS, SERVERS
from backstop_lab.servers.child import LocalServerError, descendants, end_leftover
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey

DISK_BYTES = {"billing": 400 << 20, "broker": 160 << 20}
HOLDS = {
    "control": ("control",),
    "shops": ("shop_a", "shop_b"),
    "billing": ("billing",),
    "shipping": ("shipping",),
}
"""The databases of each PostgreSQL server."""


class Server:
    """One PostgreSQL or Valkey that can be killed, frozen, put out of time and out of space."""

    def __init__(self, name: str, folder: Path, faketime: Path, *, small_disk: bool) -> None:
        self.name = name
        self.directory = folder / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.small_disk = small_disk
        if small_disk:
            mount(self.directory, DISK_BYTES[name])
        self._clock = folder / f"{name}.clock"
        self.skew(0.0)
        wrap = (
            "/usr/bin/env",
            f"LD_PRELOAD={faketime}",
            f"FAKETIME_TIMESTAMP_FILE={self._clock}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )
        self.program: Postgres | Valkey = (
            Postgres(self.directory, wrap=wrap)
            if name in DATABASES
            else Valkey(self.directory, durable=name != "leases", wrap=wrap)
        )
        self.wanted = False
        """Whether somebody who keeps servers running should start it when it is down."""

    @property
    def port(self) -> int:
        return self.program.port

    @property
    def running(self) -> bool:
        return self.program.running

    def url(self, database: str) -> str:
        if isinstance(self.program, Valkey):
            return self.program.url()
        return self.program.admin_dsn(database)

    def start(self) -> None:
        self.program.start()
        self.wanted = True

    def try_to_start(self) -> bool:
        """Whether it is up again; a disk that is full, for one, keeps it down."""
        try:
            self.program.start()
        except (LocalServerError, OSError):
            self.program.kill()
            return False
        return True

    def kill(self) -> None:
        self.wanted = False
        self.program.kill()

    def stop(self, how: str = "fast") -> None:
        """`immediate`: PostgreSQL leaves the clean-up to its next start, Valkey its last words."""
        self.wanted = False
        if how == "immediate":
            self.program._child.stop(signal.SIGQUIT)
        else:
            self.program.stop()

    def kill_a_backend(self) -> int | None:
        """The youngest process of the server that serves somebody; None when there is none."""
        pid = self.program.pid
        family = descendants(pid) if pid else []
        for one in reversed(family):
            try:
                words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")[0].split()
            except OSError:
                continue  # it has just ended
            # `postgres: user database address state`; the server's own helpers have no address in their title
            if words[:1] == [b"postgres:"] and any(b"(" in word for word in words):
                os.kill(one, signal.SIGKILL)
                return one
        return None

    def freeze(self) -> list[int]:
        """Every process of it stands still; which."""
        pid = self.program.pid
        family = [pid, *descendants(pid)] if pid else []
        for one in family:
            signal_if_there(one, signal.SIGSTOP)
        return family

    def thaw(self) -> None:
        pid = self.program.pid
        for one in [pid, *descendants(pid)] if pid else []:
            signal_if_there(one, signal.SIGCONT)

    def skew(self, seconds: float) -> None:
        """Its clock is wrong by so much from now on; 0: right again."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.chmod(0o644)
        new.replace(self._clock)  # never half a line, whenever it is read

    def fill(self) -> int:
        """Leaves next to no byte on its disk; how many were taken. The server may be faster with some of them."""
        taken = 0
        with (self.directory / "ballast").open("wb") as file:
            for piece in (1 << 20, 1 << 12):
                while True:
                    try:
                        os.posix_fallocate(file.fileno(), taken, piece)
                    except OSError as full:
                        if full.errno != errno.ENOSPC:
                            raise
                        break
                    taken += piece
        return taken

    def free(self) -> None:
        (self.directory / "ballast").unlink(missing_ok=True)

    def let_go(self, *, keep: bool) -> None:
        """After the stop: its small disk goes, what was on it only when nobody wants it."""
        if not self.small_disk:
            return
        kept = self.directory.with_name(f"{self.name}.kept")
        if keep:
            self.free()
            shutil.copytree(self.directory, kept, symlinks=True)
        subprocess.run(["umount", str(self.directory)], check=True, capture_output=True)
        if keep:
            self.directory.rmdir()
            kept.rename(self.directory)


def make_servers(folder: Path) -> dict[str, Server]:
    """One for each name in SERVERS, not started."""
    if folder.exists():
        folder.chmod(0o711)
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    faketime, disks = find_faketime(), can_mount(folder)
    return {
        name: Server(name, folder, faketime, small_disk=disks and name in DISKS) for name in SERVERS
    }


def databases() -> dict[str, str]:
    """Database -> the server that holds it."""
    return {database: server for server in DATABASES for database in HOLDS[server]}


def find_faketime() -> Path:
    """The library that the wheel brings, found without importing it. ConfigurationError when it is not installed."""
    spec = importlib.util.find_spec("libfaketime")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in Path(folder).glob("vendor/libfaketime/src/libfaketime.so.1"):
            return library
    raise ConfigurationError(
        "libfaketime is not installed, so no server's clock can be moved.",
        unaffected="Nothing was started.",
        next_step="Run `make setup`: it is one of the development dependencies.",
    )


def can_mount(folder: Path) -> bool:
    """Whether small disks can be made here: as root, where mounting is allowed."""
    if os.geteuid() != 0:
        return False
    probe = folder / "probe"
    probe.mkdir(exist_ok=True)
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(probe)],
        check=False,
        capture_output=True,
    )
    if tried.returncode == 0:
        subprocess.run(["umount", str(probe)], check=True, capture_output=True)
    probe.rmdir()
    return tried.returncode == 0


def mount(folder: Path, size: int) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", str(folder)],
        check=True,
        capture_output=True,
    )


def clear_leftovers(folder: Path) -> None:
    """Servers and small disks that a run left behind which was killed itself: only those below its own folder."""
    for name in SERVERS:
        home = folder / "servers" / name
        end_leftover(home / "valkey.pid", home, signal.SIGTERM)
        end_leftover(home / "data" / "postmaster.pid", home / "data", signal.SIGINT)
    below = f"{folder.resolve()}/"
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in places:
        if place.startswith(below):
            subprocess.run(["umount", place], check=True, capture_output=True)


def signal_if_there(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile
