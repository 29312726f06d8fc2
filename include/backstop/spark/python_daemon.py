"""Spark's Python daemon on this machine, with what our jobs import in memory before it forks a worker.

A worker that imports Arrow, pandas and DuckDB by itself takes two seconds of a core. And before each task pyspark has every
importer look again what there is: for the archives that Spark puts on the path this reads their whole directory, a tenth of a
second a task, although they never change. After each task its workers collect garbage among all objects: what was there before
the fork is left out, which takes another tenth of a second and copies all that the processes share.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import zipimport
from functools import cache
from typing import Any

FORKED_WITH = (
    "pandas",
    "pyarrow.compute",
    "duckdb",
    "psycopg2",
    "backstop.verdicts.evaluate",
    "backstop.reconcile.lookup",
    "backstop.reconcile.read",
    "backstop.reconcile.scan_logs",
    "backstop.reconcile.judge_and_stage",
)


def main() -> None:
    """Takes the arguments of pyspark.daemon, and becomes it."""
    for name in FORKED_WITH:
        importlib.import_module(name)
    _read_changed_archives_only()
    os.register_at_fork(before=gc.freeze)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


@cache
def spare_tasks() -> None:
    """The same of reading and collecting for the tasks to come of a worker that another daemon started, as on a cluster: called by
    its first task, when that has imported what it needs."""
    _read_changed_archives_only()
    gc.freeze()


@cache
def _read_changed_archives_only() -> None:
    read_again = zipimport.zipimporter.invalidate_caches
    read: dict[str, tuple[int, int]] = {}

    def read_what_changed(importer: Any) -> None:
        try:
            now = os.stat(importer.archive)
            seen = now.st_mtime_ns, now.st_size
        except OSError:
            seen = None  # it is gone, which the importer finds out
        if seen is None or read.get(importer.archive) != seen:
            read_again(importer)
        if seen is not None:
            read[importer.archive] = seen

    setattr(zipimport.zipimporter, "invalidate_caches", read_what_changed)  # noqa: B010 - its declared type names self twice


if __name__ == "__main__":
    from backstop.spark import python_daemon

    python_daemon.main()  # by its own name, which is not that of the program
