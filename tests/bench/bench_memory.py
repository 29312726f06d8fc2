"""memory.reconcile: what one whole judging job holds at its highest: Python driver, JVM and Python workers together."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

from backstop.control.connection import connect
from backstop.reconcile.judge import judge
from backstop.runs.run import close_run, open_run
from backstop.stores.protocol import Scope
from bench.bench_outage import STUBS
from bench.measure import RUNS, Row, median, said
from bench.world import World, world

TARGET_GIB = 2.0
LOOK_SECONDS = 0.1


def bench(full: bool) -> list[Row]:
    """A job of its own each time, as spark-submit would start it, over as many stubs as `reconcile.all_due`, all of them due
    (FULL: 5 million, 10 million deliveries)."""
    stubs = 5_000_000 if full else STUBS
    peaks: list[float] = []
    parts: dict[str, list[float]] = {}
    with world(stubs, stubs, every="consumed") as here:
        for number in range(RUNS):
            with said(f"run {number}"):
                found = {name: round(size / 2**30, 2) for name, size in _peak(here).items()}
                peaks.append(found.pop("all"))
                for name, size in found.items():
                    parts.setdefault(name, []).append(size)
    value = median(peaks)
    return [
        Row(
            "memory.reconcile",
            value,
            "GiB",
            f"<= {TARGET_GIB:.0f} GiB",
            value <= TARGET_GIB,
            rows=2 * stubs,
            runs=peaks,
            phases={name: median(sizes) for name, sizes in parts.items()},
            note="proportional set size of the job's processes at their highest, together and each kind by itself (the JVM is"
            " driver and executor); the databases are not part of it",
        )
    ]


def _peak(here: World) -> dict[str, int]:
    """The highest sums of bytes over the job's processes, looked at ten times a second."""
    here.sql("control", "DELETE FROM duty_lease")
    written = here.settings.model_dump(mode="json", exclude_unset=True)
    job = multiprocessing.get_context("spawn").Process(
        target=_job, args=(written, here.urls, 2 * here.due)
    )
    job.start()
    highest, over = dict.fromkeys(("all", "driver", "jvm", "workers"), 0), threading.Event()
    while job.is_alive():
        seen = dict.fromkeys(highest, 0)
        for pid in tree(job.pid):
            kind = "driver" if pid == job.pid else "jvm" if _is_java(pid) else "workers"
            size = _bytes(pid)
            seen[kind] += size
            seen["all"] += size
        highest = {name: max(size, seen[name]) for name, size in highest.items()}
        over.wait(LOOK_SECONDS)
    job.join()
    if job.exitcode != 0:
        raise AssertionError(f"the job ended with {job.exitcode}")
    return highest


def _job(written: dict[str, Any], urls: dict[str, str], deliveries: int) -> None:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings
    from backstop.spark.session import start_session

    settings, connections = (
        Settings.model_validate(written),
        Connections(urls.__getitem__).carrying(urls),
    )
    spark = start_session("bench memory", "local[2]")
    control = connect(settings, connections)
    run = open_run(control, "reconcile", "*", settings, dry_run=True)
    counts = judge(spark, settings, connections, control, run, Scope())
    close_run(control, run, "done", counts)
    control.close()
    spark.stop()
    if counts["confirmed"] != deliveries:
        raise AssertionError(f"not what was made: {counts}")


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False


def tree(root: Any) -> list[int]:
    """The process and everything below it."""
    children: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended between the listing and the reading
        children.setdefault(parent, []).append(int(pid))
    found, left = [], [int(root)]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def _bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


BENCHMARKS = {("memory.reconcile",): bench}
