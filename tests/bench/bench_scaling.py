"""reconcile.scaling: what a delivery costs when the same work is done by more executors, and over more shards.

Executors are processes of their own (local-cluster), one core each. On a machine with fewer cores than executors nothing becomes
faster; what must not grow is the CPU of a delivery, of all processes: driver, executors, Python workers and PostgreSQL.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from backstop.control.connection import connect
from backstop.reconcile.judge import judge
from backstop.runs.run import close_run, open_run
from backstop.stores.protocol import Scope
from bench.bench_memory import tree
from bench.measure import RUNS, Row, median, said
from bench.world import World, world

STUBS = int(os.environ.get("BACKSTOP_BENCH_STUBS") or 300_000)
"""All due, each for two groups."""
WORKERS, SHARDS = (1, 2, 4), (2, 8)
MOST = 1.15
OPTIONS = "--conf spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 pyspark-shell"
"""As an executor gets it for so little work; its second compiler's work would be counted as ours."""


def bench(full: bool) -> list[Row]:
    """Read to staged, after a run that is not counted; FULL: ten times as much."""
    stubs = 10 * STUBS if full else STUBS
    costs: dict[str, list[float]] = {}
    with world(stubs, stubs, every="consumed") as here:
        for workers in WORKERS:
            with said(f"{workers} workers, {SHARDS[0]} shards"):
                costs[f"workers {workers}"] = _costs(here, workers)
    with (
        world(stubs, stubs, every="consumed", shards=SHARDS[1]) as here,
        said(f"2 workers, {SHARDS[1]} shards"),
    ):
        costs[f"shards {SHARDS[1]}"] = _costs(here, 2)
    took = {name: median(runs) for name, runs in costs.items()}
    one, two = costs["workers 1"], costs["workers 2"]
    more = max((costs[f"workers {workers}"] for workers in WORKERS[1:]), key=median)
    return [
        _row("reconcile.scaling.workers", more, one, stubs, took),
        _row("reconcile.scaling.shards", costs[f"shards {SHARDS[1]}"], two, stubs, took),
    ]


def _row(
    name: str, runs: list[float], peer: list[float], stubs: int, took: dict[str, float]
) -> Row:
    ratio = round(median(runs) / median(peer), 3)
    return Row(
        name,
        ratio,
        "x",
        f"<= {MOST}",
        ratio <= MOST,
        rows=2 * stubs,
        runs=runs,
        peer=median(peer),
        peer_runs=peer,
        phases=took,
        note="CPU of a delivery in us: driver, executors, Python workers and PostgreSQL",
    )


def _costs(here: World, workers: int) -> list[float]:
    """Microseconds of CPU for each delivery of each counted run, by a job of its own."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    written = here.settings.model_dump(mode="json", exclude_unset=True)
    here.sql("control", "DELETE FROM duty_lease")
    job = context.Process(
        target=_job,
        args=(written, here.urls, workers, here.postgres.pid, 2 * here.due, answers),
    )
    job.start()
    job.join()  # a few numbers: they wait in the pipe
    if job.exitcode != 0:
        raise AssertionError(f"the job ended with {job.exitcode}")
    return [float(answers.get()) for _ in range(RUNS + 1)][1:]


def _job(
    written: dict[str, Any],
    urls: dict[str, str],
    workers: int,
    server: int,
    deliveries: int,
    answers: Any,
) -> None:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings
    from backstop.spark.session import start_session

    os.environ["PYSPARK_SUBMIT_ARGS"] = OPTIONS
    settings = Settings.model_validate(written)
    connections = Connections(urls.__getitem__).carrying(urls)
    spark = start_session("bench scaling", f"local-cluster[{workers},1,1024]")
    try:
        for _ in range(RUNS + 1):
            control = connect(settings, connections)
            run = open_run(control, "reconcile", "*", settings, dry_run=True)
            spent, begun = _cpu(server), time.perf_counter()
            counts = judge(spark, settings, connections, control, run, Scope())
            spent, took = _cpu(server) - spent, time.perf_counter() - begun
            close_run(control, run, "done", counts)
            with control, control.cursor() as cursor:
                cursor.execute(
                    "TRUNCATE staged_verdict, staged_stub, staged_part, staged_count, staged_read"
                )
            control.close()
            if counts["confirmed"] != deliveries:
                raise AssertionError(f"not what was made: {counts}")
            print(f"    {deliveries / took:,.0f} deliveries/s", flush=True)
            answers.put(round(spent / deliveries * 1e6, 2))
    finally:
        spark.stop()


def _cpu(server: int) -> float:
    """Seconds that this process, the server and all below them have spent, those that ended included."""
    total = 0
    for root in (os.getpid(), server):
        for pid in tree(root):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended; whoever waited for it has its time
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


BENCHMARKS = {("reconcile.scaling.workers", "reconcile.scaling.shards"): bench}
