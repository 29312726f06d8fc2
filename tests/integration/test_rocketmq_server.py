"""What the tests of RocketMQ stand on: the real server as a test needs it, and RocketMQ's own clients on it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

import rocketmq_admin
from backstop_lab.servers.child import LocalServerError
from backstop_lab.servers.fetch_from_maven import locked
from backstop_lab.servers.fetch_rocketmq import HOME, LOCK, installed
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.servers.rocketmq import RocketMQServer
from rocketmq_admin import Refused
from rocketmq_java import JavaPeer
from rocketmq_server import LOSES_WHEN_KILLED, RocketMQ

pytestmark = pytest.mark.other_broker

_numbers = count()


@pytest.fixture
def name() -> Callable[[str], str]:
    number = next(_numbers)
    return lambda kind: f"server-{kind}-{number}"


@pytest.fixture(scope="module")
def java(shared_rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(shared_rocketmq, tmp_path_factory.mktemp("java")) as peer:
        yield peer


def listening(pid: int) -> list[str]:
    """Addresses that a process listens on, from the kernel's tables."""
    sockets = {
        link.split("[")[1].rstrip("]")
        for link in (
            str(entry.readlink())
            for entry in Path(f"/proc/{pid}/fd").iterdir()
            if entry.is_symlink()
        )
        if link.startswith("socket:[")
    }
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.append(fields[1].split(":")[0])
    return found


def test_the_jars_are_exactly_those_that_the_lock_names() -> None:
    assert installed()
    assert {jar.name for jar in HOME.glob("*.jar")} == {jar.file for jar in locked(LOCK)}
    assert all(len(jar.sha256) == 64 for jar in locked(LOCK))


def test_a_disk_on_which_no_message_would_be_accepted_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstop_lab.servers.rocketmq.disk_usage", lambda path: (100, 55, 5))
    server = RocketMQServer(tmp_path / "rocketmq")
    with pytest.raises(LocalServerError, match="92 % full") as refused:
        server.start()
    assert not server.running and refused.value.unaffected == "Nothing was started."


def test_every_port_of_the_server_is_on_the_loopback(shared_rocketmq: RocketMQ) -> None:
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    for pid in (shared_rocketmq.pid, shared_rocketmq.namesrv_pid):
        assert pid is not None
        found = listening(pid)
        assert found and set(found) <= loopback


def test_the_java_producer_and_push_consumers_concurrent_and_ordered_work_and_leave_dead_letters(
    shared_rocketmq: RocketMQ, java: JavaPeer, name: Callable[[str], str]
) -> None:
    server, topic, fifo = shared_rocketmq, name("orders"), name("fifo")
    concurrent, ordered = name("concurrent"), name("ordered")
    server.create_topic(topic, 2)
    server.create_topic(fifo, 2)
    for group in (concurrent, ordered):
        server.create_group(group, retry_max=1)
    sent = java.send(
        topic,
        [
            {"body": b"%d" % n, "keys": f"k{n}", "tags": "t", "properties": {"mine": "é"}}
            for n in range(4)
        ],
    )
    assert all(one["status"] == "SEND_OK" for one in sent)
    java.send(fifo, [{"body": b"%d" % n, "keys": f"f{n}", "sharding": "same"} for n in range(3)])
    first = java.consume(concurrent, topic, fail_keys={"k0": 1, "k1": -1}, limit=1)
    second = java.consume(ordered, fifo, mode="ordered", fail_keys={"f0": -1}, limit=1)
    first.wait_until(
        "all but the dead one", lambda one: {m.keys for m in one.done} == {"k0", "k2", "k3"}
    )
    second.wait_until(
        "all but the dead one", lambda one: [m.keys for m in one.done] == ["f1", "f2"]
    )
    assert [m.retries for m in first.done if m.keys == "k0"] == [1]
    assert {m.properties["mine"] for m in first.done} == {"é"}
    java.until(
        "the dead letters",
        lambda: server.knows(f"%DLQ%{concurrent}") and server.knows(f"%DLQ%{ordered}"),
    )
    assert [m.keys for m in java.letters(concurrent)] == ["k1"]
    assert [m.keys for m in java.letters(ordered)] == ["f0"]
    assert {(s["broker"], s["queue"], s["offset"]) for s in sent} == {
        (m.broker, m.queue, m.offset) for m in java.read(topic)
    }
    first.close()
    second.close()
    # What a client says of its places when it ends, it sends without waiting for an answer.
    ends = {queue: end for queue, (_, end) in java.offsets(topic).items()}
    java.until("its places", lambda: java.committed(concurrent, topic) == ends)


