"""resend.backlog and resend.mixed: how fast a backlog of lost messages goes out, from the first claim to the last settled request.

The rate limit and the canary are set aside, because they are there to be slow; everything else works as always: each message
is judged again on the primaries, its number taken, its copy published, its attempt and its request settled. In `mixed` a worker was
killed before, whose claims are recovered; some messages have been done meanwhile, and the broker refuses some.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any

from backstop.brokers.protocol import Receipt
from backstop.brokers.redis_streams import RedisStreams
from backstop.control.connection import connect
from backstop.model.records import Message, Outcome
from backstop.requests.ask import Ask, ask
from backstop.resend.run_once import drain_requests, now, open_worker, prepare
from backstop.runs.run import close_run, open_run
from backstop.spark.python_daemon import FORKED_WITH
from bench.measure import RUNS, Row, median, said
from bench.world import GROUPS, TOPICS, World, world

TARGET = 15_000
REDRIVE = 500
"""Messages a second: the published limit of a well-known managed queue's redrive."""
BATCH = 5_000
WORKERS = 2
KILLED = 9
EVERY = 20
"""In `mixed` one message of so many was done meanwhile, and one copy of so many is refused."""


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


def mixed(full: bool) -> list[Row]:
    """The same backlog with recoveries, refusals and messages that need no copy any more in it."""
    number = 1_000_000 if full else 100_000
    rates, ended = [], list[dict[str, int]]()
    for attempt in range(RUNS):
        with world(number, number, every="lost", copied=True) as here, said(f"run {attempt}"):
            settings, connections = _settings(here), here.connections
            control = _ask_for_all(here, settings, connections)
            run = open_run(control, "resend", "*", settings)
            claims = _die_at_publish(here, settings, connections, run)
            _do_some(here)
            begun = time.perf_counter()
            send_all(settings, connections, run, refuses=True)
            rates.append(round(number / (time.perf_counter() - begun)))
            close_run(control, run, "done", {})
            control.close()
            states = dict(
                here.sql("control", "SELECT state, count(*) FROM resend_request GROUP BY 1")
            )
            if sum(states.values()) != number or {"open", "claimed"} & set(states):
                raise AssertionError(f"not all have ended: {states}")
            ended.append(states)
    value = median(rates)
    of_one = ", ".join(f"{count:,} {state}" for state, count in sorted(ended[-1].items()))
    return [
        Row(
            "resend.mixed",
            value,
            "requests/s",
            "-",
            None,
            rows=number,
            runs=rates,
            note=f"a worker was killed with {claims:,} claims, one message of {EVERY} was done meanwhile, one copy of {EVERY} is"
            f" refused: {of_one}",
        ),
    ]


def _die_at_publish(here: World, settings: Any, connections: Any, run: Any) -> int:
    """A worker is killed with its claims and numbers, and both have run out; how many claims."""
    process = multiprocessing.get_context("fork").Process(
        target=_killed, args=(settings, connections, run)
    )
    process.start()
    process.join()
    assert process.exitcode == KILLED, process.exitcode
    for shard in settings.producers:
        here.sql(
            shard,
            "UPDATE message_stub SET attempt_deadline = clock_timestamp() WHERE attempt_token IS NOT NULL",
        )
    here.sql(
        "control",
        "UPDATE resend_request SET claim_deadline = clock_timestamp() WHERE state = 'claimed'",
    )
    ((claims,),) = here.sql(
        "control", "SELECT count(*) FROM resend_request WHERE state = 'claimed'"
    )
    return int(claims)


def _killed(settings: Any, connections: Any, run: Any) -> None:
    with open_worker(settings, connections, run) as worker:
        broker: Any = worker.judge.sources.broker("embedded")
        broker.publish = lambda *_, **__: os._exit(KILLED)
        drain_requests(worker, now(worker))


def _do_some(here: World) -> None:
    """One message of EVERY has been done by all its groups."""
    keys = [
        key
        for shard in here.shard_names
        for key in here.sql(shard, "SELECT topic, message_id FROM message_stub ORDER BY 1, 2")
    ][::EVERY]
    topics, ids = ([key[place] for key in keys] for place in (0, 1))
    for group in GROUPS:
        here.sql(
            f"{group}_db",
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at)"
            " SELECT %s, k.topic, k.id, 'CONSUMED', now() FROM unnest(%s::text[], %s::text[]) AS k (topic, id)"
            " ON CONFLICT DO NOTHING",
            (group, topics, ids),
        )


def _refuse_some(broker: Any) -> None:
    """The broker's publishes from now on: one message of EVERY is refused, the others are published."""
    publish = broker.publish

    def refusing(messages: Sequence[Message], **options: Any) -> list[Receipt]:
        taken = publish([one for place, one in enumerate(messages) if place % EVERY], **options)
        receipts = iter(taken)
        return [
            next(receipts) if place % EVERY else Receipt(Outcome.REFUSED, error="for the benchmark")
            for place in range(len(messages))
        ]

    broker.publish = refusing


def _settings(here: World) -> Any:
    return here.settings_with(
        policy={"canary": 0, "rate_limit": 1_000_000},
        resend={"batch_size": BATCH},
    )


def _ask_for_all(here: World, settings: Any, connections: Any) -> Any:
    """The connection to the control database, where each stub's next send was asked for."""
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
    return control


def _resend(here: World, number: int) -> float:
    settings, connections = _settings(here), here.connections
    control = _ask_for_all(here, settings, connections)
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


def send_all(settings: Any, connections: Any, run: Any, *, refuses: bool = False) -> None:
    """What a run of the duty does, with its workers side by side."""
    with open_worker(settings, connections, run) as worker:
        prepare(worker)
        cut = now(worker)
    for name in FORKED_WITH:  # the duty's workers are forked from a daemon that has these
        importlib.import_module(name)
    processes = [
        multiprocessing.get_context("fork").Process(
            target=_work, args=(settings, connections, run, cut, first, refuses)
        )
        for first in range(WORKERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _work(settings: Any, connections: Any, run: Any, cut: Any, first: int, refuses: bool) -> None:
    with open_worker(settings, connections, run) as worker:
        if refuses:
            _refuse_some(worker.judge.sources.broker("embedded"))
        drain_requests(worker, cut, first=first)


def _publish_alone(here: World, number: int) -> float:
    messages = [Message(TOPICS[0], f"alone {n}", b"\xab" * 300) for n in range(BATCH)]
    with RedisStreams(here.valkey.url()) as broker:
        begun = time.perf_counter()
        for _ in range(number // BATCH):
            broker.publish(messages)
        return number / (time.perf_counter() - begun)


BENCHMARKS = {("resend.backlog",): bench, ("resend.mixed",): mixed}
