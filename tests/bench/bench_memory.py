"""memory: what one whole judging job holds at its highest, the Python driver, its JVM, each executor and the Python workers.

memory.reconcile is the job as it runs on one machine (local[2]: the driver's JVM is the executor); memory.cluster is the same on two
executors that are processes of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from backstop.control.connection import connect
from backstop.reconcile.judge import judge
from backstop.runs.run import close_run, open_run
from backstop.stores.protocol import Scope
from bench.measure import Row, median, medians, said
from bench.processes import cpu, each, holders, proportional
from bench.world import World, make, world

TARGET_GIB = 2.0
LOOK_SECONDS = 0.2
STUBS = int(os.environ.get("BACKSTOP_BENCH_STUBS") or 5_000_000)
"""All due, each for two groups. The highest comes again to a few percent: one run is enough, FULL takes three."""
MASTERS = {"memory.reconcile": "local[2]", "memory.cluster": "local-cluster[2,1,1024]"}


def prepare(_: bool) -> None:
    """What is judged."""
    make(STUBS, STUBS, every="consumed")


def bench(full: bool) -> list[Row]:
    """A job of its own each time, as spark-submit would start it."""
    rows = []
    with world(STUBS, STUBS, every="consumed") as here:
        for name, master in MASTERS.items():
            peaks: list[float] = []
            parts: list[Mapping[str, float]] = []
            spent: list[Mapping[str, float]] = []
            rates: list[float] = []
            for number in range(3 if full else 1):
                with said(f"{name} {number}"):
                    before, begun = cpu(), time.perf_counter()
                    sizes = _peak(here, master)
                    rates.append(round(2 * STUBS / (time.perf_counter() - begun)))
                    spent.append(each(before, cpu(), 2 * STUBS))
                found = {whose: round(size / 2**30, 2) for whose, size in sizes.items()}
                peaks.append(found.pop("all"))
                parts.append(found)
            value = median(peaks)
            rows.append(
                Row(
                    name,
                    value,
                    "GiB",
                    f"<= {TARGET_GIB:.0f} GiB",
                    value <= TARGET_GIB,
                    rows=2 * STUBS,
                    runs=peaks,
                    memory=medians(parts),
                    # Its JVMs have ended: their time is with the Python process that waited for them.
                    cpu=medians(spent),
                    note=f"{median(rates):,.0f} deliveries/s from the start of the process to its end. Proportional set size at"
                    " its highest, of all together and of each by itself; the databases are not part of it. Of CPU python has"
                    " the JVMs', too, because they have ended",
                )
            )
    return rows


def _peak(here: World, master: str) -> dict[str, int]:
    """The highest sums of bytes over the job's processes, by `holders` and together."""
    here.sql("control", "DELETE FROM duty_lease")
    written = here.settings.model_dump(mode="json", exclude_unset=True)
    job = multiprocessing.get_context("spawn").Process(
        target=_job, args=(written, here.urls, master, 2 * here.due)
    )
    job.start()
    assert job.pid is not None
    highest: dict[str, int] = {"all": 0}
    over = threading.Event()
    while job.is_alive():
        seen = dict.fromkeys(highest, 0)
        for pid, whose in holders(job.pid).items():
            size = proportional(pid)
            seen[whose] = seen.get(whose, 0) + size
            seen["all"] += size
        highest = {whose: max(size, highest.get(whose, 0)) for whose, size in seen.items()}
        over.wait(LOOK_SECONDS)
    job.join()
    if job.exitcode != 0:
        raise AssertionError(f"the job ended with {job.exitcode}")
    return highest


def _job(written: dict[str, Any], urls: dict[str, str], master: str, deliveries: int) -> None:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings
    from backstop.spark.session import start_session

    settings, connections = (
        Settings.model_validate(written),
        Connections(urls.__getitem__).carrying(urls),
    )
    spark = start_session("bench memory", master)
    control = connect(settings, connections)
    run = open_run(control, "reconcile", "*", settings, dry_run=True)
    counts = judge(spark, settings, connections, control, run, Scope())
    close_run(control, run, "done", counts)
    with control, control.cursor() as cursor:
        cursor.execute(
            "TRUNCATE staged_verdict, staged_stub, staged_part, staged_count, staged_read"
        )
    control.close()
    spark.stop()
    if counts["confirmed"] != deliveries:
        raise AssertionError(f"not what was made: {counts}")


BENCHMARKS = {("memory.reconcile", "memory.cluster"): bench}
