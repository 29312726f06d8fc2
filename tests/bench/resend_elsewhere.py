"""A backlog of lost messages sent again through another broker than the world's own, by one worker or by those of a duty."""

from __future__ import annotations

import time
from typing import Any

from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.requests.ask import Ask, ask
from backstop.resend.run_once import drain_requests, now, open_worker, prepare
from backstop.runs.run import close_run, open_run
from bench.bench_resend import send_all
from bench.world import World

RESEND_TARGET = 5_000
BATCH = 5_000


def resend_elsewhere(
    here: World, kind: str, url: str, epoch: str | None, *, by_all: bool = False, **broker: Any
) -> tuple[float, float]:
    """Seconds inside publish, and of the whole: claim, judge again, number, publish, settle. `epoch`: that of the broker's queues;
    null: it has no offsets. `by_all`: by the workers of a duty, which are processes of their own: the first is 0. `broker`: more of
    its settings."""
    settings = here.settings_with(
        brokers={"embedded": {"kind": kind, "connection": kind, **broker}},
        policy={"canary": 0, "rate_limit": 1_000_000},
        resend={"batch_size": BATCH},
    )
    urls = {
        name: here.connections.url(name)
        for name in ("control", *settings.producers, *settings.consumers)
    }
    connections = Connections({**urls, kind: url}.__getitem__)
    control = connect(settings, connections)
    number = 0
    for shard in settings.producers:
        if epoch is None:
            here.sql(
                shard,
                "UPDATE message_stub SET queue_id = NULL, queue_offset = NULL, queue_epoch = NULL",
            )
        else:
            here.sql(shard, "UPDATE message_stub SET queue_epoch = %s", (epoch,))
        asks = [
            Ask(shard, topic, message_id, 2, None, "passed_over", "reconcile")
            for topic, message_id in here.sql(shard, "SELECT topic, message_id FROM message_stub")
        ]
        number += len(asks)
        with control, control.cursor() as cursor:
            ask(cursor, asks, None)
        here.sql(shard, "VACUUM ANALYZE message_stub")
    here.sql("control", "VACUUM ANALYZE resend_request")
    run = open_run(control, "resend", "*", settings)
    publishing = 0.0
    begun = time.perf_counter()
    if by_all:
        send_all(settings, connections, run)
        spent = time.perf_counter() - begun
    else:
        with open_worker(settings, connections, run) as worker:
            prepare(worker)
            timed = _Timed(worker.judge.sources.broker("embedded"))
            begun = time.perf_counter()
            drain_requests(worker, now(worker))
            spent = time.perf_counter() - begun
        publishing = timed.seconds
    close_run(control, run, "done", {})
    control.close()
    states = dict(here.sql("control", "SELECT state, count(*) FROM resend_request GROUP BY 1"))
    if states != {"sent": number}:
        raise AssertionError(f"not all were sent: {states}")
    return publishing, spent


class _Timed:
    """Adds up what a broker's publishes take."""

    def __init__(self, broker: Any) -> None:
        self.seconds, self._publish = 0.0, broker.publish
        broker.publish = self._timed

    def _timed(self, *arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self._publish(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - begun
