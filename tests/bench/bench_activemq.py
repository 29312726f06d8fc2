"""activemq.resend: a backlog of lost messages sent again through one real ActiveMQ Classic."""

from __future__ import annotations

import tempfile
from pathlib import Path

from activemq import ActiveMQ as Server
from backstop.brokers.activemq import ActiveMQ
from bench.measure import RUNS, Row, median, said
from bench.resend_elsewhere import BATCH, RESEND_TARGET, resend_elsewhere
from bench.world import GROUPS, TOPICS, world

LOST = 20_000


def bench(full: bool) -> list[Row]:
    """The whole path with one worker; groups that have nothing left to do."""
    whole, phase = [], []
    for attempt in range(RUNS + 1):
        # A server for each run: what a run sends stays in the groups' queues, and they would not be past anything.
        with (
            tempfile.TemporaryDirectory() as folder,
            Server(Path(folder)) as server,
            world(LOST, LOST, every="lost", copied=True) as here,
            said(f"run {attempt}"),
        ):
            with ActiveMQ(server.url()) as broker:
                for topic in TOPICS:
                    broker.create_topic(topic)
                    for group in GROUPS:
                        broker.create_group(group, topic)
            publishing, spent = resend_elsewhere(
                here, "activemq", server.url(), None, retry_schedule="10s"
            )
        if attempt:
            whole.append(round(LOST / spent))
            phase.append(round(LOST / publishing))
    return [
        Row(
            "activemq.resend",
            median(whole),
            "messages/s",
            f">= {RESEND_TARGET:,}",
            median(whole) >= RESEND_TARGET,
            rows=LOST,
            runs=whole,
            phases={
                "messages/s of publishing": median(phase),
                "share of publishing": median([w / p for w, p in zip(whole, phase, strict=True)]),
            },
            note=f"the whole path with one worker: claim, judge again, number, publish, settle; batches of {BATCH}",
        )
    ]


BENCHMARKS = {("activemq.resend",): bench}
