"""reconcile: does its cost follow what is due, not history, and how does it stand beside the obvious job and SQL by hand?

Read, look, look up, judge and stage: what the peers do as well. Promotion and audits have rows of their own.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any

from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.reconcile.judge import judge
from backstop.runs.run import close_run, open_run
from backstop.spark.session import start_session
from backstop.stores.protocol import Scope
from bench.measure import Row, alternating, median, medians, said
from bench.peers import obvious_spark_job, sql_by_hand
from bench.processes import cpu, each, highest
from bench.world import World, make, world

LARGE = int(os.environ.get("BACKSTOP_BENCH_STUBS") or 3_000_000)
"""Stubs of the larger history; the smaller has a tenth of it."""
DUE = min(50_000, LARGE // 60)
PHASES: dict[str, list[float]] = {}
SPENT: list[dict[str, float]] = []
"""CPU of a delivery, of each of our runs of a row."""


def judge_once(spark: Any, here: World) -> float:
    """One dry run's judge, its staging put away afterwards; seconds. Its phases are kept for the row."""
    control = connect(here.settings, here.connections)
    try:
        run = open_run(control, "reconcile", "*", here.settings, dry_run=True)
        before, begun = cpu(), time.perf_counter()
        counts = judge(spark, here.settings, here.connections, control, run, Scope())
        spent = time.perf_counter() - begun
        SPENT.append(each(before, cpu(), 2 * here.due))
        close_run(control, run, "done", counts)
        _require(counts, here)
        phases = here.sql("control", "SELECT phases FROM run WHERE run_id = %s", (run.run_id,))[0][
            0
        ]
        for name, seconds in (phases if isinstance(phases, dict) else json.loads(phases)).items():
            PHASES.setdefault(name, []).append(seconds)
        for table in (
            "staged_verdict",
            "staged_stub",
            "staged_part",
            "staged_count",
            "staged_read",
        ):
            here.sql("control", f"TRUNCATE {table}")
        return spent
    finally:
        control.close()


def _require(counts: Counts, here: World) -> None:
    """A wrong answer has no speed."""
    share = {
        name: counts[name] / (2 * here.due)
        for name in ("confirmed", "backlogged", "lost", "stalled", "unsent")
    }
    expected = {
        "confirmed": 0.97,
        "backlogged": 0.01,
        "lost": 0.01,
        "stalled": 0.005,
        "unsent": 0.005,
    }
    if counts["deliveries"] != 2 * here.due or any(
        abs(share[name] - expected[name]) > 0.003 for name in expected
    ):
        raise AssertionError(f"not what was made: {counts}")


def _phases() -> dict[str, float]:
    found = {
        name: round(statistics.median(seconds[1:] or seconds), 3)
        for name, seconds in PHASES.items()
    }
    PHASES.clear()
    return found


def _spent() -> dict[str, float]:
    found = medians(SPENT[1:] or SPENT)
    SPENT.clear()
    return found


def prepare(full: bool) -> None:
    """The two histories."""
    for stubs, whole in _sizes(full).items():
        make(stubs, DUE, everything_in_one=whole)


def _sizes(full: bool) -> dict[int, bool]:
    """Stubs of the smaller history and of the larger, and whether there is a database with everything in one."""
    return {LARGE: False, 10 * LARGE: False} if full else {LARGE // 10: False, LARGE: True}


def bench(full: bool) -> list[Row]:
    """history, naive and sql over one pair of sizes; ten times the history, the same due."""
    small, large = _sizes(full)
    spark = start_session("bench", "local[2]")
    rows: list[Row] = []
    try:
        with (
            world(small, DUE) as less,
            world(large, DUE, everything_in_one=_sizes(full)[large]) as more,
        ):
            with said("history"):
                ours, theirs = alternating(
                    lambda: judge_once(spark, more), lambda: judge_once(spark, less)
                )
            phases, spent = _phases(), _spent()
            ratio = round(median(ours) / median(theirs), 3)
            rows.append(
                Row(
                    "reconcile.history",
                    ratio,
                    "x",
                    "<= 1.5",
                    ratio <= 1.5,
                    rows=large,
                    phases=phases,
                    cpu=spent,
                    memory=highest(os.getpid()),
                    runs=ours,
                    peer=median(theirs),
                    peer_runs=theirs,
                    note=f"{median(ours)} s over {large:,} stubs, {median(theirs)} s over {small:,}",
                )
            )
            with said("naive"):
                ours, theirs = alternating(
                    lambda: judge_once(spark, more), lambda: _timed(obvious_spark_job, spark, more)
                )
            times, target = round(median(theirs) / median(ours), 2), 15 if full else 5
            rows.append(
                Row(
                    "reconcile.naive",
                    times,
                    "x faster",
                    f">= {target}",
                    times >= target,
                    peer=median(theirs),
                    rows=large,
                    phases=_phases(),
                    cpu=_spent(),
                    runs=ours,
                    peer_runs=theirs,
                )
            )
            if more.everything_in_one:
                with said("sql"):
                    best = min(
                        (True, False),
                        key=lambda way: min(_timed(_hand, more, way) for _ in range(2)),
                    )
                    ours, theirs = alternating(
                        lambda: judge_once(spark, more), lambda: _timed(_hand, more, best)
                    )
                times = round(median(ours) / median(theirs), 2)
                rows.append(
                    Row(
                        "reconcile.sql",
                        times,
                        "x slower",
                        "<= 3",
                        times <= 3,
                        peer=median(theirs),
                        rows=large,
                        phases=_phases(),
                        cpu=_spent(),
                        runs=ours,
                        peer_runs=theirs,
                        note=f"hash joins {'on' if best else 'off'}",
                    )
                )
    finally:
        spark.stop()
    return rows


def _hand(here: World, hashjoin: bool) -> int:
    return sql_by_hand(here, hashjoin=hashjoin)


def _timed(work: Any, *arguments: Any) -> float:
    begun = time.perf_counter()
    deliveries = work(*arguments)
    spent = time.perf_counter() - begun
    if deliveries != 2 * DUE:
        raise AssertionError(f"the peer read {deliveries} deliveries")
    return spent


BENCHMARKS = {("reconcile.history", "reconcile.naive", "reconcile.sql"): bench}
