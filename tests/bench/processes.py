"""What processes take: CPU by kind of process, and memory by who holds it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

KINDS = {"java": "jvm", "postgres": "postgresql", "valkey-server": "redis"}
"""By the name of the program; every other one is Python."""
LOOK_SECONDS = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu(roots: Iterable[int] = ()) -> dict[str, float]:
    """Seconds of CPU (user and system) by kind, of these processes (this one, when none is named) and of all below them; with each
    process those that ended and that it has waited for."""
    found: dict[str, float] = {}
    for pid in _tree(roots):
        try:
            name, fields = _stat(pid)
        except OSError:
            continue  # it has ended; whoever waited for it has its time
        kind = KINDS.get(name, "python")
        found[kind] = found.get(kind, 0.0) + sum(map(int, fields[11:15])) / _TICKS
    return found


@contextmanager
def watched(spent: dict[str, float], memory: dict[str, float]) -> Iterator[None]:
    """Adds to `spent` the CPU that this process and all below it take meanwhile, by kind, also where processes come and go: each is
    looked at every LOOK_SECONDS, so that the last moments of one that ends are missed. `memory` gets GiB resident at its highest
    of a Spark driver's JVM, of the Python driver that spark-submit started, and of its workers."""
    seen: dict[tuple[int, str], tuple[str, float]] = {}
    sizes: dict[tuple[int, str], tuple[str, float]] = {}
    over = threading.Event()

    def look() -> None:
        below_java = set()
        for pid in _tree(()):
            try:
                name, fields = _stat(pid)
                line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            except OSError:
                continue
            # The start tells apart two that had one number.
            which = pid, fields[19]
            seen[which] = (KINDS.get(name, "python"), sum(map(int, fields[11:13])))
            if name == "java" or int(fields[1]) in below_java:
                below_java.add(pid)
                whose = "jvm" if name == "java" else "workers" if "daemon" in line else "driver"
                sizes[which] = (whose, _status(pid, "VmHWM:") / 2**30)

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            look()

    look()
    before = dict(seen)
    sizes.clear()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        look()
        for which, (kind, ticks) in seen.items():
            grown = ticks - (before[which][1] if which in before else 0)
            spent[kind] = spent.get(kind, 0.0) + grown / _TICKS
        for whose, size in sizes.values():
            memory[whose] = memory.get(whose, 0.0) + size


def each(before: Mapping[str, float], after: Mapping[str, float], rows: int) -> dict[str, float]:
    """Microseconds of CPU for each row between two answers of `cpu`, by kind and together."""
    spent = {kind: (after[kind] - before.get(kind, 0.0)) / rows * 1e6 for kind in after}
    return {
        **{kind: round(value, 2) for kind, value in sorted(spent.items())},
        "all": round(sum(spent.values()), 2),
    }


def holders(driver: int) -> dict[int, str]:
    """Every process of a Spark driver by whose it is: "driver", "driver jvm" (in local mode the executor, too), "driver workers",
    "executor 1 jvm", "executor 1 workers", ... Programs that are neither Java nor Python are left out."""
    children, found, executors = _children(), {driver: "driver"}, 0

    def walk(pid: int, whose: str | None) -> None:
        nonlocal executors
        for child in children.get(pid, ()):
            name, of = _name(child), whose
            if name == "java":
                executors += whose is not None
                of = "driver" if whose is None else f"executor {executors}"
                found[child] = f"{of} jvm"
            elif name not in KINDS and whose is not None:
                found[child] = f"{whose} workers"
            walk(child, of)

    walk(driver, None)
    return found


def highest(driver: int) -> dict[str, float]:
    """GiB resident of each of `holders` at its highest so far, by the kernel's own mark; pages that processes share count for
    each of them."""
    found: dict[str, float] = {}
    for pid, whose in holders(driver).items():
        found[whose] = found.get(whose, 0.0) + _status(pid, "VmHWM:") / 2**30
    return {whose: round(size, 2) for whose, size in found.items()}


def proportional(pid: int) -> int:
    """Bytes of the process, those that it shares divided by how many share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _tree(roots: Iterable[int]) -> list[int]:
    children = _children()
    found, left = [], list(roots) or [os.getpid()]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = int(_stat(pid)[1][1])
        except OSError:
            continue  # it ended between the listing and the reading
        found.setdefault(parent, []).append(pid)
    return found


def _stat(pid: int) -> tuple[str, list[str]]:
    """The program's name, and the fields behind it."""
    head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return head.partition("(")[2], rest.split()


def _name(pid: int) -> str | None:
    try:
        return _stat(pid)[0]
    except OSError:
        return None


def _status(pid: int, what: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))
