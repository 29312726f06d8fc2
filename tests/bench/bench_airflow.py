"""airflow.trigger_to_done: from the trigger of reconcile in an idle stack to the end of its run, as a person waits for it.

A real Airflow (LocalExecutor, as `make up` starts it), Spark as the DAG starts it; with 200 messages sent, consumed and due, and
with nothing due. The phases are the tasks' own seconds; what is between them is Airflow's.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2

from backstop.client import SendPolicy, record
from backstop.config.load import load
from backstop.schema.prepare import prepare
from backstop_lab.platform import Platform
from bench.measure import Row, median, medians, said
from bench.processes import watched

TIMES = int(os.environ.get("BACKSTOP_BENCH_RUNS") or 5)
DUE = 200
WITH_WORK, IDLE = 25.0, 8.0
"""Seconds."""
SECONDS = 300.0
AT_ONCE = SendPolicy(timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=1))


def bench(_: bool) -> list[Row]:
    """TIMES runs each, after one of each that is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        platform = Platform(Path(folder))
        try:
            _start(platform)
            found = []
            for name, due, target in (("work", DUE, WITH_WORK), ("idle", 0, IDLE)):
                runs, phases = [], list[dict[str, float]]()
                spent, sizes = list[dict[str, float]](), list[dict[str, float]]()
                for number in range(TIMES + 1):
                    with said(f"{name} {number}"):
                        _promise(platform, f"{name}-{number}", due)
                        cpu: dict[str, float] = {}
                        memory: dict[str, float] = {}
                        with watched(cpu, memory):
                            seconds, tasks = _run(platform)
                    if number > 0:
                        spent.append({**cpu, "all": sum(cpu.values())})
                        sizes.append(memory)
                        runs.append(round(seconds, 1))
                        phases.append(tasks)
                found.append(
                    Row(
                        f"airflow.trigger_to_done.{name}",
                        median(runs),
                        "s",
                        f"<= {target:.0f} s",
                        median(runs) <= target,
                        rows=due,
                        runs=runs,
                        phases=medians(phases),
                        cpu=medians(spent),
                        memory=medians(sizes),
                        note="CPU in seconds of a whole run, Airflow's own processes included",
                    )
                )
            return found
        finally:
            platform.stop()


def _start(platform: Platform) -> None:
    platform.start(airflow=False)
    prepare(load(platform.config), platform.connections())
    platform.airflow.env.update(
        platform.environment()
        | {"BACKSTOP_RECONCILE_SCHEDULE": "none", "BACKSTOP_RESEND_SCHEDULE": "asset"}
    )
    platform.airflow.start()
    platform.airflow.api.unpause("reconcile")


def _promise(platform: Platform, name: str, number: int) -> None:
    """Messages whose stubs are due, and which both groups have consumed."""
    ids = [f"{name}-{n}" for n in range(number)]
    producer = psycopg2.connect(platform.dsn("producer_a"))
    with producer, producer.cursor() as cursor:
        for message_id in ids:
            record(producer, "orders", b"{}", message_id=message_id, policy=AT_ONCE, send=False)
        cursor.execute(
            "UPDATE message_stub SET next_check_at = clock_timestamp() WHERE message_id = ANY (%s::text[])",
            (ids,),
        )
    producer.close()
    for group in ("billing", "shipping"):
        consumer = psycopg2.connect(platform.dsn(f"consumer_{group}"))
        with consumer, consumer.cursor() as cursor:
            cursor.execute(
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state, attempts, first_received_at, updated_at,"
                " consumed_at) SELECT %s, 'orders', i, 'CONSUMED', 1, now(), now(), now() FROM unnest(%s::text[]) AS i",
                (group, ids),
            )
        consumer.close()


def _run(platform: Platform) -> tuple[float, dict[str, float]]:
    """Seconds from the trigger to the end that Airflow noted, and each task's own."""
    api = platform.airflow.api
    begun = time.time()
    run_id = api.trigger("reconcile", {})
    state = api.wait("reconcile", run_id, SECONDS)
    if state != "success":
        raise AssertionError(f"the run ended {state}")
    ended = _instant(api.dag_run("reconcile", run_id)["end_date"])
    assert ended is not None
    tasks: dict[str, Any] = {
        str(task["task_id"]): task for task in api.task_instances("reconcile", run_id)
    }
    spent = {name: round(task["duration"], 2) for name, task in tasks.items() if task["duration"]}
    spent |= {f"(of judge: {name})": seconds for name, seconds in _phases(platform).items()}
    return ended.timestamp() - begun, spent


def _phases(platform: Platform) -> dict[str, float]:
    """Seconds of the newest run's phases in Spark; the rest of the task is the start of Java, Python and the session."""
    with closing(psycopg2.connect(platform.dsn("control"))) as control, control.cursor() as cursor:
        cursor.execute(
            "SELECT phases FROM run WHERE duty = 'reconcile' ORDER BY run_id DESC LIMIT 1"
        )
        ((found,),) = cursor.fetchall()
    return dict(found or {})


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


BENCHMARKS = {("airflow.trigger_to_done.work", "airflow.trigger_to_done.idle"): bench}
