"""The resend job on Spark: partitions are workers side by side, and what goes wrong keeps its class."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from backstop.model.errors import Unavailable
from backstop.spark.job import count_tasks
from backstop_lab.servers.ports import free_port
from backstop_lab.shop.wait_for import wait_for
from resend_world import OTHER, ROOT, TOPIC, World, ids, servers, world  # noqa: F401

sys.path.insert(0, str(ROOT))


def test_partitions_share_the_work_and_send_each_number_once(world: World, spark: Any) -> None:
    from spark_jobs.resend import run as resend

    world.set("resend", to={"batch_size": 25})
    for shard in "ab":
        world.stubs(ids(100, shard), shard=shard)
        world.ask(ids(100, shard), shard=shard)
    world.stubs(ids(50), topic=OTHER)
    world.ask(ids(50), topic=OTHER)
    with world.run() as run:
        counts = resend(spark, world.settings, world.connections, run)
        ((kept,),) = world.sql("control", "SELECT counts FROM run")
    assert counts["published"] == counts["sent"] == 250 and kept == dict(counts)
    assert world.copies(TOPIC) == {(i, "1"): 1 for shard in "ab" for i in ids(100, shard)}
    assert world.copies(OTHER) == {(i, "1"): 1 for i in ids(50)}
    assert world.requests() == {"sent": 250}


def test_a_shard_that_is_away_ends_the_job_with_its_class_and_the_others_went_out(
    world: World,
    spark: Any,
) -> None:
    from spark_jobs.resend import run as resend

    for shard in "ab":
        world.stubs([shard], shard=shard)
        world.ask([shard], shard=shard)
    world.urls["backstop_producer_b"] = f"postgresql://u:secret-of-b@127.0.0.1:{free_port()}/x"
    with world.run() as run, pytest.raises(Unavailable, match="shard shop_b") as caught:
        resend(spark, world.settings, world.connections, run)
    assert "secret-of-b" not in str(caught.value)
    assert world.copies() == {("a", "1"): 1}
    assert world.requests() == {"sent": 1, "open": 1}


def test_a_driver_that_outlives_its_run_changes_nothing(world: World, spark: Any) -> None:
    from spark_jobs.resend import run as resend

    from backstop.model.errors import RunLost

    world.stubs(["m"])
    world.ask(["m"])
    with world.run() as run:
        world.sql("control", "UPDATE duty_lease SET token = gen_random_uuid()")
        with pytest.raises(RunLost):
            resend(spark, world.settings, world.connections, run)
    assert world.copies() == {} and world.requests() == {"open": 1}


def test_the_progress_of_a_job_is_the_tasks_of_its_stages(spark: Any, tmp_path: Path) -> None:
    gate, context = tmp_path / "gate", spark.sparkContext

    def wait_at_the_gate(number: int) -> None:
        while number == 1 and not gate.exists():
            time.sleep(0.02)

    def wait_until(wanted: tuple[int, int] | None) -> None:
        wait_for(
            f"Progress {wanted}",
            lambda: count_tasks(spark) == wanted,
            120,
            lambda: str(count_tasks(spark)),
            every=0.05,
        )

    wait_until(None)
    job = Thread(target=context.parallelize(range(2), 2).foreach, args=(wait_at_the_gate,))
    job.start()
    try:
        wait_until((1, 2))
    finally:
        gate.touch()
        job.join()
    wait_until(None)
