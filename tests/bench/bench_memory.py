"""memory.reconcile: what one whole judging job holds at its highest: Python driver, JVM and Python workers together."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

from bench.bench_reconcile import DUE
from bench.measure import RUNS, Row, median, said
from bench.world import World, world

TARGET_GIB = 2.0
LOOK_SECONDS = 0.1


def bench(full: bool) -> list[Row]:
    """A job of its own each time, as spark-submit would start it; 3 million stubs (FULL: 30 million), 100,000 deliveries due."""
    stubs = 30_000_000 if full else 3_000_000
    peaks = []
    with world(stubs, DUE, everything_in_one=not full) as here:
        for number in range(RUNS):
            with said(f"run {number}"):
                peaks.append(round(_peak(here) / 2**30, 2))
    value = median(peaks)
    return [
        Row(
            "memory.reconcile",
            value,
            "GiB",
            f"<= {TARGET_GIB:.0f} GiB",
            value <= TARGET_GIB,
            rows=stubs,
            runs=peaks,
            note="proportional set size of the job's processes; the databases are not part of it",
        )
    ]


def _peak(here: World) -> int:
    """The highest sum of bytes over the job's processes, looked at ten times a second."""
    here.sql("control", "DELETE FROM duty_lease")
    job = multiprocessing.get_context("spawn").Process(target=_job, args=(here,))
    job.start()
    highest, over = 0, threading.Event()
    while job.is_alive():
        highest = max(highest, sum(map(_bytes, _tree(job.pid))))
        over.wait(LOOK_SECONDS)
    job.join()
    if job.exitcode != 0:
        raise AssertionError(f"the job ended with {job.exitcode}")
    return highest


def _job(here: World) -> None:
    from backstop.spark.session import start_session
    from bench.bench_reconcile import judge_once

    spark = start_session("bench memory", "local[2]")
    judge_once(spark, here)
    spark.stop()


def _tree(root: Any) -> list[int]:
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
