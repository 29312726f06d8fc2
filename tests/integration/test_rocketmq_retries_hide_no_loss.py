"""One message fails for ever on a real RocketMQ, another one is lost: the lost one is found and asked for all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from backstop.brokers.rocketmq import RocketMQ as Adapter
from backstop.model.records import Message, Position
from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from rocketmq_java import JavaPeer
from rocketmq_look_world import World
from rocketmq_server import RocketMQ
from system import System, build_template, settings_dict, system


@pytest.fixture(scope="module")
def world(shared_rocketmq: RocketMQ) -> Iterator[World]:
    found = World(shared_rocketmq)
    yield found
    found.close()


@pytest.fixture(scope="module")
def broker(shared_rocketmq: RocketMQ) -> Iterator[Adapter]:
    with Adapter(shared_rocketmq.url()) as found:
        yield found


@pytest.fixture(scope="module")
def java(shared_rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(shared_rocketmq, tmp_path_factory.mktemp("java")) as peer:
        yield peer


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey")) as valkey,
    ):
        build_template(postgres)
        yield postgres, valkey


def stub(made: System, topic: str, message_id: str, position: Position) -> None:
    made.stub(
        message_id,
        topic,
        queue_id=position.queue_id,
        queue_offset=position.offset,
        queue_epoch=position.epoch,
        broker="cluster",
        sent_at=made.rows("control", "SELECT now() - interval '50 s'")[0][0],
    )


def no_audit(run: Run, suites: Sequence[str]) -> None:
    """The suites have tests of their own."""


@pytest.mark.parametrize("progress", ["acknowledged", "received"])
def test_a_poison_message_hides_no_loss(
    world: World,
    broker: Adapter,
    java: JavaPeer,
    stores: tuple[Postgres, Valkey],
    shared_rocketmq: RocketMQ,
    spark: Any,
    progress: str,
) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    changes: dict[str, Any] = {
        "brokers": {
            **settings_dict()["brokers"],
            "cluster": {
                "kind": "rocketmq",
                "connection": "cluster",
                "retry_schedule": "10s",
            },
        },
        "groups": {group: {"store": "billing_db", "duplicates": "guard", "progress": progress}},
        "topics": {topic: {"broker": "cluster", "groups": [group], "mode": "repair"}},
    }
    with system(*stores, **changes) as made:
        made.urls["cluster"] = shared_rocketmq.url()
        messages = [Message(topic, message_id, b"x") for message_id in ("poison", "lost")]
        positions = [receipt.position for receipt in broker.publish(messages)]
        consumer = java.consume(group, topic, fail_keys={"poison": -1})
        for message, position in zip(messages, positions, strict=True):
            assert position is not None
            stub(made, topic, message.message_id, position)
        # "lost" was taken and acknowledged without a log: nothing says that it was processed.
        consumer.wait_until("the other one's end", lambda c: len(c.done) == 1)
        world.until(lambda: world.at(topic) == [(0, 2)])

        def run() -> dict[str, tuple[str, str]]:
            made.rows("shop_a", "UPDATE message_stub SET next_check_at = now() - interval '1 s'")
            run_once(made.settings, made.connections, lambda: spark, no_audit)
            # A settle grace passes.
            for table in ("progress", "progress_history", "retry_place"):
                made.rows(
                    "control", f"UPDATE {table} SET recorded_at = recorded_at - interval '20 s'"
                )
            found = made.rows(
                "control", "SELECT message_id, verdict, reason FROM verdict ORDER BY run_id"
            )
            return {message_id: (verdict, reason) for message_id, verdict, reason in found}

        run()
        seen = run()
        assert seen["lost"] == ("LOST", "passed_over")
        assert seen["poison"] == ("BACKLOGGED", "unacknowledged")
        assert made.rows("control", "SELECT message_id, send_number FROM resend_request") == [
            ("lost", 2)
        ]
        assert world.retries.pending(topic, group) > 0, "it fails still"
        consumer.heal()
        consumer.close()
