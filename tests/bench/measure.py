"""What a benchmark is, how often it is run, and the rows it leaves: build/bench/results.json, a list that later ones join."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "bench" / "results.json"
RUNS = int(os.environ.get("BACKSTOP_BENCH_RUNS") or 3)
"""Counted runs of each side; the median is the figure. Fewer than three are to see whether a benchmark works."""


@dataclass(frozen=True)
class Row:
    """One figure. `met` is null where there is no target; `peer` is the same figure of whom it is measured against."""

    name: str
    value: float | None
    unit: str
    target: str
    met: bool | None
    peer: float | None = None
    rows: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    """Microseconds of CPU for each of `rows`, or seconds of a run where there are none, by kind of process."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """GiB at its highest, by who holds it."""
    runs: Sequence[float] = ()
    peer_runs: Sequence[float] = ()
    note: str = ""


def machine() -> dict[str, Any]:
    """What a figure depends on: cores, memory, and how busy the machine was before the first run."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages * size / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def save(rows: Sequence[Row], where: Mapping[str, Any]) -> None:
    """Joins the rows to the results: a row of the same name is replaced."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    names = {row.name for row in rows}
    new = [
        {
            "name": row.name,
            "value": row.value,
            "unit": row.unit,
            "target": row.target,
            "met": row.met,
            "peer": row.peer,
            "rows": row.rows,
            "machine": dict(where),
            "phases": dict(row.phases),
            "cpu": dict(row.cpu),
            "memory": dict(row.memory),
            "runs": list(row.runs),
            "peer_runs": list(row.peer_runs),
            "note": row.note,
        }
        for row in rows
    ]
    kept = [row for row in old if row["name"] not in names]
    text = json.dumps([*kept, *new], indent=2)
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(RESULTS)


def seconds(work: Callable[[], Any]) -> float:
    """How long it took."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def alternating(
    ours: Callable[[], float], theirs: Callable[[], float], runs: int = RUNS
) -> tuple[list[float], list[float]]:
    """Each side once uncounted (warm), then in turn, so that a drift of the machine meets both."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(runs)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of figures by name, that of each name; a run without it counts as 0."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: median([run.get(name, 0.0) for run in runs]) for name in names}


def median(figures: Sequence[float]) -> float:
    """Rounded to three digits after the point."""
    return round(statistics.median(figures), 3)


@contextmanager
def said(what: str) -> Iterator[None]:
    """Tells what takes its time, and how long it took."""
    print(f"  {what} ...", flush=True)
    begun = time.perf_counter()
    yield
    print(f"  {what}: {time.perf_counter() - begun:.1f} s", flush=True)
