"""Classify on Spark stages what classify in one process stages, by ranges of letters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from backstop.checks.run import run_suite
from backstop.model.errors import RunLost
from backstop.triage.causes.promote_causes import promote_causes
from letter_world import (
    KEY_ERROR,
    LIMIT,
    categories,
    causes,
    counts_are_right,
    letter,
    log,
    rule,
    triage,
)
from resend_world import ROOT, World, servers, world

__all__ = ["servers", "world"]
sys.path.insert(0, str(ROOT))


def test_ranges_of_letters_are_staged_by_tasks_and_patterns_are_found_over_all_of_them(
    world: World, spark: Any, tmp_path: Path
) -> None:
    from spark_jobs.classify import run as classify

    for at, name in enumerate(("alice", "bob", "carol", "dave") * 10):
        letter(world, f"card-{at}", error=f"Declined: the card of {name} is not accepted here")
    for at in range(20):
        letter(world, f"busy-{at}", LIMIT)
    log(world, "busy-0", "CONSUMED")
    log(world, "busy-1", "FAILED", error=KEY_ERROR)
    letter(world, "away", error=KEY_ERROR, group="shipping")
    world.urls["backstop_consumer_shipping"] = "postgresql://nobody@127.0.0.1:1/none"
    world.set("dead_letters", to={"rules": [rule("card", "transient", "the card of")]})
    with triage(world) as (control, run):
        counts = classify(spark, world.settings, world.connections, run, size=10)
        assert (counts["letters_classified"], counts["letters_waiting"]) == (60, 1)
        run_suite("causes", world.urls["backstop_control"], run.run_id, None, tmp_path)
        promote_causes(control, run)
    assert causes(world) == {
        "handler failed || Declined: the card of <name> is not accepted here": ("transient", 40),
        "delivery limit": ("busy_exhausted", 19),
        "delivery limit || KeyError: <*>": ("poison", 1),
    }
    found = categories(world)
    assert (found["busy-0"], found["busy-1"], found["busy-2"], found["away"]) == (
        "already_confirmed",
        "poison",
        "busy_exhausted",
        None,
    )
    assert counts_are_right(world)


def test_each_number_is_a_task_of_its_own(spark: Any) -> None:
    from backstop.spark.repartition import repartition_by

    def task_of(rows: Any) -> Any:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        return pa.table({"number": rows.column("number")[:1], "task": [task.partitionId()]})

    rows = spark.range(0, 40, 1, 2).selectExpr("CAST(id % 2 AS int) AS number")
    by_number = repartition_by(rows, 2, "number").groupBy("number")
    dealt = by_number.applyInArrow(task_of, "number int, task bigint").collect()
    # A hash puts both into one task, and the other core has nothing to do.
    assert sorted((row["number"], row["task"]) for row in dealt) == [(0, 0), (1, 1)]


def test_a_job_that_outlives_its_run_stages_nothing(world: World, spark: Any) -> None:
    from spark_jobs.classify import run as classify

    letter(world, "a", error=KEY_ERROR)
    with triage(world) as (_, run):
        world.sql("control", "UPDATE duty_lease SET token = gen_random_uuid()")
        with pytest.raises(RunLost):
            classify(spark, world.settings, world.connections, run)
    assert world.sql("control", "SELECT count(*) FROM staged_letter") == [(0,)]
