"""reconcile.all_due: how fast what piled up in an outage is judged, audited and confirmed, first read to last commit."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from typing import Any

from backstop.checks.run import run_suites
from backstop.control.connection import connect
from backstop.reconcile.judge import judge
from backstop.reconcile.promote import promote
from backstop.runs.run import close_run, open_run
from backstop.spark.session import start_session
from backstop.stores.protocol import Scope
from bench.measure import RUNS, Row, median, medians, said
from bench.processes import cpu, each, highest
from bench.world import World, make, world

STUBS = int(os.environ.get("BACKSTOP_BENCH_STUBS") or 1_500_000)
"""Two groups: twice as many deliveries."""
TARGET, JUDGED = 50_000, 90_000
"""Deliveries/s of the whole run, and from the first read to what is staged."""
AUDITED = ("stub_contract", "log_contract", "verdicts")


def prepare(_: bool) -> None:
    """What every run works on a copy of."""
    make(STUBS, STUBS, every="consumed")


def bench(full: bool) -> list[Row]:
    """Every run on a fresh copy of the same data; the Spark session is warm after the first, which is not counted."""
    phases: dict[str, list[float]] = {}
    rates: list[float] = []
    judged: list[float] = []
    spent_by: dict[str, list[dict[str, float]]] = {}
    memory: dict[str, float] = {}
    spark = start_session("bench", "local[2]")
    try:
        for number in range(RUNS + 1):
            with world(STUBS, STUBS, every="consumed", copied=True) as here, said(f"run {number}"):
                spent, found, costs = _once(spark, here)
            memory = highest(os.getpid())
            if number:
                for name, cost in costs.items():
                    spent_by.setdefault(name, []).append(cost)
                rates.append(round(2 * STUBS / spent))
                judged.append(round(2 * STUBS / (spent - found["audit"] - found["promote"])))
                for name, seconds in found.items():
                    phases.setdefault(name, []).append(seconds)
    finally:
        spark.stop()
    took = {name: round(statistics.median(seconds), 2) for name, seconds in phases.items()}
    return [
        Row(
            name,
            median(runs),
            "deliveries/s",
            f">= {target:,}",
            median(runs) >= target,
            rows=2 * STUBS,
            phases=took,
            cpu=medians(spent_by[name]),
            memory=memory,
            runs=runs,
            note=f"CPU of promotion alone: {medians(spent_by['promotion'])}",
        )
        for name, runs, target in (
            ("reconcile.all_due", rates, TARGET),
            ("reconcile.judged", judged, JUDGED),
        )
    ]


def _once(spark: Any, here: World) -> tuple[float, dict[str, float], dict[str, dict[str, float]]]:
    """Seconds, those of each phase, and what a delivery costs in each of the two rows."""
    control = connect(here.settings, here.connections)
    run = open_run(control, "reconcile", "*", here.settings)
    before, begun = cpu(), time.perf_counter()
    judge(spark, here.settings, here.connections, control, run, Scope())
    judged, staged = time.perf_counter(), cpu()
    with tempfile.TemporaryDirectory() as docs:
        url, topics = here.connections.url("control"), list(here.settings.topics)
        run_suites(AUDITED, url, run.run_id, None, docs, repair_topics=topics)
    audited, passed = time.perf_counter(), cpu()
    counts = promote(here.settings, here.connections, control, run)
    ended, done = time.perf_counter(), cpu()
    close_run(control, run, "done", counts)
    control.close()
    confirmed = sum(
        here.sql(shard, "SELECT count(*) FROM message_stub WHERE status = 'confirmed'")[0][0]
        for shard in here.settings.producers
    )
    if confirmed != STUBS:
        raise AssertionError(f"{confirmed} of {STUBS} confirmed")
    found = here.sql("control", "SELECT phases FROM run WHERE run_id = %s", (run.run_id,))[0][0]
    phases = found if isinstance(found, dict) else json.loads(found)
    return (
        ended - begun,
        {**phases, "audit": audited - judged, "promote": ended - audited},
        {
            "reconcile.all_due": each(before, done, 2 * STUBS),
            "reconcile.judged": each(before, staged, 2 * STUBS),
            "promotion": each(passed, done, 2 * STUBS),
        },
    )


BENCHMARKS = {("reconcile.all_due", "reconcile.judged"): bench}
