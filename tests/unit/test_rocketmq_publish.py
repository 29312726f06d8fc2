"""What each answer of a broker makes of a message, told by a server that says what it is told to; and what `check` judges."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.brokers.rocketmq.inspect.check_config import (
    Consumers,
    WantedGroup,
    WantedTopic,
    check_broker,
    check_permissions,
    check_progress,
    check_retries,
    check_subscription,
)
from backstop.brokers.rocketmq.inspect.clock import Clock
from backstop.brokers.rocketmq.inspect.measure_durability import ConfigReader
from backstop.brokers.rocketmq.inspect.read_progress import ProgressReader
from backstop.brokers.rocketmq.inspect.schedule import Schedule
from backstop.brokers.rocketmq.producer.publish import Publisher
from backstop.brokers.rocketmq.routes.route import Routes
from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import ANSWER, Command, Reader, Request, encode
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.config.rocketmq_delay_levels import DELAY_LEVELS
from backstop.model.records import Message, Outcome

Say = Callable[[Command], tuple[int, str | None] | None]
"""(code, remark) for a send; null: silence."""


TOO_MUCH = "java.lang.RuntimeException: message body size exceeded, org.apache.rocketmq.store."


class Broker:
    """Name server and broker in one: a topic `t` of one queue, and the answers that the test wants."""

    def __init__(self) -> None:
        self.say: Say = lambda _: (0, None)
        self.places: dict[str, str] = {"queueOffset": "7", "msgId": "id"}
        self.sends: list[Command] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.to = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stored = 0
        threading.Thread(target=self._accept, daemon=True).start()
        self.pool = Pool(Address.parse(f"rocketmq://{self.to}"), connect_timeout=2.0)

    def publisher(self, seconds: float = 5.0) -> Publisher:
        routes, clock = Routes(self.pool, brokers=None, answer_timeout=5.0), Clock(self.pool)
        reader = ProgressReader(
            self.pool, routes, clock, Schedule(self.pool, clock, []), seconds=5.0
        )
        return Publisher(self.pool, routes, reader, send_timeout=seconds, max_bytes=1000)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = Reader()
        with connection:
            while data := connection.recv(65536):
                reader.feed(data)
                while (command := reader.next()) is not None:
                    answer = self._answer(command)
                    if answer is not None:
                        connection.sendall(answer)

    def _answer(self, command: Command) -> bytes | None:
        ext, body = {}, b""
        code, remark = 0, None
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            body = json.dumps({"brokerAddrTable": {"a": {"brokerAddrs": {"0": self.to}}}}).encode()
        elif command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            body = json.dumps(
                {
                    "brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": self.to}}],
                    "queueDatas": [
                        {"brokerName": "a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
                    ],
                }
            ).encode()
        elif command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            code, remark = ResponseCode.SYSTEM_ERROR, "no consumer for this group"
        else:
            self.sends.append(command)
            said = self.say(command)
            if said is None:
                return None
            code, remark = said
            ext = self.places
        return encode(Request(code, ext, body), command.opaque, flag=ANSWER, remark=remark)

    def close(self) -> None:
        self.pool.close()
        self._listener.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    one = Broker()
    yield one
    one.close()


def send(broker: Broker, number: int = 1, seconds: float = 5.0) -> list[tuple[Outcome, bool]]:
    receipts = broker.publisher(seconds).publish(
        [Message("t", f"m-{i}", b"x") for i in range(number)], None
    )
    return [(receipt.outcome, receipt.refused_for_good) for receipt in receipts]


@pytest.mark.parametrize(
    ("code", "remark", "outcome", "for_good"),
    [
        (ResponseCode.SUCCESS, None, Outcome.SENT, False),
        (ResponseCode.FLUSH_DISK_TIMEOUT, None, Outcome.SENT, False),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, None, Outcome.SENT, False),
        (ResponseCode.SLAVE_NOT_AVAILABLE, None, Outcome.SENT, False),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "disk full", Outcome.REFUSED, False),
        (ResponseCode.NO_PERMISSION, "no", Outcome.REFUSED, False),
        (ResponseCode.INVALID_PARAMETER, "queueId", Outcome.REFUSED, False),
        (ResponseCode.GO_AWAY, "please go away", Outcome.REFUSED, False),
        (ResponseCode.MESSAGE_ILLEGAL, "too large", Outcome.REFUSED, True),
        (ResponseCode.TOPIC_NOT_EXIST, "none", Outcome.REFUSED, True),
        (
            ResponseCode.SYSTEM_ERROR,
            "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
            Outcome.UNKNOWN,
            False,
        ),
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", Outcome.UNKNOWN, False),
        (
            ResponseCode.SYSTEM_ERROR,
            "create mapped file failed, server is busy or broken.",
            Outcome.REFUSED,
            False,
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            "[Broker] broker unable to service, until 2026-01-01",
            Outcome.UNKNOWN,
            False,
        ),
        (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR", Outcome.UNKNOWN, False),
        (
            ResponseCode.SYSTEM_ERROR,
            "java.lang.NullPointerException, said in-sync replicas not enough",
            Outcome.UNKNOWN,
            False,
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            f"{TOO_MUCH}MessageExtEncoder.encode(MessageExtEncoder.java:290)",
            Outcome.REFUSED,
            True,
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            f"{TOO_MUCH}CommitLog.append(CommitLog.java:1)",
            Outcome.UNKNOWN,
            False,
        ),
        (ResponseCode.SYSTEM_ERROR, None, Outcome.UNKNOWN, False),
        (9999, "from a later version", Outcome.UNKNOWN, False),
    ],
)
def test_only_what_the_broker_certainly_does_not_have_is_refused(
    broker: Broker, code: int, remark: str | None, outcome: Outcome, for_good: bool
) -> None:
    broker.say = lambda _: (code, remark)
    assert send(broker) == [(outcome, for_good)]
    assert len(broker.sends) == 1, "nothing is sent twice"


def test_a_busy_broker_is_asked_again_and_nothing_else_is(broker: Broker) -> None:
    broker.say = lambda _: (
        (ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]")
        if len(broker.sends) < 3
        else (ResponseCode.SUCCESS, None)
    )
    assert send(broker, 5) == [(Outcome.SENT, False)] * 5
    assert [command.code for command in broker.sends] == [RequestCode.SEND_BATCH_MESSAGE] * 3


def test_a_broker_that_stays_busy_refuses_within_the_time(broker: Broker) -> None:
    broker.say = lambda _: (ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]")
    for seconds in (0.4, 0.7, 1.4):
        broker.sends.clear()
        assert send(broker, 2, seconds=seconds) == [(Outcome.REFUSED, False)] * 2
        if len(broker.sends) > 1:
            break  # on a busy machine the time may have been over after the first
    assert 1 < len(broker.sends) < 6


@pytest.mark.parametrize("how", ["by its code", "in words"])
def test_a_piece_with_one_illegal_message_is_sent_one_by_one(broker: Broker, how: str) -> None:
    def say(command: Command) -> tuple[int, str | None]:
        if command.code == RequestCode.SEND_BATCH_MESSAGE and how == "in words":
            return (
                ResponseCode.SYSTEM_ERROR,
                f"{TOO_MUCH}MessageExtEncoder.encode(MessageExtEncoder.java:290)",
            )
        illegal = command.code == RequestCode.SEND_BATCH_MESSAGE or "m-2" in command.ext["i"]
        return (
            (ResponseCode.MESSAGE_ILLEGAL, "illegal") if illegal else (ResponseCode.SUCCESS, None)
        )

    broker.say = say
    assert send(broker, 4) == [(Outcome.SENT, False)] * 2 + [(Outcome.REFUSED, True)] + [
        (Outcome.SENT, False)
    ]


def test_what_a_busy_broker_put_off_does_not_come_behind_a_later_message_of_its_key(
    broker: Broker,
) -> None:
    first = True

    def busy_once(command: Command) -> tuple[int, str | None]:
        nonlocal first
        told, first = first, False
        return (ResponseCode.SYSTEM_BUSY, "busy") if told else (ResponseCode.SUCCESS, None)

    broker.say = busy_once
    keyed = [
        Message("t", f"m-{i}", b"x", partition_key="k") for i in range(20)
    ]  # more than one piece
    outcomes = [receipt.outcome for receipt in broker.publisher().publish(keyed, None)]
    refused = outcomes.index(Outcome.SENT)
    assert refused > 0 and outcomes == [Outcome.REFUSED] * refused + [Outcome.SENT] * (20 - refused)
    first = True
    assert {one for one, _ in send(broker, 20)} == {Outcome.SENT}, (
        "without keys there is no order to keep"
    )


def test_pieces_that_are_asked_again_keep_the_order_of_their_key(broker: Broker) -> None:
    stored: list[str] = []

    def say(command: Command) -> tuple[int, str | None]:
        number = len(broker.sends)
        if number == 1:
            return ResponseCode.SYSTEM_BUSY, "busy"
        if command.code == RequestCode.SEND_BATCH_MESSAGE and number <= 3:
            return ResponseCode.MESSAGE_ILLEGAL, "one of them"
        stored.extend(
            f"m-{i:02}"
            for i in range(20)
            if f"m-{i:02}".encode() in command.body or f"m-{i:02}" in str(command.ext)
        )
        return ResponseCode.SUCCESS, None

    broker.say = say
    keyed = [Message("t", f"m-{i:02}", b"x", partition_key="k") for i in range(20)]
    broker.publisher().publish(keyed, None)
    assert stored == sorted(stored) and stored[0] == "m-00"


def test_the_others_of_a_piece_that_was_overtaken_may_be_sent_again(broker: Broker) -> None:
    broker.say = lambda _: (
        (ResponseCode.MESSAGE_ILLEGAL, "one of them")
        if len(broker.sends) == 1
        else (ResponseCode.SUCCESS, None)
    )
    keyed = [Message("t", f"m-{i}", b"x", partition_key="k") for i in range(20)]
    receipts = broker.publisher().publish(keyed, None)
    refused = [receipt for receipt in receipts if receipt.outcome is Outcome.REFUSED]
    assert 1 < len(refused) < 20 and not any(receipt.refused_for_good for receipt in refused)


def test_silence_is_unknown_at_the_end_of_the_time(broker: Broker) -> None:
    broker.say = lambda _: None
    for seconds in (0.3, 3.0, 30.0):
        ends = send(broker, 3, seconds=seconds)
        if broker.sends:
            break  # on a busy machine the time may have been over before anything was sent
    assert ends == [(Outcome.UNKNOWN, False)] * 3


def test_no_send_names_a_topic_after_which_a_missing_one_would_be_made(broker: Broker) -> None:
    send(broker)
    assert broker.sends[0].ext["c"] not in ("TBW102", "t", "")


@pytest.mark.parametrize("places", [{}, {"queueOffset": ""}, {"queueOffset": "seven"}])
def test_an_answer_without_an_offset_has_no_position(
    broker: Broker, places: dict[str, str]
) -> None:
    [known] = broker.publisher().publish([Message("t", "m", b"x")], None)
    assert known.position and (known.position.queue_id, known.position.offset) == (0, 7)
    broker.places = places
    [stored] = broker.publisher().publish([Message("t", "m", b"x")], None)
    assert stored.outcome is Outcome.SENT and stored.position is None


def test_a_copy_for_one_group_goes_to_its_retry_topic_and_has_no_position(broker: Broker) -> None:
    [copy] = broker.publisher().publish([Message("t", "m", b"x")], "billing")
    assert copy.outcome is Outcome.SENT and copy.position is None, (
        "an offset in a retry topic is none of the topic's"
    )
    assert (broker.sends[-1].ext["b"], "RETRY_TOPIC\x01t\x02" in broker.sends[-1].ext["i"]) == (
        "%RETRY%billing",
        True,
    )


# check


def test_what_a_login_may_not_read_is_said_to_be_unknown(broker: Broker) -> None:
    broker.say = lambda _: (ResponseCode.NO_PERMISSION, "no")
    routes = Routes(broker.pool, brokers=None, answer_timeout=5.0)
    wanted = {"t": WantedTopic(timedelta(hours=1), {"billing": group()})}
    found = ConfigReader(
        broker.pool, routes, wanted, levels=DELAY_LEVELS, max_bytes=1, seconds=5.0
    ).survey(["t"])
    unknown = {
        finding.subject for finding in found if not finding.good and "may not read" in finding.says
    }
    assert unknown == {"a: configuration", "group billing"}
    assert {finding.subject for finding in found if finding.good} == {"topic t"}


GOOD = {
    "flushDiskType": "SYNC_FLUSH",
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": "2",
    "fileReservedTime": "72",
    "autoCreateTopicEnable": "false",
    "brokerPermission": "6",
    "messageDelayLevel": DELAY_LEVELS,
    "maxMessageSize": "4194304",
}


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({}, set()),
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": "1"}, set()),
        ({"flushDiskType": "ASYNC_FLUSH"}, {"flush"}),
        ({"brokerRole": "SLAVE"}, {"replication"}),
        ({"fileReservedTime": "47"}, {"retention"}),
        ({"fileReservedTime": ""}, {"retention"}),
        ({"autoCreateTopicEnable": "true"}, {"making topics"}),
        ({"brokerPermission": "2"}, {"permission"}),
        ({"messageDelayLevel": "1s 5s"}, {"delay levels"}),
        ({"maxMessageSize": "4194303"}, {"message size"}),
        ({"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}, set()),
        ({"enabledAppendPropCRC": "false", "forceVerifyPropCRC": "true"}, {"recovery"}),
    ],
)
def test_a_broker_is_bad_by_what_the_settings_rely_on(
    changes: dict[str, str], bad: set[str]
) -> None:
    found = check_broker("a", {**GOOD, **changes}, timedelta(hours=48), DELAY_LEVELS, 4194304)
    assert {finding.subject for finding in found if not finding.good} == {
        f"a: {one}" for one in bad
    }
    assert all(finding.do for finding in found if not finding.good)


def group(
    tags: tuple[str, ...] | None = None,
    *,
    limit: int = 17,
    at_most: float = 17_100,
    more_than: float = 90,
) -> WantedGroup:
    return WantedGroup(tags, True, timedelta(seconds=at_most), timedelta(seconds=more_than), limit)


@pytest.mark.parametrize(
    ("wanted", "retry_max", "good"),
    [
        (group(at_most=17_140), 16, True),
        (group(at_most=17_139), 16, False),
        (group(limit=4, more_than=99), 3, True),
        (group(limit=4, more_than=100), 3, False),
        (group(limit=4), 16, False),
        (group(limit=4), 2, False),
        (group(limit=4), None, True),
    ],
    ids=[
        "as long",
        "longer",
        "enough",
        "too short",
        "the group's own is longer",
        "the group's own is shorter",
        "not known",
    ],
)
def test_retries_fit_between_a_lease_and_the_horizon(
    wanted: WantedGroup, retry_max: int | None, good: bool
) -> None:
    finding = check_retries("g", DELAY_LEVELS, retry_max, wanted)
    assert finding.good is good, finding
    assert finding.good or finding.do


@pytest.mark.parametrize(
    ("expressions", "tags", "good"),
    [
        (None, ("eu",), True),
        (["*"], None, True),
        ([""], None, True),
        (["eu || us"], ("us", "eu"), True),
        (["eu||us"], ("eu",), False),
        (["*"], ("eu",), False),
        (["eu"], None, False),
        (["eu", "us"], ("eu",), False),
        (["SQL92: a > 1"], None, False),
        ([], None, False),
    ],
)
def test_the_settings_name_the_tags_that_consumers_subscribe_to(
    expressions: list[str] | None, tags: tuple[str, ...] | None, good: bool
) -> None:
    finding = check_subscription("g", "t", expressions, group(tags))
    assert finding.good is good, finding
    assert finding.good or finding.do


def test_an_ordered_consumer_keeps_to_the_tags_of_the_settings_like_any_other() -> None:
    group = WantedGroup(("eu",), True, timedelta(hours=1), timedelta(seconds=1))
    wanted = {"t": WantedTopic(timedelta(1), {"g": group})}
    with RocketMQ("rocketmq://127.0.0.1:1", wanted=wanted) as broker:
        plain, owned = (
            broker.subscribe("g", ["t"], "c"),
            broker.subscribe_owned("g", ["t"], "c"),
        )
        assert [one._share._filters["t"] for one in (plain, owned._inner)] == ["eu", "eu"]


def test_a_group_that_pops_does_not_acknowledge_what_it_commits() -> None:
    popping = Consumers(1, {"t": ["*"]}, ["there is a topic %RETRY%g+t"])
    assert not check_progress("g", popping, True).good
    assert check_progress("g", popping, False).good
    assert check_progress("g", Consumers(2, {"t": ["*"]}), True).good


@pytest.mark.parametrize(
    ("queues", "away", "good"),
    [
        ({"a": (4, 4), "b": (4, 4)}, [], True),
        ({"a": (8, 4)}, [], True),
        ({"a": (4, 8)}, [], False),
        ({"a": (4, 0)}, [], False),
        ({"a": (4, 4)}, ["a"], False),
        ({}, [], False),
    ],
)
def test_every_queue_can_be_written_and_read(
    queues: dict[str, tuple[int, int]], away: list[str], good: bool
) -> None:
    assert check_permissions("t", queues, away).good is good


def test_a_master_that_gives_up_sooner_than_the_others_is_told() -> None:
    assert check_retries("g", DELAY_LEVELS, 16, group(at_most=17_140), 16).good
    assert not check_retries("g", DELAY_LEVELS, 16, group(at_most=17_140), 2).good
