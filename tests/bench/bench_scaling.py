"""scaling: what a delivery costs when the same work is done by more executors, and over more shards.

Executors are processes of their own (local-cluster), one core each. On a machine with fewer cores than executors nothing becomes
faster; what must not grow is the CPU of a delivery, of all processes: driver, executors, Python workers and PostgreSQL.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from typing import Any

from backstop.control.connection import connect
from backstop.reconcile.judge import judge
from backstop.runs.run import close_run, open_run
from backstop.stores.protocol import Scope
from bench.measure import RUNS, Row, median, medians, said
from bench.processes import cpu, each, highest
from bench.world import World, make, world

STUBS = int(os.environ.get("BACKSTOP_BENCH_STUBS") or 300_000)
"""All due, each for two groups."""
WORKERS, SHARDS = (1, 2, 4), (2, 8)
MOST = 1.15
OPTIONS = "--conf spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 pyspark-shell"
"""As an executor gets it for so little work; its second compiler's work would be counted as ours."""


Found = Mapping[str, Any]
"""Of one counted run: `cpu` and `memory` by kind and holder, `rate` in deliveries/s."""


def prepare(full: bool) -> None:
    """The same stubs over either number of shards."""
    for shards in SHARDS:
        make(_stubs(full), _stubs(full), every="consumed", shards=shards)


def _stubs(full: bool) -> int:
    return 10 * STUBS if full else STUBS


def bench(full: bool) -> list[Row]:
    """Read to staged, after a run that is not counted; FULL: ten times as much."""
    stubs = _stubs(full)
    found: dict[str, list[Found]] = {}
    with world(stubs, stubs, every="consumed") as here:
        for workers in WORKERS:
            with said(f"{workers} workers, {SHARDS[0]} shards"):
                found[f"workers {workers}"] = _measure(here, workers)
    with (
        world(stubs, stubs, every="consumed", shards=SHARDS[1]) as here,
        said(f"2 workers, {SHARDS[1]} shards"),
    ):
        found[f"shards {SHARDS[1]}"] = _measure(here, 2)
    worst = max((f"workers {number}" for number in WORKERS[1:]), key=lambda of: _cost(found[of]))
    return [
        _row("scaling.workers", found, worst, "workers 1", stubs),
        _row("scaling.shards", found, f"shards {SHARDS[1]}", "workers 2", stubs),
    ]


def _cost(runs: list[Found]) -> float:
    return median([one["cpu"]["all"] for one in runs])


def _row(name: str, found: Mapping[str, list[Found]], ours: str, peer: str, stubs: int) -> Row:
    ratio = round(_cost(found[ours]) / _cost(found[peer]), 3)
    costs = {of: [one["cpu"]["all"] for one in runs] for of, runs in found.items()}
    rates = {of: median([one["rate"] for one in runs]) for of, runs in found.items()}
    return Row(
        name,
        ratio,
        "x",
        f"<= {MOST}",
        ratio <= MOST,
        rows=2 * stubs,
        runs=costs[ours],
        peer=_cost(found[peer]),
        peer_runs=costs[peer],
        phases={of: median(runs) for of, runs in costs.items()},
        cpu=medians([one["cpu"] for one in found[ours]]),
        memory=medians([one["memory"] for one in found[ours]]),
        note=f"CPU of a delivery in us with {ours}, beside {peer}; deliveries/s: "
        + ", ".join(f"{of} {rate:,.0f}" for of, rate in rates.items()),
    )


def _measure(here: World, workers: int) -> list[Found]:
    """The counted runs, by a job of its own."""
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
    return [answers.get() for _ in range(RUNS + 1)][1:]


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
            roots = (os.getpid(), server)
            before, begun = cpu(roots), time.perf_counter()
            counts = judge(spark, settings, connections, control, run, Scope())
            took = time.perf_counter() - begun
            spent = each(before, cpu(roots), deliveries)
            close_run(control, run, "done", counts)
            with control, control.cursor() as cursor:
                cursor.execute(
                    "TRUNCATE staged_verdict, staged_stub, staged_part, staged_count, staged_read"
                )
            control.close()
            if counts["confirmed"] != deliveries:
                raise AssertionError(f"not what was made: {counts}")
            print(f"    {deliveries / took:,.0f} deliveries/s, {spent['all']} us each", flush=True)
            answers.put({"cpu": spent, "memory": highest(os.getpid()), "rate": deliveries / took})
    finally:
        spark.stop()


BENCHMARKS = {("scaling.workers", "scaling.shards"): bench}
