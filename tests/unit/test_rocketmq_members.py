"""Whose queue is whose, what a consumer says of itself, and how far a queue may be committed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from backstop.brokers.rocketmq.consumer.members import (
    EVERY_TAG,
    MessageQueue,
    allocate,
    heartbeat,
    java_hash,
    queues_in,
    running_info,
    subscription,
)
from backstop.brokers.rocketmq.consumer.process_queue import ProcessQueue
from backstop.brokers.rocketmq.consumer.push_handler import PushHandler
from backstop.brokers.rocketmq.consumer.share_queues import QueueShare
from backstop.brokers.rocketmq.message.stored import Stored
from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.exchange import Result
from backstop.brokers.rocketmq.wire.frames import Command, Request
from backstop.brokers.rocketmq.wire.session import ConnectionLost
from backstop.model.errors import BrokerUnavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUEUE = MessageQueue("t", "broker-a", 0)


def queues(number: int) -> list[MessageQueue]:
    return [MessageQueue("t", "broker-a", i) for i in range(number)]


def stored(offset: int) -> Stored:
    return Stored("t", 0, offset, offset * 100, "h:1", "", NOW, NOW, 0, 0, 0, b"four")


def as_java(all_queues: list[MessageQueue], members: list[str], me: str) -> list[MessageQueue]:
    """AllocateMessageQueueAveragely, written after RocketMQ's Java client."""
    index, modulo = members.index(me), len(all_queues) % len(members)
    if len(all_queues) <= len(members):
        size = 1
    elif modulo > 0 and index < modulo:
        size = len(all_queues) // len(members) + 1
    else:
        size = len(all_queues) // len(members)
    start = index * size if modulo > 0 and index < modulo else index * size + modulo
    return [
        all_queues[(start + i) % len(all_queues)]
        for i in range(max(0, min(size, len(all_queues) - start)))
    ]


@settings(deadline=None, max_examples=60)
@given(some.integers(0, 40), some.integers(1, 20))
def test_queues_are_shared_as_the_java_client_reckons_it_and_each_has_one_member(
    number: int, size: int
) -> None:
    members = sorted(f"10.0.0.{i}@{i}" for i in range(size))
    shares = [allocate(queues(number)[::-1], members[::-1], me) for me in members]
    if number:
        assert shares == [as_java(queues(number), members, me) for me in members]
    assert sorted(queue for share in shares for queue in share) == queues(number)


def test_who_is_not_a_member_has_no_queue() -> None:
    assert allocate(queues(3), ["a", "b"], "c") == []


def test_queues_are_sorted_by_topic_broker_and_number_not_as_text() -> None:
    assert allocate(queues(12), ["a"], "a")[-1].number == 11
    mixed = [MessageQueue("t", "b", 0), MessageQueue("t", "a", 1)]
    assert allocate(mixed, ["m1", "m2"], "m1") == [mixed[1]]


def test_a_tag_has_the_hash_that_java_gives_it() -> None:
    assert [java_hash(text) for text in ("", "a", "TagA", "Größe", "polygenelubricants", "😀")] == [
        0,
        97,
        2598919,
        69209585,
        -2147483648,
        1772899,
    ]


def test_a_heartbeat_names_topics_and_tags() -> None:
    body = json.loads(heartbeat("c", "g", {"t": "a || b", "%RETRY%g": EVERY_TAG}, 7).body)
    [consumer] = body["consumerDataSet"]
    assert (body["clientID"], consumer["groupName"], consumer["messageModel"]) == (
        "c",
        "g",
        "CLUSTERING",
    )
    assert [
        (one["topic"], one["subString"], one["tagsSet"], one["codeSet"])
        for one in consumer["subscriptionDataSet"]
    ] == [
        ("t", "a || b", ["a", "b"], [97, 98]),
        ("%RETRY%g", "*", [], []),
    ]


def test_a_tag_that_rocketmq_cannot_name_is_left_to_us_to_filter() -> None:
    assert subscription(["b", "a"]) == "a || b"
    assert (
        subscription([])
        == subscription(["a", "two words"])
        == subscription(["a|b"])
        == subscription(["*"])
        == EVERY_TAG
    )


def test_what_a_consumer_says_of_itself_can_be_read_as_the_broker_writes_it() -> None:
    told = fastjson.read(running_info({"t": "*"}, 7, {QUEUE: (3, 9, 4)}).decode())
    [(key, row)] = told["mqTable"].items()
    assert dict(key) == {"brokerName": "broker-a", "queueId": 0, "topic": "t"}
    assert (row["commitOffset"], row["cachedMsgCount"], row["locked"]) == (3, 4, False)
    assert queues_in(Command(0, 1, body=running_info({}, 7, {QUEUE: (3, 9, 4)}))) == {QUEUE}
    assert queues_in(Command(0, 1, body=b"no JSON")) == set()


