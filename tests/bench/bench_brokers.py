"""rocketmq.progress: how long one look at many queues of a real RocketMQ takes: their offsets, and how far two groups are."""

from __future__ import annotations

import tempfile
from pathlib import Path

from backstop.brokers.rocketmq import RocketMQ
from backstop.records import Message, Outcome
from bench.measure import RUNS, Row, median, said, seconds
from rocketmq import RocketMQ as Server

TOPICS, QUEUES = 10, 100
GROUPS = ("behind", "caught-up")
"""The one has committed nothing: for each of its queues the time of a message is looked up."""
TARGET = 2.0


def bench(full: bool) -> list[Row]:
    """One look over all topics, as a reconcile run takes it: progress of each group, then the queues."""
    topics = [f"bench-{number}" for number in range(TOPICS)]
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server, RocketMQ(server.url()) as broker:
        with said(f"{TOPICS} topics of {QUEUES} queues"):
            for topic in topics:
                _fill(broker, topic)
        phases: dict[str, list[float]] = {"progress": [], "queues": []}
        for run in range(RUNS + 1):
            progress = seconds(lambda: [_require(broker, topic, group) for topic in topics for group in GROUPS])
            queues = seconds(lambda: [broker.queues(topic) for topic in topics])
            if run:
                phases["progress"].append(progress)
                phases["queues"].append(queues)
    runs = [round(sum(pair), 3) for pair in zip(*phases.values(), strict=True)]
    value = median(runs)
    return [Row(
        "rocketmq.progress", value, "s", f"<= {TARGET:g}", value <= TARGET, rows=TOPICS * QUEUES * len(GROUPS), runs=runs,
        phases={name: median(spent) for name, spent in phases.items()},
        note=f"{TOPICS * QUEUES} queues, {TOPICS * QUEUES * len(GROUPS)} (group, queue) pairs, half of them behind",
    )]  # fmt: skip


def _fill(broker: RocketMQ, topic: str) -> None:
    """Some messages in every queue; the one group begins before them, the other after."""
    broker.create_topic(topic, QUEUES)
    broker.create_group(GROUPS[0], topic, at="start")
    number = 0
    while any(queue.next_offset == 0 for queue in broker.queues(topic)):
        messages = [Message(topic, f"m-{number + one}", b"x" * 1000) for one in range(QUEUES)]
        receipts = broker.publish(messages)
        assert all(receipt.outcome is Outcome.SENT for receipt in receipts), receipts
        number += len(messages)
    broker.create_group(GROUPS[1], topic, at="end")


def _require(broker: RocketMQ, topic: str, group: str) -> None:
    """The look must be about what was made."""
    positions = broker.progress(topic, group)
    assert len(positions) == QUEUES
    assert all((position.next_offset == 0) is (group == GROUPS[0]) for position in positions)


BENCHMARKS = {("rocketmq.progress",): bench}

