"""Publishing to a real RocketMQ: what each fault of the server makes of a message, and what is stored then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.protocol import Finding, Receipt
from backstop.brokers.rocketmq import RocketMQ
from backstop.brokers.rocketmq.inspect.check_config import WantedGroup, WantedTopic
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import Message, Outcome
from rocketmq_server import RocketMQ as Server

pytestmark = pytest.mark.other_broker

REFUSED, SENT, UNKNOWN = Outcome.REFUSED, Outcome.SENT, Outcome.UNKNOWN
_numbers = count()
Open = Callable[..., RocketMQ]


@pytest.fixture
def open_rocketmq() -> Iterator[Open]:
    """Opens the adapter on a server."""
    opened: list[RocketMQ] = []

    def one(server: Server, url: str | None = None, **options: Any) -> RocketMQ:
        opened.append(
            RocketMQ(url or server.url(), **{"connect_timeout": timedelta(seconds=10), **options})
        )
        return opened[-1]

    yield one
    for broker in opened:
        broker.close()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It knows who asks, takes small messages only, and makes topics by itself."""
    settings = {
        "autoCreateTopicEnable": "true",
        "maxMessageSize": "65536",
        "waitTimeMillsInSendQueue": "10000",
    }
    with Server(tmp_path_factory.mktemp("strict"), acl=True, settings=settings) as server:
        yield server


@pytest.fixture
def topic() -> str:
    return f"publish-{next(_numbers)}"


def outcomes(receipts: list[Receipt]) -> list[tuple[Outcome, bool]]:
    return [(receipt.outcome, receipt.refused_for_good) for receipt in receipts]


def stored(server: Server, topic: str, number: int, queue: int = 0) -> list[Stored]:
    """All that is in the queue, when so many can be read: a moment after they were stored."""
    where = {"topic": topic, "queueId": queue}
    server.until(
        f"{number} messages of {topic}", lambda: int(server.ask(30, where).ext["offset"]) >= number
    )
    found: list[Stored] = []
    while len(found) < int(server.ask(30, where).ext["offset"]):
        found += read_stored(
            server.ask(
                11,
                {
                    **where,
                    "consumerGroup": "TOOLS_CONSUMER",
                    "queueOffset": len(found),
                    "maxMsgNums": 32,
                    "sysFlag": 4,
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 0,
                    "subscription": "*",
                    "subVersion": 0,
                    "expressionType": "TAG",
                },
            ).body
        )
    return found


def test_every_message_of_a_piece_keeps_its_own_keys_and_its_place(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 1)
    receipts = open_rocketmq(strict).publish(
        [Message(topic, f"m-{i}", b"%d" % i) for i in range(1200)]
    )
    assert [receipt.position.offset for receipt in receipts if receipt.position] == list(
        range(1200)
    )
    found = stored(strict, topic, 1200)
    assert [one.properties["KEYS"] for one in found] == [f"m-{i}" for i in range(1200)]
    assert len({one.unique_key for one in found}) == 1200
    assert [receipt.broker_message_id for receipt in receipts] == [one.store_id for one in found]
    by_key = {
        "topic": topic,
        "key": found[700].unique_key,
        "maxNum": 10,
        "beginTimestamp": 0,
        "endTimestamp": 2**62,
        "_UNIQUE_KEY_QUERY": "true",
    }
    assert [one.properties["KEYS"] for one in read_stored(strict.ask(12, by_key).body)] == ["m-700"]


