"""Spark's Python workers on this machine: what they have when they are forked, and what they no longer do for each task."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def test_a_worker_has_our_imports_and_neither_reads_archives_nor_collects_among_them_again(
    spark: Any,
) -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys
        import zipimport

        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {
                    "had": [
                        "duckdb" in sys.modules and "backstop.verdicts.evaluate" in sys.modules
                    ],
                    "reads": [zipimport.zipimporter.invalidate_caches.__module__],
                    "most_left_out": [gc.get_freeze_count() > len(gc.get_objects())],
                }
            )

    schema = "had boolean, reads string, most_left_out boolean"
    rows = spark.range(0, 2, 1, 2).mapInArrow(told, schema).collect()
    assert {tuple(row) for row in rows} == {(True, "backstop.spark.python_daemon", True)}


def test_a_package_that_is_sent_along_later_is_found(spark: Any, tmp_path: Any) -> None:
    import zipfile

    for number in (1, 2):
        package = tmp_path / f"sent_along_{number}.zip"
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr(f"sent_along_{number}.py", f"NUMBER = {number}\n")
        spark.sparkContext.addPyFile(str(package))

        def found(
            batches: Iterator[pa.RecordBatch], name: str = f"sent_along_{number}"
        ) -> Iterator[pa.RecordBatch]:
            import importlib

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"number": [importlib.import_module(name).NUMBER]})

        assert [
            row["number"]
            for row in spark.range(0, 1, 1, 1).mapInArrow(found, "number long").collect()
        ] == [number]


def test_the_jvm_holds_no_more_than_its_cores_need(spark: Any) -> None:
    assert spark._jvm.java.lang.Runtime.getRuntime().maxMemory() <= 640 * 2**20


def test_a_worker_of_another_daemon_is_spared_the_same_once() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import gc, zipimport\n"
            "from backstop.spark.python_daemon import spare_tasks\n"
            "assert gc.get_freeze_count() == 0\n"
            "spare_tasks()\n"
            "once = zipimport.zipimporter.invalidate_caches\n"
            "spare_tasks()\n"
            "assert zipimport.zipimporter.invalidate_caches is once\n"
            "print(once.__module__, gc.get_freeze_count() > len(gc.get_objects()))",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == ["backstop.spark.python_daemon", "True"]
