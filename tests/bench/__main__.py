"""Runs the benchmarks: `make bench`, `make bench FULL=1`, `make bench ONLY=prefix`.

A module `bench_*.py` of this folder has BENCHMARKS: names of rows -> the function that measures them; and, where making its data
takes long, `prepare(full)`, which makes it (`make bench DATA=1`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable

import bench
from backstop_lab.run_main import run_main
from bench.measure import Row, machine, save

Benchmark = Callable[[bool], list[Row]]


def main() -> int:
    """0 when every target was met, 1 when one was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--full", action="store_true", help="the large sizes too: tens of GB of disk, and hours"
    )
    parser.add_argument("--only", default="", help="names that begin so")
    parser.add_argument(
        "--data", action="store_true", help="make the data that is kept, and measure nothing"
    )
    arguments = parser.parse_args()
    # For the peers: the obvious Spark job reads over JDBC.
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {os.environ['BACKSTOP_JDBC_JAR']} pyspark-shell"
    rows: list[Row] = []
    for module in sorted(
        one.name for one in pkgutil.iter_modules(bench.__path__) if one.name.startswith("bench_")
    ):
        found_in = importlib.import_module(f"bench.{module}")
        benchmarks: dict[tuple[str, ...], Benchmark] = found_in.BENCHMARKS
        if arguments.data:
            if hasattr(found_in, "prepare") and any(
                name.startswith(arguments.only) for names in benchmarks for name in names
            ):
                found_in.prepare(arguments.full)
            continue
        for names, benchmark in benchmarks.items():
            if any(name.startswith(arguments.only) for name in names):
                print(", ".join(names), flush=True)
                where = machine()
                found = benchmark(arguments.full)
                save(found, where)
                rows += found
    if arguments.data:
        return 0
    if not rows:
        print(f"There is no benchmark whose name begins with {arguments.only!r}.", file=sys.stderr)
        return 2
    print()
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: "-"}[row.met]
        value = "-" if row.value is None else f"{row.value:,.3f}".rstrip("0").rstrip(".")
        peer = "" if row.peer is None else f" | peer {row.peer:,.3f}".rstrip("0").rstrip(".")
        print(f"{row.name:26} {value:>12} {row.unit:18} target {row.target:22} {verdict}{peer}")
        if row.phases:
            print(" " * 27 + ", ".join(f"{name} {spent:.2f}" for name, spent in row.phases.items()))
        for what, figures in (("cpu", row.cpu), ("memory", row.memory)):
            if figures:
                parts = ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items())
                print(" " * 27 + f"{what}: {parts}")
        if row.note:
            print(" " * 27 + row.note)
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    run_main(main)
