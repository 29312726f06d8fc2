"""RocketMQ's official Python client beside the Java client and the adapter, on one real server with its gRPC proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketmq_grpc import PythonPeer
from rocketmq_java import JavaPeer
from rocketmq_server import RocketMQ

pytestmark = pytest.mark.other_broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ(tmp_path_factory.mktemp("proxy"), proxy=True) as running:
        yield running


def test_what_the_python_client_sends_the_java_client_reads_and_the_other_way_round(
    server: RocketMQ, tmp_path: Path
) -> None:
    server.create_topic("both", 2, kind="NORMAL")
    server.create_group("python")
    with (
        PythonPeer(server, tmp_path / "python") as python,
        JavaPeer(server, tmp_path / "java") as java,
    ):
        python.send(
            "both",
            [
                {
                    "body": b"from python",
                    "keys": "p",
                    "tag": "t",
                    "properties": {"backstop-message-id": "p"},
                }
            ],
        )
        java.send(
            "both",
            [{"body": b"from java", "keys": "j", "properties": {"backstop-message-id": "j"}}],
        )
        [seen] = [one for one in java.read("both") if one.keys == "p"]
        assert (seen.body, seen.tags, seen.properties["backstop-message-id"]) == (
            b"from python",
            "t",
            "p",
        )
        found: dict[str, bytes] = {}
        while len(found) < 2:
            received = python.receive("python", "both")
            found |= {one["properties"]["backstop-message-id"]: one["body"] for one in received}
            python.acknowledge("python", [one["message_id"] for one in received])
        assert found == {"p": b"from python", "j": b"from java"}


def test_a_group_that_pops_commits_what_it_received_though_it_acknowledged_nothing(
    server: RocketMQ, tmp_path: Path
) -> None:
    server.create_topic("popped", 1, kind="NORMAL")
    server.create_group("pops")
    with (
        PythonPeer(server, tmp_path / "python") as python,
        JavaPeer(server, tmp_path / "java") as java,
    ):
        python.send("popped", [b"1", b"2"])
        held: set[str] = set()
        while len(held) < 2:
            held |= {one["message_id"] for one in python.receive("pops", "popped", invisible=300)}
        java.until("its commit", lambda: java.committed("pops", "popped") == {("broker-a", 0): 2})


def test_a_message_that_the_python_client_never_acknowledges_becomes_a_dead_letter_of_its_group(
    server: RocketMQ, tmp_path: Path
) -> None:
    server.create_topic("dying", 1, kind="NORMAL")
    server.create_group("dies", retry_max=1)
    with (
        PythonPeer(server, tmp_path / "python") as python,
        JavaPeer(server, tmp_path / "java") as java,
    ):
        [sent] = python.send("dying", [{"body": b"x", "keys": "k"}])
        attempts: list[int] = []
        java.until(
            "its dead letter",
            lambda: (
                attempts.extend(
                    one["attempt"] for one in python.receive("dies", "dying", invisible=1)
                )
                or server.knows("%DLQ%dies")
            ),
            120,
        )
        java.until("its dead letter", lambda: java.letters("dies"))
        [letter] = java.letters("dies")
        assert (letter.body, letter.keys, letter.uniq_key) == (b"x", "k", sent["message_id"])
        assert attempts[:1] == [1] and len(attempts) <= 2
        assert letter.properties["RETRY_TOPIC"] == "%RETRY%dies_dying"
        [original] = java.read("dying")
        assert letter.properties["ORIGIN_MESSAGE_ID"] != original.offset_id, (
            "it names the retry topic's copy"
        )
