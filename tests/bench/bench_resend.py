"""resend.backlog: how fast a backlog of lost messages goes out, from the first claim to the last settled request.

The rate limit and the canary are set aside, because they are there to be slow; everything else works as always: each message
is judged again on the primaries, its number taken, its copy published, its attempt and its request settled.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from typing import Any

from backstop.brokers.redis_streams import RedisStreams
from backstop.control.connection import connect
from backstop.model.records import Message
from backstop.requests.ask import Ask, ask
from backstop.resend.run_once import drain_requests, now, open_worker, prepare
from backstop.runs.run import close_run, open_run
from backstop.spark.python_daemon import FORKED_WITH
from bench.measure import RUNS, Row, median, said
from bench.world import TOPICS, World, world

TARGET = 15_000
REDRIVE = 500
"""Messages a second: the published limit of a well-known managed queue's redrive."""
BATCH = 5_000
WORKERS = 2


def bench(full: bool) -> list[Row]:
    """100,000 messages (FULL: a million), two workers, every run on a fresh copy of the same data."""
    number = 1_000_000 if full else 100_000
    rates, alone = [], []
    for attempt in range(RUNS):
        with world(number, number, every="lost", copied=True) as here, said(f"run {attempt}"):
            alone.append(_publish_alone(here, min(number, 100_000)))
            rates.append(round(number / _resend(here, number)))
    value = median(rates)
    return [
        Row(
            "resend.backlog",
            value,
            "messages/s",
            f">= {TARGET:,}",
            value >= TARGET,
            peer=REDRIVE,
            rows=number,
            runs=rates,
            note=f"publish alone in batches of {BATCH}: {median(alone):,.0f}/s; peer: the redrive limit",
        ),
    ]


def _settings(here: World) -> Any:
    return here.settings_with(
        policy={"canary": 0, "rate_limit": 1_000_000},
        resend={"batch_size": BATCH},
    )


def _resend(here: World, number: int) -> float:
    settings, connections = _settings(here), here.connections
    control = connect(settings, connections)
    for shard in settings.producers:
        asks = [
            Ask(shard, topic, message_id, 2, None, "passed_over", "reconcile")
            for topic, message_id in here.sql(shard, "SELECT topic, message_id FROM message_stub")
        ]
        for start in range(0, len(asks), 10_000):
            with control, control.cursor() as cursor:
                ask(cursor, asks[start : start + 10_000], None)
    here.sql("control", "VACUUM ANALYZE resend_request")
    run = open_run(control, "resend", "*", settings)
    begun = time.perf_counter()
    send_all(settings, connections, run)
    spent = time.perf_counter() - begun
    close_run(control, run, "done", {})
    control.close()
    states = dict(here.sql("control", "SELECT state, count(*) FROM resend_request GROUP BY 1"))
    if states != {"sent": number}:
        raise AssertionError(f"not all were sent: {states}")
    return spent


def send_all(settings: Any, connections: Any, run: Any) -> None:
    """What a run of the duty does, with its workers side by side."""
    with open_worker(settings, connections, run) as worker:
        prepare(worker)
        cut = now(worker)
    for name in FORKED_WITH:  # the duty's workers are forked from a daemon that has these
        importlib.import_module(name)
    processes = [
        multiprocessing.get_context("fork").Process(
            target=_work, args=(settings, connections, run, cut, first)
        )
        for first in range(WORKERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _work(settings: Any, connections: Any, run: Any, cut: Any, first: int) -> None:
    with open_worker(settings, connections, run) as worker:
        drain_requests(worker, cut, first=first)


def _publish_alone(here: World, number: int) -> float:
    messages = [Message(TOPICS[0], f"alone {n}", b"\xab" * 300) for n in range(BATCH)]
    with RedisStreams(here.valkey.url()) as broker:
        begun = time.perf_counter()
        for _ in range(number // BATCH):
            broker.publish(messages)
        return number / (time.perf_counter() - begun)


BENCHMARKS = {("resend.backlog",): bench}
