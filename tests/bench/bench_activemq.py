"""activemq.resend: a backlog of lost messages sent again through one real ActiveMQ Classic."""

from __future__ import annotations

import tempfile
from pathlib import Path

from activemq import ActiveMQ as Server
from backstop.brokers.activemq import ActiveMQ
from bench.bench_resend import WORKERS
from bench.measure import RUNS, Row, median, said
from bench.resend_elsewhere import BATCH, RESEND_TARGET, resend_elsewhere
from bench.world import GROUPS, TOPICS, world

LOST = 20_000


def bench(full: bool) -> list[Row]:
    """The whole path, by one worker and by those of a duty; groups that have nothing left to do."""
    whole, phase, by_all = [], [], []
    for attempt in range(RUNS + 1):
        publishing, spent = _resend(f"run {attempt}")
        _, spent_by_all = _resend(f"run {attempt}", by_all=True)
        if attempt:
            by_all.append(round(LOST / spent_by_all))
            whole.append(round(LOST / spent))
            phase.append(round(LOST / publishing))
    return [
        Row(
            "activemq.resend",
            median(by_all),
            "messages/s",
            f">= {RESEND_TARGET:,}",
            median(by_all) >= RESEND_TARGET,
            rows=LOST,
            runs=by_all,
            phases={
                "messages/s of one worker": median(whole),
                "its messages/s of publishing": median(phase),
                "its share of publishing": median(
                    [w / p for w, p in zip(whole, phase, strict=True)]
                ),
            },
            note=f"the whole path with {WORKERS} workers: claim, judge again, number, publish, settle; batches of {BATCH}",
        )
    ]


def _resend(run: str, *, by_all: bool = False) -> tuple[float, float]:
    """A server for each run: what a run sends stays in the groups' queues, and they would not be past anything."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder)) as server,
        world(LOST, LOST, every="lost", copied=True) as here,
        said(run),
    ):
        with ActiveMQ(server.url()) as broker:
            for topic in TOPICS:
                broker.create_topic(topic)
                for group in GROUPS:
                    broker.create_group(group, topic)
        return resend_elsewhere(
            here, "activemq", server.url(), None, by_all=by_all, retry_schedule="10s"
        )


BENCHMARKS = {("activemq.resend",): bench}
