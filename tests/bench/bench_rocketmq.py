"""rocketmq.progress, .publish, .resend and .clients: looks at many queues, a resend's publish phase against the same client
alone, and that client against the official ones, on one real server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backstop.brokers.rocketmq import RocketMQ
from backstop.model.records import Message, Outcome
from bench.bench_resend import WORKERS
from bench.measure import RUNS, Row, median, said, seconds
from bench.resend_elsewhere import RESEND_TARGET, resend_elsewhere
from bench.world import GROUPS, QUEUES, TOPICS, world
from rocketmq_grpc import PythonPeer
from rocketmq_java import JavaPeer
from rocketmq_server import RocketMQ as Server

LOOKED_AT, WIDE = 10, 100
"""Topics, and queues of each."""
READERS = ("behind", "caught-up")
"""The one has committed nothing: for each of its queues the time of a message is looked up."""
LOOK_TARGET = 2.0
PUBLISH_TARGET = 0.5
BATCH = 5_000
LOST = 20_000
CLIENTS_SEND = 2_000
BODY = b"\xab" * 300


@contextmanager
def _server(*, proxy: bool = False) -> Iterator[tuple[Server, RocketMQ]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder), proxy=proxy) as server,
        RocketMQ(server.url()) as broker,
    ):
        yield server, broker


def look(full: bool) -> list[Row]:
    """One look over all topics, as a reconcile run takes it: progress of each group, then the queues."""
    topics = [f"bench-{number}" for number in range(LOOKED_AT)]
    with _server() as (_, broker):
        with said(f"{LOOKED_AT} topics of {WIDE} queues"):
            for topic in topics:
                _fill(broker, topic, WIDE, 1)
                broker.create_group(READERS[1], topic, at="end")
        phases: dict[str, list[float]] = {"progress": [], "queues": []}
        for run in range(RUNS + 1):
            progress = seconds(
                lambda: [_require(broker, topic, group) for topic in topics for group in READERS]
            )
            queues = seconds(lambda: [broker.queues(topic) for topic in topics])
            if run:
                phases["progress"].append(progress)
                phases["queues"].append(queues)
    runs = [round(sum(pair), 3) for pair in zip(*phases.values(), strict=True)]
    value, pairs = median(runs), LOOKED_AT * WIDE * len(READERS)
    return [
        Row(
            "rocketmq.progress",
            value,
            "s",
            f"<= {LOOK_TARGET:g}",
            value <= LOOK_TARGET,
            rows=pairs,
            runs=runs,
            phases={name: median(spent) for name, spent in phases.items()},
            note=f"{LOOKED_AT * WIDE} queues, {pairs} (group, queue) pairs, half of them behind",
        )
    ]


def _fill(
    broker: RocketMQ, topic: str, queues: int, offsets: int, groups: Sequence[str] = READERS[:1]
) -> None:
    """So many messages at least in every queue; the groups begin before them."""
    broker.create_topic(topic, queues)
    for group in groups:
        broker.create_group(group, topic, at="start")
    number = 0
    while any(queue.next_offset < offsets for queue in broker.queues(topic)):
        messages = [Message(topic, f"m-{number + one}", b"x" * 100) for one in range(queues * 50)]
        receipts = broker.publish(messages)
        assert all(receipt.outcome is Outcome.SENT for receipt in receipts), receipts
        number += len(messages)


def _require(broker: RocketMQ, topic: str, group: str) -> None:
    """The look must be about what was made."""
    positions = broker.progress(topic, group)
    assert len(positions) == WIDE
    assert all((position.next_offset == 0) is (group == READERS[0]) for position in positions)


def publish(full: bool) -> list[Row]:
    """A backlog of lost messages sent again by one worker, how long its publishes take, and the same client without a resend; and
    the same backlog by the workers of a duty."""
    phase, alone, whole, by_all = [], [], [], []
    with _server() as (server, broker):
        with said("topics, and groups that have passed them"):
            for topic in TOPICS:
                _fill(broker, topic, QUEUES, LOST // 80 + 50, ())
                for group in GROUPS:
                    broker.create_group(group, topic, at="end")
        for attempt in range(RUNS + 1):
            with world(LOST, LOST, every="lost", copied=True) as here, said(f"run {attempt}"):
                (epoch,) = {queue.epoch for topic in TOPICS for queue in broker.queues(topic)}
                publishing, spent = resend_elsewhere(here, "rocketmq", server.url(), epoch)
                by_itself = _alone(broker)
            with world(LOST, LOST, every="lost", copied=True) as here, said(f"run {attempt}"):
                _, spent_by_all = resend_elsewhere(
                    here, "rocketmq", server.url(), epoch, by_all=True
                )
            if attempt:
                by_all.append(round(LOST / spent_by_all))
                phase.append(round(LOST / publishing))
                whole.append(round(LOST / spent))
                alone.append(round(by_itself))
    share = median([one / peer for one, peer in zip(phase, alone, strict=True)])
    return [
        Row(
            "rocketmq.publish",
            share,
            "x of the client alone",
            f">= {PUBLISH_TARGET:g}",
            share >= PUBLISH_TARGET,
            rows=LOST,
            runs=phase,
            peer=median(alone),
            peer_runs=alone,
            phases={"messages/s in a resend": median(phase)},
            note=f"batches of {BATCH}, bodies of {len(BODY)} bytes, {QUEUES} queues; messages/s",
        ),
        Row(
            "rocketmq.resend",
            median(by_all),
            "messages/s",
            f">= {RESEND_TARGET:,}",
            median(by_all) >= RESEND_TARGET,
            rows=LOST,
            runs=by_all,
            phases={
                "messages/s of one worker": median(whole),
                "its share of publishing": median(
                    [w / p for w, p in zip(whole, phase, strict=True)]
                ),
            },
            note=f"the whole path with {WORKERS} workers: claim, judge again, number, publish, settle",
        ),
    ]


def _alone(broker: RocketMQ) -> float:
    """Messages a second."""
    messages = [Message(TOPICS[0], f"alone {n}", BODY) for n in range(BATCH)]
    spent = seconds(lambda: [_sent(broker.publish(messages)) for _ in range(LOST // BATCH)])
    return LOST / spent


def _sent(receipts: Sequence[Any]) -> None:
    assert all(receipt.outcome is Outcome.SENT for receipt in receipts)


def clients(full: bool) -> list[Row]:
    """The same messages to the same topic by each client: ours, RocketMQ's Java producer in a JVM of its own, its gRPC client."""
    topic = "clients"
    with _server(proxy=True) as (server, broker):
        server.create_topic(topic, queues=QUEUES, kind="NORMAL")
        ours = [Message(topic, f"m-{n}", BODY) for n in range(CLIENTS_SEND)]
        theirs = [{"body": BODY, "keys": f"m-{n}"} for n in range(CLIENTS_SEND)]
        with (
            JavaPeer(server, server.base / "java") as java,
            PythonPeer(server, server.base / "grpc") as grpc,
        ):
            ways: dict[str, Callable[[], Any]] = {
                "ours.batch": lambda: _sent(broker.publish(ours)),
                "ours.single": lambda: [_sent(broker.publish([one])) for one in ours],
                "java.batch": lambda: java.send(topic, theirs, batch=True),
                "java.single": lambda: java.send(topic, theirs),
                "grpc.single": lambda: grpc.send(topic, theirs),
            }
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for run in range(RUNS + 1):
                for name, way in ways.items():
                    rate = round(CLIENTS_SEND / seconds(way))
                    if run:
                        rates[name].append(rate)
    return [
        Row(
            f"rocketmq.clients.{name}",
            median(runs),
            "messages/s",
            "-",
            None,
            rows=CLIENTS_SEND,
            runs=runs,
            note="one thread; Java and gRPC are told what to send over a pipe",
        )
        for name, runs in rates.items()
    ]


BENCHMARKS = {
    ("rocketmq.progress",): look,
    ("rocketmq.publish", "rocketmq.resend"): publish,
    ("rocketmq.clients",): clients,
}