def test_a_pop_consumer_receives_and_its_failure_comes_again(
    shared_rocketmq: RocketMQ, java: JavaPeer, name: Callable[[str], str]
) -> None:
    topic, group = name("popped"), name("pop")
    shared_rocketmq.create_topic(topic, 1)
    shared_rocketmq.create_group(group, retry_max=3)
    java.send(topic, [{"body": b"1", "keys": "k1"}, {"body": b"2", "keys": "k2"}])
    consumer = java.consume(group, topic, mode="pop", fail_keys={"k1": 1})
    consumer.wait_until("both", lambda one: {m.keys for m in one.done} == {"k1", "k2"})
    assert [(m.retries, m.topic) for m in consumer.done if m.keys == "k1"] == [(1, topic)]
    consumer.close()


def test_a_consumer_killed_with_a_message_in_its_hands_leaves_it_to_the_next(
    shared_rocketmq: RocketMQ, java: JavaPeer, name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group = name("held"), name("killed")
    shared_rocketmq.create_topic(topic, 1)
    shared_rocketmq.create_group(group)
    with JavaPeer(shared_rocketmq, tmp_path / "killed") as dying:
        java.send(topic, [{"body": b"%d" % n, "keys": f"k{n}"} for n in range(3)])
        holding = dying.consume(group, topic, hold=True, batch=3)
        holding.wait_until("all in its hands", lambda one: len(one.begun) == 3)
    assert not holding.ended
    next_one = java.consume(group, topic)
    next_one.wait_until("all three", lambda one: {m.keys for m in one.done} == {"k0", "k1", "k2"})
    next_one.close()


def test_access_control_and_tls_hold_for_the_java_client_too(tmp_path: Path) -> None:
    with RocketMQ(tmp_path / "server", acl=True, tls=True) as server:
        server.create_topic("orders", 1)
        server.create_topic("closed", 1)
        server.create_group("g")
        server.create_user("limited", "secret-of-limited", {"Topic:orders": ["Pub"]})
        with pytest.raises(Refused, match="code 16"):
            rocketmq_admin.ask(server.port, 30, {"topic": "orders", "queueId": 0})
        for port in (server.port, server.namesrv_port):
            with socket.create_connection((LOOPBACK, port), 10) as plain:
                trusting = ssl.create_default_context(cafile=str(server.ca))
                trusting.wrap_socket(plain, server_hostname=LOOPBACK).close()
        with (
            JavaPeer(server, tmp_path / "all") as everything,
            JavaPeer(
                server, tmp_path / "limited", login=("limited", "secret-of-limited")
            ) as limited,
        ):
            [allowed] = everything.send("closed", [b"x"])
            [sent], [refused] = limited.send("orders", [b"x"]), limited.send("closed", [b"x"])
        assert allowed.get("status") == sent.get("status") == "SEND_OK", (allowed, sent)
        assert "CODE: 16" in refused["error"]


def test_a_broker_whose_flush_is_asynchronous_loses_acknowledged_messages_when_it_is_killed(
    tmp_path: Path,
) -> None:
    with RocketMQ(tmp_path / "server", settings=LOSES_WHEN_KILLED) as server:
        server.create_topic("orders", 1)
        with JavaPeer(server, tmp_path / "java") as java:
            sent = java.send("orders", [b"%d" % n for n in range(500)])
        server.kill()
        acknowledged = sum(one.get("status") == "SEND_OK" for one in sent)
        server.start()
        stored = int(server.ask(30, {"topic": "orders", "queueId": 0}).ext["offset"])
        assert stored < acknowledged > 400, [one for one in sent if "error" in one]


def test_two_brokers_at_one_name_server_share_a_topic_and_a_restarted_name_server_learns_the_routes_again(
    tmp_path: Path,
) -> None:
    with (
        RocketMQ(tmp_path / "a") as one,
        RocketMQ(tmp_path / "b", name="broker-b", joins=one) as other,
    ):
        for server in (one, other):
            server.create_topic("orders", 2)
        assert one.brokers_of("orders") == {"broker-a": one.address, "broker-b": other.address}
        other.kill_broker()
        one.until(
            "a route without the dead broker",
            lambda: one.brokers_of("orders") == {"broker-a": one.address},
        )
        one.restart_namesrv()
        assert one.brokers_of("orders") == {"broker-a": one.address}
        other.start()
        assert one.brokers_of("orders") == {"broker-a": one.address, "broker-b": other.address}


def test_a_stalled_server_answers_nothing_and_answers_again_when_it_is_woken(
    tmp_path: Path,
) -> None:
    with RocketMQ(tmp_path / "server") as server:
        server.create_topic("orders", 1)
        server.stall()
        for port in (server.port, server.namesrv_port):
            with pytest.raises(TimeoutError):
                rocketmq_admin.ask(port, 105, {"topic": "orders"}, timeout=0.3)
        server.wake()
        assert server.knows("orders")