@settings(deadline=None, max_examples=60)
@given(some.data())
def test_the_lowest_offset_is_never_above_one_that_is_not_acknowledged(
    data: some.DataObject,
) -> None:
    """Whatever is pulled, handed out, acknowledged or left out by a filter, in whatever order."""
    process_queue = ProcessQueue(QUEUE, start=5, committed=5)
    open_offsets: set[int] = set()
    taken = []
    for _ in range(data.draw(some.integers(1, 30))):
        match data.draw(some.sampled_from(["pull", "take", "done", "put back"])):
            case "pull":
                found = sorted(data.draw(some.sets(some.integers(0, 8), max_size=5)))
                at, behind = process_queue.next_offset, data.draw(some.integers(0, 3))
                offsets = [at + one for one in found]
                process_queue.pulled(
                    [stored(one) for one in offsets],
                    max([at, *(one + 1 for one in offsets)]) + behind,
                )
                open_offsets |= set(offsets)
            case "take":
                taken += process_queue.take(data.draw(some.integers(0, 4)))
            case "done" if taken:
                held = taken.pop(data.draw(some.integers(0, len(taken) - 1)))
                process_queue.done(held)
                process_queue.done(held)
                open_offsets.discard(held.stored.offset)
            case "put back" if taken:
                process_queue.put_back([taken.pop()])
        assert process_queue.lowest == min(open_offsets, default=process_queue.next_offset)
        assert process_queue.size == len(open_offsets) and process_queue.bytes == 4 * len(
            open_offsets
        )


def test_what_was_in_hand_before_a_move_is_nobodys_and_its_name_is_not_used_again() -> None:
    process_queue = ProcessQueue(QUEUE, start=0, committed=0)
    process_queue.pulled([stored(0), stored(1)], 2)
    [held] = process_queue.take(1)
    life, process_queue.pulling = process_queue.life, 17
    process_queue.move(0, committed=None)
    assert process_queue.pulling is None, (
        "the answer to a pull from before would skip what lies between"
    )
    assert (
        process_queue.lowest,
        process_queue.size,
        process_queue.fresh,
        process_queue.has(held),
    ) == (0, 0, 0, False)
    assert process_queue.life != life
    process_queue.pulled([stored(0)], 1)
    process_queue.done(held)
    assert process_queue.lowest == 0, "the one from before cannot end the new one"


def test_messages_from_before_a_skip_are_not_taken() -> None:
    process_queue = ProcessQueue(QUEUE, start=0, committed=0)
    process_queue.skip_to(4)
    process_queue.pulled([stored(2), stored(4)], 5)
    assert [held.stored.offset for held in process_queue.take(9)] == [4]
    assert process_queue.next_offset == 5


@pytest.mark.parametrize("silent", [True, False])
def test_a_commit_that_one_broker_took_and_another_did_not_is_nobody_elses(silent: bool) -> None:
    class Connections:
        brokers = ("broker-a", "broker-b")

        def ask(self, requests: list[tuple[str, Request]], _: float) -> list[Result]:
            not_taken: Result = (
                ConnectionLost("broker-b did not answer in time") if silent else Command(1, 1)
            )
            taken = Command(0, 1, ext={"offset": "1"})
            return [not_taken if to == "broker-b" else taken for to, _ in requests]

        def broken(self) -> dict[str, str]:
            return {}

    share = QueueShare(
        cast(Any, Connections()),
        cast(Any, None),
        PushHandler(),
        client="c",
        group="g",
        filters={"t": "*"},
        seconds=1.0,
    )
    ours, away = (
        ProcessQueue(MessageQueue("t", broker, 0), 0, 0) for broker in Connections.brokers
    )
    for process_queue in (ours, away):
        process_queue.pulled([stored(0), stored(1)], 2)
    first, second = ours.take(2)
    ours.done(first)
    away.done(away.take(1)[0])
    with pytest.raises(BrokerUnavailable):
        share.commit([away, ours])
    share.process_queues = {ours.queue: ours}
    share._follow_moves("sharing")
    assert ours.has(second), "what is in hand stays there"
    share.commit([ours])
    assert (ours.committed, ours.moved, away.moved) == (1, False, silent)