def test_one_that_the_broker_finds_too_large_is_refused_for_good_and_the_rest_of_its_piece_is_sent(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    """The adapter does not know how small the broker's limit is."""
    strict.create_topic(topic, 1)
    batch = [Message(topic, f"m-{i}", b"x" * (70_000 if i == 3 else 10)) for i in range(6)]
    receipts = open_rocketmq(strict).publish(batch)
    assert outcomes(receipts) == [(SENT, False)] * 3 + [(REFUSED, True)] + [(SENT, False)] * 2, (
        receipts[3].error
    )
    assert [one.properties["KEYS"] for one in stored(strict, topic, 5)] == [
        "m-0",
        "m-1",
        "m-2",
        "m-4",
        "m-5",
    ]


def test_a_piece_larger_than_one_message_may_be_is_sent_all_the_same(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 1)
    receipts = open_rocketmq(strict).publish(
        [Message(topic, f"m-{i}", b"x" * 30_000) for i in range(6)]
    )
    assert outcomes(receipts) == [(SENT, False)] * 6, receipts[0].error
    assert len(stored(strict, topic, 6)) == 6


def test_headers_that_no_message_can_keep_are_refused_for_good(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 1)
    long, fits = {"h": "x" * 40_000}, {"h": "ü" * 15_000}
    receipts = open_rocketmq(strict).publish(
        [Message(topic, "a", b"x", long), Message(topic, "b", b"x", fits)]
    )
    assert outcomes(receipts) == [(REFUSED, True), (SENT, False)], receipts[1].error
    assert [one.properties["KEYS"] for one in stored(strict, topic, 1)] == ["b"]


def test_a_broker_that_makes_topics_by_itself_makes_none_for_us(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    assert strict.ask_namesrv(105, {"topic": "TBW102"}).code == 0, (
        "the broker's model of a topic is there"
    )
    receipts = open_rocketmq(strict).publish([Message(topic, "a", b"x"), Message(topic, "b", b"x")])
    assert outcomes(receipts) == [(REFUSED, True)] * 2
    assert strict.ask_namesrv(105, {"topic": topic}, ok=(0, 17)).code == 17

    strict.create_topic(topic, 1)
    client = open_rocketmq(strict)
    assert outcomes(client.publish([Message(topic, "a", b"x")])) == [(SENT, False)]
    strict.delete_topic(topic)
    assert outcomes(client.publish([Message(topic, "b", b"x")])) == [(REFUSED, True)], (
        "by a route that is believed still"
    )
    assert strict.ask_namesrv(105, {"topic": topic}, ok=(0, 17)).code == 17


@pytest.mark.parametrize(
    ("access", "secret"), [("backstop", "wrong-secret"), ("nobody", "wrong-secret")]
)
def test_a_wrong_login_is_refused_and_told_without_the_secret(
    strict: Server, open_rocketmq: Open, topic: str, access: str, secret: str
) -> None:
    strict.create_topic(topic, 1)
    receipts = open_rocketmq(strict, strict.url(access, secret)).publish(
        [Message(topic, "a", b"x"), Message(topic, "b", b"x")]
    )
    assert outcomes(receipts) == [(REFUSED, False)] * 2, receipts[0].error
    assert secret not in str(receipts)
    assert stored(strict, topic, 0) == []


def test_a_group_that_is_not_there_gets_no_copy(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 1)
    strict.configure(autoCreateSubscriptionGroup=False)
    [receipt] = open_rocketmq(strict).publish(
        [Message(topic, "a", b"x")], group=f"group of {topic}"
    )
    assert outcomes([receipt]) == [(REFUSED, True)], receipt.error


def test_a_broker_that_takes_nothing_for_a_while_refuses_and_takes_it_later(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 2)
    client = open_rocketmq(strict)
    batch = [Message(topic, f"m-{i}", b"x") for i in range(4)]
    strict.configure(brokerPermission=4)
    try:
        assert outcomes(client.publish(batch)) == [(REFUSED, False)] * 4
    finally:
        strict.configure(brokerPermission=6)
    assert stored(strict, topic, 0) == stored(strict, topic, 0, 1) == []
    wait_until_all_is_sent(client, batch)


class TwoBrokers:
    """One name server, two masters."""

    def __init__(self, directory: Path) -> None:
        quick = {"waitTimeMillsInSendQueue": "10000"}
        self.a = Server(directory / "a", settings=quick)
        self.a.start()
        self.b = Server(directory / "b", name="broker-b", joins=self.a, settings=quick)
        self.b.start()

    def kill(self) -> None:
        self.b.kill_broker()
        self.a.kill()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoBrokers]:
    servers = TwoBrokers(tmp_path)
    yield servers
    servers.kill()


def test_while_one_master_is_away_only_what_belongs_to_it_is_refused(
    two: TwoBrokers, open_rocketmq: Open, topic: str
) -> None:
    client = open_rocketmq(two.a, brokers="broker-a,broker-b")
    client.create_topic(topic, 2)
    batch = [Message(topic, f"m-{i}", b"x") for i in range(40)]
    receipts = client.publish(batch)
    queues = {receipt.position.queue_id for receipt in receipts if receipt.position}
    assert queues == {0, 1, 10_000, 10_001}, "each master's queues have numbers of their own"
    keyed = [Message(topic, f"k-{i}", b"x", partition_key=f"key {i}") for i in range(20)]
    kept = client.publish(keyed)
    before = [receipt.position.queue_id for receipt in kept if receipt.position]
    reachable = {
        message.message_id
        for message, receipt in zip(batch + keyed, receipts + kept, strict=True)
        if receipt.position and receipt.position.queue_id < 10_000
    }
    client.create_group(f"g-{topic}", topic, at="start")
    two.b.kill_broker()
    with open_rocketmq(two.a, brokers="broker-a,broker-b").subscribe(
        f"g-{topic}", [topic], "joins"
    ) as consumer:
        came: set[str] = set()
        deadline = time.monotonic() + 60
        while not reachable <= came:
            assert time.monotonic() < deadline, f"{len(came)} of {len(reachable)} came"
            with suppress(BrokerUnavailable):
                got = consumer.fetch(50, timedelta(seconds=1))
                came |= {one.message.message_id for one in got}
                consumer.acknowledge(got)
    for again in (client, open_rocketmq(two.a, brokers="broker-a,broker-b")):
        receipts = again.publish(keyed)
        assert {receipt.outcome for receipt in receipts} <= {SENT, REFUSED}
        for receipt, queue in zip(receipts, before, strict=True):
            if receipt.outcome is SENT:
                assert receipt.position and receipt.position.queue_id == queue < 10_000, (
                    "a key keeps its queue"
                )
    wait_until_all_is_sent(client, batch)
    receipts = client.publish(batch)
    assert {receipt.position.queue_id for receipt in receipts if receipt.position} == {0, 1}
    assert {receipt.outcome for receipt in receipts} == {SENT}
    assert all(
        receipt.outcome is REFUSED and not receipt.refused_for_good
        for receipt in client.publish(keyed)
    )
    two.b.start()
    wait_until_all_is_sent(client, keyed)
    assert [
        receipt.position.queue_id for receipt in client.publish(keyed) if receipt.position
    ] == before


def wait_until_all_is_sent(client: RocketMQ, batch: list[Message]) -> None:
    """The name server learns by and by, from a closed connection or when the broker tells it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if all(receipt.outcome is SENT for receipt in client.publish(batch)):
            return
    raise AssertionError("it was refused for long")


def test_two_masters_need_their_order_in_the_settings(
    two: TwoBrokers, open_rocketmq: Open, topic: str
) -> None:
    open_rocketmq(two.a, brokers="broker-a,broker-b").create_topic(topic, 1)
    [receipt] = open_rocketmq(two.a).publish([Message(topic, "a", b"x")])
    assert outcomes([receipt]) == [(REFUSED, False)]
    assert "brokers" in (receipt.error or "")
    swapped = open_rocketmq(two.a, brokers="broker-b,broker-a").publish(
        [Message(topic, f"m-{i}", b"x") for i in range(20)]
    )
    assert {receipt.position.queue_id for receipt in swapped if receipt.position} == {0, 10_000}


# What `backstop check` finds


def findings(broker: RocketMQ, *topics: str) -> dict[str, Finding]:
    return {finding.subject: finding for finding in broker.durability(topics)}


def wanted(
    retention: float = 48, tags: tuple[str, ...] | None = None, **changes: Any
) -> WantedTopic:
    group = {
        "acknowledged": True,
        "delivery_limit": 4,
        "retries_at_most": timedelta(hours=5),
        "retries_more_than": timedelta(seconds=3),
    } | changes
    return WantedTopic(timedelta(hours=retention), {"billing": WantedGroup(tags, **group)})


def test_check_holds_the_server_against_the_settings(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 2)
    levels = strict.settings["messageDelayLevel"]
    there = f"wanted {topic}"
    options = {"delay_levels": levels, "delivery_limit": 4, "max_message_bytes": 65536}
    broker = open_rocketmq(strict, wanted={topic: wanted(), there: wanted(100)}, **options)
    found = findings(broker, topic)
    assert not found["group billing"].good and "not there" in found["group billing"].says
    broker.create_group("billing", topic)
    broker.create_topic(there, 1)
    found = findings(broker, topic, there, "none such")
    good = {subject for subject, finding in found.items() if finding.good}
    assert {
        "broker-a: replication",
        "broker-a: permission",
        "broker-a: delay levels",
        "broker-a: message size",
        f"topic {topic}",
        "group billing",
        "group billing: retries",
        f"group billing: subscription to {topic}",
    } <= good
    says = {subject: finding.says for subject, finding in found.items() if not finding.good}
    assert set(says) == {
        "broker-a: flush",
        "broker-a: retention",
        "broker-a: making topics",
        "topic none such",
    }
    assert "ASYNC_FLUSH" in says["broker-a: flush"] and "100 h" in says["broker-a: retention"]
    assert all(finding.do for finding in found.values() if not finding.good)

    usual = open_rocketmq(
        strict, wanted={topic: wanted(retries_more_than=timedelta(minutes=2))}, delivery_limit=4
    )
    found = findings(usual, topic)
    assert not found["broker-a: message size"].good
    assert (
        not found["broker-a: delay levels"].good and levels in found["broker-a: delay levels"].says
    )
    assert not found["group billing: retries"].good, (
        "10 s, 30 s and 1 min are less than a lease and a sweep"
    )

    strict.configure(brokerPermission=4)
    try:
        assert not findings(broker, topic)["broker-a: permission"].good
    finally:
        strict.configure(brokerPermission=6)


def test_check_compares_tags_with_what_consumers_subscribe_to(
    strict: Server, open_rocketmq: Open, topic: str
) -> None:
    strict.create_topic(topic, 1)
    group = f"billing-{topic}"
    policy = WantedGroup(("eu",), True, timedelta(hours=5), timedelta(seconds=1))
    broker = open_rocketmq(
        strict,
        wanted={topic: WantedTopic(timedelta(hours=1), {group: policy})},
        delay_levels=strict.settings["messageDelayLevel"],
    )
    broker.create_group(group, topic)
    subject = f"group {group}: subscription to {topic}"
    assert "no consumer" in findings(broker, topic)[subject].says
    subscription = broker.subscribe(group, [topic], "right")
    subscription.fetch(1, timedelta(milliseconds=50))
    found = findings(broker, topic)[subject]
    assert found.good and "'eu'" in found.says
    subscription.close()
    other = broker.subscribe(group, [topic], "wrong", tags={})
    other.fetch(1, timedelta(milliseconds=50))
    found = findings(broker, topic)[subject]
    assert not found.good and "the settings say eu" in found.says
    other.close()
