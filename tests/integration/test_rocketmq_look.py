"""Looks at a real RocketMQ: how far groups are, what waits for them elsewhere, and what cannot be known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.rocketmq.message.epoch import EPOCH
from backstop.evidence.settle import present_epoch
from backstop.model.errors import BrokerUnavailable
from rocketmq_java import JavaPeer
from rocketmq_look_world import WAIT, World
from rocketmq_server import RETENTION_AT_ONCE, RocketMQ

pytestmark = pytest.mark.other_broker

MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def world(shared_rocketmq: RocketMQ) -> Iterator[World]:
    found = World(shared_rocketmq)
    yield found
    found.close()


@pytest.fixture(scope="module")
def java(shared_rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(shared_rocketmq, tmp_path_factory.mktemp("java")) as peer:
        yield peer


@pytest.fixture(autouse=True)
def each_look_reads_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstop.brokers.rocketmq.inspect.schedule.SHARED_SECONDS", -1.0)


def now() -> datetime:
    return datetime.now(UTC)


# Time.


def test_the_brokers_clock_is_told_to_the_millisecond_and_never_ahead(world: World) -> None:
    for _ in range(20):
        before = now()
        told = world.look.clock()
        assert before - MILLISECOND <= told <= now()


def test_the_time_at_an_offset_is_that_of_its_message_and_past_the_end_that_of_the_look(
    world: World,
) -> None:
    topic = world.made(2)
    instants = [now()]
    for _ in range(3):
        world.send(topic)
        instants.append(now())
    for offset in range(3):
        [(queue, told)] = world.look.passed_until(topic, {0: offset}).items()
        assert queue == 0 and instants[offset] - MILLISECOND <= told <= instants[offset + 1]
    before = now()
    told_of = world.look.passed_until(topic, {0: 3, 1: 0})
    assert all(before - MILLISECOND <= told <= now() for told in told_of.values())
    with pytest.raises(BrokerUnavailable, match="no queue 2"):
        world.look.passed_until(topic, {2: 0})


def test_looks_within_a_second_share_a_time_that_is_never_later_than_what_is_passed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.made(1)
    monkeypatch.setattr("backstop.brokers.rocketmq.inspect.schedule.SHARED_SECONDS", 3600.0)
    [first] = world.look.progress(topic, f"g-{topic}")
    world.send(topic, 1)
    [second] = world.look.progress(topic, f"g-{topic}")
    assert second.passed_until == first.passed_until, "older than the message, which is not passed"
    world.commit(f"g-{topic}", topic, 0, 1)
    [third] = world.look.progress(topic, f"g-{topic}")
    assert (third.next_offset, third.passed_until) == (1, first.passed_until)
    monkeypatch.setattr("backstop.brokers.rocketmq.inspect.schedule.SHARED_SECONDS", -1.0)
    [last] = world.look.progress(topic, f"g-{topic}")
    assert last.passed_until > first.passed_until


def test_more_messages_than_one_page_of_pulls_are_looked_up_each_for_its_own_queue(
    world: World,
) -> None:
    topic = world.made(120)
    for queue in range(120):
        world.store(topic, queue)
    world.until(lambda: world.end(topic, 119))
    told = world.look.passed_until(topic, dict.fromkeys(range(120), 0))
    stored = [told[queue] for queue in range(120)]
    assert stored == sorted(stored) and len(set(stored)) > 20, (
        "each has the time of its own message"
    )


# Progress.


def test_a_queue_that_a_group_never_committed_is_passed_only_if_nothing_was_ever_stored(
    world: World,
) -> None:
    topic = world.made(2)
    before = now()
    world.send(topic, 2, queue=1)
    empty, filled = world.look.progress(topic, f"g-{topic}")
    assert (empty.next_offset, filled.next_offset) == (0, 0)
    assert (empty.epoch, filled.epoch) == (EPOCH, EPOCH)
    assert filled.passed_until < empty.passed_until, (
        "the one is passed up to now, the other up to its first message"
    )
    assert before - MILLISECOND <= filled.passed_until


def test_progress_is_what_was_committed_even_when_it_goes_back(world: World) -> None:
    topic = world.made(1, "g", "other")
    sent = world.send(topic, 5)
    assert [offset for _, offset in sent] == [0, 1, 2, 3, 4]
    for offset in (3, 5, 1, 0):
        world.commit(f"g-{topic}", topic, 0, offset)
        assert world.at(topic) == [(0, offset)]
        [position] = world.look.progress(topic, f"g-{topic}")
        if offset < 5:
            assert position.passed_until == world.look.passed_until(topic, {0: offset})[0]
        else:
            assert position.passed_until > world.look.passed_until(topic, {0: 4})[0]
    assert world.at(topic, "other") == [(0, 0)], "groups do not know of each other"


def test_offsets_reset_by_an_operator_past_messages_are_the_progress(
    world: World, java: JavaPeer
) -> None:
    topic = world.made(1)
    world.send(topic, 5)
    world.commit(f"g-{topic}", topic, 0, 1)
    java.reset(f"g-{topic}", topic, 0, 4)
    assert world.at(topic) == [(0, 4)]
    assert java.committed(f"g-{topic}", topic) == {("broker-a", 0): 4}


def test_a_topic_made_again_begins_a_new_life_and_an_older_commit_says_nothing_about_it(
    world: World,
) -> None:
    topic = world.made(1)
    world.send(topic, 3)
    world.commit(f"g-{topic}", topic, 0, 3)
    [before] = world.look.queues(topic)
    world.server.delete_topic(topic)
    with pytest.raises(BrokerUnavailable, match="no such topic"):
        world.look.queues(topic)
    world.server.create_topic(topic, 1)
    world.send(topic, 2)
    world.commit(f"g-{topic}", topic, 0, 3)  # a consumer that still has its old offset
    [after] = world.look.queues(topic)
    assert (before.next_offset, after.next_offset) == (3, 2)
    assert present_epoch(after.epoch, after.next_offset, before.epoch, before.next_offset) == (
        f"{EPOCH}~1",
        False,
    )
    [position] = world.look.progress(topic, f"g-{topic}")
    assert position.next_offset == 0
    assert position.passed_until == world.look.passed_until(topic, {0: 0})[0]


def test_a_group_passes_what_its_filter_leaves_out(world: World, java: JavaPeer) -> None:
    topic = world.made(1)
    world.send(topic, 3, tags="b")
    consumer = java.consume(f"g-{topic}", {topic: "a"})
    world.send(topic, 1, tags="a")
    consumer.wait_until("the message with its tag", lambda c: c.done)
    world.send(topic, 3, tags="b")
    # The client goes on after its listener has returned, and commits every fifth of a second.
    world.until(lambda: world.at(topic) in ([(0, 4)], [(0, 7)]))
    consumer.close()
    assert [seen.tags for seen in consumer.done] == ["a"]
    assert world.at(topic) in ([(0, 4)], [(0, 7)])


def test_a_delayed_message_is_in_its_topic_only_when_it_is_due_and_is_no_retry(
    world: World,
) -> None:
    topic = world.made(1)
    sent = time.monotonic()
    world.send(topic, 1, level=4)
    there = [(q.first_offset, q.next_offset) for q in world.look.queues(topic)]
    assert there == [(0, 0)] or time.monotonic() - sent > 1.9, "it is due after 2 s"
    assert world.retries.pending(topic, f"g-{topic}") == 0
    world.until(lambda: world.look.queues(topic)[0].next_offset == 1)


def test_nothing_counts_as_passed_after_a_delayed_message_is_due_and_not_delivered(
    world: World,
) -> None:
    topic, before = world.made(1), now()
    world.send(topic, 1, level=10)
    # To the hasty one it was due when it was stored.
    began = now()
    [told] = world.look.progress(topic, f"g-{topic}")
    assert told.passed_until >= began - timedelta(seconds=5)
    other = world.made(1)
    late = world.hasty.progress(topic, f"g-{topic}")[0].passed_until
    assert before - MILLISECOND <= late <= now()
    world.send(other, 1)
    assert world.hasty.progress(topic, f"g-{topic}")[0].passed_until == late, (
        "it stays there until it is delivered"
    )
    assert world.hasty.passed_until(topic, {0: 0}) == {0: late}
    assert world.hasty.delivered_until(topic) == late
    assert world.hasty.delivered_until(other) > late
    assert world.hasty.progress(other, f"g-{other}")[0].passed_until > late, "it is of one topic"


def test_a_group_that_pops_is_passed_at_receipt_and_what_it_fails_waits_in_its_retry_topic(
    world: World, java: JavaPeer
) -> None:
    topic = world.made(1)
    world.send(topic, 1)
    consumer = java.consume(f"g-{topic}", topic, mode="pop", hold=True, invisible_ms=10_000)
    consumer.wait_until("the message", lambda c: c.begun)
    world.until(lambda: world.at(topic) == [(0, 1)])
    assert not consumer.ended, (
        "passed, and nobody has done it: which is why such a group is declared `received`"
    )


# What is not there.


def test_what_is_not_there_is_not_nothing_and_is_not_made_by_looking(tmp_path: Path) -> None:
    with RocketMQ(
        tmp_path, settings={"autoCreateSubscriptionGroup": "true", "autoCreateTopicEnable": "true"}
    ) as server:
        world = World(server)
        topic = world.made(1)
        for look in (
            lambda: world.look.queues("nowhere"),
            lambda: world.look.progress("nowhere", f"g-{topic}"),
            lambda: world.look.progress(topic, "nobody"),
            lambda: world.retries.pending("nowhere", f"g-{topic}"),
            lambda: world.look.passed_until("nowhere", {0: 0}),
            lambda: world.look.queues("x" * 200),
        ):
            with pytest.raises(BrokerUnavailable) as raised:
                look()
            assert raised.value.unaffected and raised.value.next_step
        assert world.retries.pending(topic, f"g-{topic}") == 0
        groups = json.loads(server.ask(201).body)["subscriptionGroupTable"]
        assert f"g-{topic}" in groups and "nobody" not in groups
        topics = json.loads(server.ask(21).body)["topicConfigTable"]
        assert not [
            name
            for name in topics
            if "nowhere" in name or "nobody" in name or name.startswith(f"%RETRY%g-{topic}_")
        ]
        world.close()


# Retries.


def test_what_failed_waits_while_it_is_scheduled_and_while_it_is_in_the_retry_topic(
    world: World,
) -> None:
    topic = world.made(1, "g", "other")
    group, retry = f"g-{topic}", f"%RETRY%g-{topic}"
    sent = world.send(topic, 3)
    world.commit(group, topic, 0, 3)
    assert world.retries.pending(topic, group) == 0
    for message_id, _ in sent:
        world.send_back(group, topic, message_id, 6)
    pending = world.retries.pending(topic, group)
    assert pending == 3 or (pending > 3 and world.end(retry)), (
        "they are scheduled, five seconds ahead; one that is just delivered may count twice"
    )
    assert world.retries.pending(topic, f"other-{topic}") == 0, "and for this group only"
    world.until(lambda: world.end(retry) == 3)
    assert world.retries.pending(topic, group) >= 3
    for done, left in ((1, 2), (3, 0)):
        world.commit(group, retry, 0, done)
        world.until(lambda left=left: world.retries.pending(topic, group) == left)


def test_a_message_that_goes_round_is_never_missed(world: World, java: JavaPeer) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    consumer = java.consume(group, topic, fail=-1)
    seen: list[int] = []
    stop = threading.Event()

    def keep_looking() -> None:
        mine = World(world.server)
        while not stop.is_set():
            seen.append(mine.retries.pending(topic, group))
        mine.close()

    world.send(topic, 1)
    consumer.wait_until("the first failure", lambda c: c.ended)
    world.until(lambda: world.retries.pending(topic, group))
    thread = threading.Thread(target=keep_looking)
    thread.start()
    consumer.wait_until("four failures", lambda c: len(c.ended) >= 4)
    stop.set()
    thread.join(WAIT)
    assert not thread.is_alive()
    consumer.heal()  # after the last look: it went round during each of them
    consumer.wait_until("its success", lambda c: c.done)
    consumer.close()
    assert [one.retries for one, _ in consumer.ended] == list(range(len(consumer.ended)))
    assert len(seen) > 4 and 0 not in seen


def test_a_retry_of_a_popped_message_waits_too(world: World, java: JavaPeer) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    world.send(topic, 1)
    java.consume(
        group, topic, mode="pop", fail=-1, limit=1, invisible_ms=5_000, name=f"pop-{topic}"
    )
    world.until(lambda: world.retries.pending(topic, group) == 1)
    names = [
        name for name in json.loads(world.server.ask(21).body)["topicConfigTable"] if group in name
    ]
    assert any(name != f"%RETRY%{group}" and name.endswith(topic) for name in names), names


def test_what_could_not_be_read_of_the_schedule_counts_as_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.made(1)
    monkeypatch.setattr("backstop.brokers.rocketmq.inspect.schedule.SCANNED", 0)
    mine = World(world.server)
    world.send(topic, 4, level=7)
    assert mine.retries.pending(topic, f"g-{topic}") >= 4
    monkeypatch.setattr("backstop.brokers.rocketmq.inspect.schedule.SCANNED", 1000)
    assert mine.retries.pending(topic, f"g-{topic}") == 0, (
        "read now: they are for the topic, and no retries"
    )
    mine.close()


def named(message_id: str) -> str:
    return f"backstop-message-id\x01{message_id}\x02"


def test_what_failed_is_listed_by_id_wherever_it_is(world: World) -> None:
    topic = world.made(1, "g", "other")
    group, retry = f"g-{topic}", f"%RETRY%g-{topic}"
    sent = [world.store(topic, 0, named(f"m-{number}")) for number in range(3)] + [
        world.store(topic, 0, "")
    ]
    world.until(lambda: world.end(topic) == 4)
    assert world.retries.listed(topic, group, None).ids == frozenset()
    for message_id, _ in (*sent[:2], sent[3]):
        world.send_back(group, topic, message_id, 6)
    assert world.retries.listed(topic, group, None).ids == {"m-0", "m-1"}, (
        "scheduled; one without an id is nobody's"
    )
    assert world.retries.listed(topic, f"other-{topic}", None).ids == frozenset()
    world.until(lambda: world.end(retry) == 3)
    there = world.retries.listed(topic, group, None)
    assert (there.ids, there.count >= 3) == ({"m-0", "m-1"}, True)
    world.commit(group, retry, 0, 3)
    world.until(lambda: world.retries.listed(topic, group, None).places != there.places)
    after = world.retries.listed(topic, group, None)
    assert (after.ids, after.count) == (frozenset(), 0)
    assert world.retries.listed(topic, group, there.places).ids == {"m-0", "m-1"}, (
        "as it was when they were not committed"
    )
    assert world.retries.listed(topic, group, {}).ids == {"m-0", "m-1"}, (
        "from the beginning, where no place is known"
    )
    beyond = dict.fromkeys(there.places, 1_000)
    assert world.retries.listed(topic, group, beyond).ids == {"m-0", "m-1"}, (
        "a place beyond the end is of another life"
    )


def test_an_id_that_no_stub_can_have_is_left_out_and_stops_nothing(world: World) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    odd = "backstop-headers\x01" + json.dumps({"backstop-message-id": "\ud800"}) + "\x02"
    for properties in (odd, named("m")):
        message_id, _ = world.store(topic, 0, properties)
        world.until(lambda: world.end(topic))
        world.send_back(group, topic, message_id, 3)
    world.until(lambda: world.end(f"%RETRY%{group}") == 2)
    assert world.retries.listed(topic, group, None).ids == {"m"}


@pytest.mark.parametrize("missing", ["its id", "its topic too"])
def test_beside_a_message_that_is_cut_off_nothing_is_listed_by_id(
    world: World, missing: str
) -> None:
    """It may be any message of ours: what a killed broker did not write is NUL."""
    topic = world.made(1)
    group = f"g-{topic}"
    retry = f"%RETRY%{group}"
    message_id, _ = world.store(topic, 0, named("m"))
    world.until(lambda: world.end(topic))
    world.send_back(group, topic, message_id, 3)
    world.until(lambda: world.end(retry) == 1)
    assert world.retries.listed(topic, group, None).ids == {"m"}
    if missing == "its id":
        world.store(retry, 0, "RETRY_TOPIC\x01t\x02backstop-mess\x01\0\0\x02")
        world.until(lambda: world.end(retry) == 2)
        cut_off = world.retries.listed(topic, group, None)
        assert (cut_off.ids, cut_off.count) == (None, 2)
        world.commit(group, retry, 0, 2)
    else:
        elsewhere = world.made(1)
        for _ in range(10):  # it is delivered after 2 s: a slow look comes too late
            world.store(elsewhere, 0, "DELAY\x015\x02backstop-mess\x01\0\0\x02")
            cut_off = world.retries.listed(topic, group, None)
            if cut_off.ids is None:
                break
        assert (cut_off.ids, cut_off.count) == (None, 2)
    world.until(lambda: world.retries.listed(topic, group, None).ids is not None)


def test_a_delayed_message_of_the_topic_is_listed_for_each_of_its_groups(world: World) -> None:
    topic = world.made(1)
    world.store(topic, 0, f"{named('later')}DELAY\x019\x02")
    world.until(lambda: world.retries.listed(topic, f"g-{topic}", None).ids == {"later"})
    assert world.retries.listed(topic, f"g-{topic}", None).count == 0, "and it is no retry"


@pytest.mark.parametrize("limit", ["LISTED", "LISTED_BYTES"])
def test_more_than_may_be_read_is_not_listed_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    message_id, _ = world.store(topic, 0, named("m"), b"x" * 4000)
    world.until(lambda: world.end(topic) == 1)
    for _ in range(2):
        world.send_back(group, topic, message_id, 3)
    world.until(lambda: world.end(f"%RETRY%{group}") == 2)
    assert world.retries.listed(topic, group, None).ids == {"m"}
    monkeypatch.setattr(f"backstop.brokers.rocketmq.inspect.retries.{limit}", 1)
    seen = world.retries.listed(topic, group, None)
    assert (seen.ids, seen.count) == (None, 2)


def test_a_message_that_goes_round_is_never_missing_from_the_list(
    world: World, java: JavaPeer
) -> None:
    topic = world.made(1)
    group = f"g-{topic}"
    consumer = java.consume(group, topic, fail=-1)
    seen: list[bool] = []
    stop = threading.Event()

    def keep_looking() -> None:
        mine = World(world.server)
        while not stop.is_set():
            seen.append("round" in (mine.retries.listed(topic, group, None).ids or ()))
        mine.close()

    world.store(topic, 0, named("round"))
    consumer.wait_until("the first failure", lambda c: c.ended)
    world.until(lambda: world.retries.listed(topic, group, None).ids)
    thread = threading.Thread(target=keep_looking)
    thread.start()
    consumer.wait_until("four failures", lambda c: len(c.ended) >= 4)
    stop.set()
    thread.join(WAIT)
    assert not thread.is_alive()
    consumer.heal()  # after the last look: it went round during each of them
    consumer.wait_until("its success", lambda c: c.done)
    consumer.close()
    assert len(seen) > 4 and all(seen)


def waiting(world: World, level: int) -> str:
    """A topic whose group g has the message m waiting for another delivery."""
    topic = world.made(1, "g", "other")
    message_id, _ = world.store(topic, 0, named("m"))
    world.until(lambda: world.end(topic) == 1)
    world.send_back(f"g-{topic}", topic, message_id, level)
    return topic


def test_one_look_at_the_schedule_lists_the_retries_of_many_groups(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, scheduled, empty = waiting(world, 3), waiting(world, 12), world.made(1, "g", "other")
    world.until(lambda: world.end(f"%RETRY%g-{there}") == 1)
    wanted = {
        (topic, f"{group}-{topic}"): None
        for topic in (there, scheduled, empty)
        for group in ("g", "other")
    }
    reads = []
    read = world.schedule.read
    monkeypatch.setattr(
        world.schedule, "read", lambda *given, **more: reads.append(1) or read(*given, **more)
    )
    found = world.retries.listed_together(wanted)
    assert len(reads) == 1
    assert {pair for pair, one in found.items() if one.ids == {"m"}} == {
        (there, f"g-{there}"),
        (scheduled, f"g-{scheduled}"),
    }
    assert found == {pair: world.retries.listed(*pair, None) for pair in wanted}


def test_what_fails_again_while_many_groups_are_looked_at_is_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups' places are read before the schedule: after it, a consumer takes the message and it fails again."""
    topics = [waiting(world, 3) for _ in range(2)]
    for topic in topics:
        world.until(lambda topic=topic: world.end(f"%RETRY%g-{topic}") == 1)
    read = world.schedule.read

    def read_and_fail_again(*given: Any, **more: Any) -> int:
        left = read(*given, **more)
        for topic in topics:
            group, retry = f"g-{topic}", f"%RETRY%g-{topic}"
            message_id, _ = world.store(topic, 0, named("m"))
            world.send_back(group, topic, message_id, 12)
            world.commit(group, retry, 0, 1)
        return left

    monkeypatch.setattr(world.schedule, "read", read_and_fail_again)
    found = world.retries.listed_together({(topic, f"g-{topic}"): None for topic in topics})
    assert [one.ids for one in found.values()] == [{"m"}, {"m"}]


def test_one_topic_that_is_not_there_leaves_a_look_at_many_groups_without_an_answer(
    world: World,
) -> None:
    topic = waiting(world, 12)
    pairs = {(topic, f"g-{topic}"): None, ("nowhere", f"g-{topic}"): None}
    with pytest.raises(BrokerUnavailable, match="and 1 others: there is no such topic"):
        world.retries.listed_together(pairs)


# Faults.


def test_files_removed_before_consumption_are_seen_as_a_first_offset_above_the_group(
    tmp_path: Path,
) -> None:
    with RocketMQ(tmp_path, settings=RETENTION_AT_ONCE) as server:
        world = World(server)
        topic = world.made(1, "g", "never")
        world.send(topic, 2)
        world.commit(f"g-{topic}", topic, 0, 1)
        oldest = world.look.passed_until(topic, {0: 1})[0]
        world.send(topic, 9, size=250_000)
        begun = time.monotonic()
        world.until(
            lambda: (server.delete_expired_files(), world.look.queues(topic)[0].first_offset)[1],
            seconds=120.0,
        )
        print(f"removed after {time.monotonic() - begun:.1f} s")
        [queue] = world.look.queues(topic)
        assert queue.first_offset is not None and 2 <= queue.first_offset < queue.next_offset == 11
        assert world.at(topic) == [(0, 1)], "what it committed stays what it is"
        told = world.look.passed_until(topic, {0: queue.first_offset})[0]
        [position] = world.look.progress(topic, f"g-{topic}")
        assert position.passed_until == told > oldest, (
            "nothing that is still there was stored before"
        )
        # The broker goes on removing files.
        world.until(
            lambda: world.at(topic, "never") == [(0, world.look.queues(topic)[0].first_offset)]
        )
        world.close()


def test_a_master_that_is_away_or_comes_back_with_older_offsets(tmp_path: Path) -> None:
    with RocketMQ(tmp_path, settings={"flushConsumerOffsetInterval": "10000"}) as server:
        world = World(server)
        topic = world.made(1)
        world.send(topic, 3)
        world.commit(f"g-{topic}", topic, 0, 1)
        looks: list[Callable[[], Any]] = [
            world.look.clock,
            lambda: world.look.queues(topic),
            lambda: world.at(topic),
            lambda: world.look.passed_until(topic, {0: 0}),
            lambda: world.retries.pending(topic, f"g-{topic}"),
        ]
        for look in looks:
            look()
        server.kill_namesrv()
        for look in looks:
            with pytest.raises(BrokerUnavailable):
                look()
        server.restart_namesrv()
        assert world.at(topic) == [(0, 1)]
        # It writes commits down every ten seconds: right after it has, there is time for one that it forgets.
        written = tmp_path / "store" / "config" / "consumerOffset.json"
        world.until(lambda: written.exists() and f"g-{topic}" in written.read_text())
        before = written.read_bytes()
        world.commit(f"g-{topic}", topic, 0, 3)
        assert world.at(topic) == [(0, 3)]
        server.kill_broker()
        written.write_bytes(before)  # on a slow machine it may have written the later one, too
        for look in looks:
            with pytest.raises(BrokerUnavailable):
                look()
        server.start()
        world.until(lambda: server.ask_namesrv(105, {"topic": topic}, ok=(0, 17)).code == 0)
        assert world.at(topic) == [(0, 1)], (
            "the later commit died with the broker: the group is behind"
        )
        assert [queue.next_offset for queue in world.look.queues(topic)] == [3]
        world.close()


def test_all_masters_count_and_one_that_is_away_is_not_left_out(tmp_path: Path) -> None:
    with (
        RocketMQ(tmp_path / "a") as first,
        RocketMQ(tmp_path / "b", name="broker-b", joins=first) as second,
    ):
        world = World(first, ["broker-a", "broker-b"])
        topic = world.made(2)
        second.create_topic(topic, 1)
        second.create_group(f"g-{topic}")
        world.until(lambda: len(world.look.queues(topic)) == 3)
        begun = world.look.clock()
        world.send(topic, 2, queue=1)
        world.send(topic, 3, server=second)
        world.commit(f"g-{topic}", topic, 0, 2, server=second)
        assert [(q.queue_id, q.next_offset) for q in world.look.queues(topic)] == [
            (0, 0),
            (1, 2),
            (10_000, 3),
        ]
        assert world.at(topic) == [(0, 0), (1, 0), (10_000, 2)]
        times = world.look.passed_until(topic, {1: 0, 10_000: 0})
        # By the clock of the broker that is behind, which a look knows to within the time that it takes itself.
        assert times.keys() == {1, 10_000}
        assert begun - timedelta(seconds=1) < min(times.values())
        assert max(times.values()) <= world.look.clock()
        alone = World(first)
        with pytest.raises(Exception, match="several brokers"):
            alone.look.queues(topic)
        both = {"broker-a", "broker-b"}
        assert world.look.servers(topic) == alone.look.servers(topic) == both
        second.kill_broker()
        for look in (lambda: world.look.queues(topic), lambda: world.at(topic), world.look.clock):
            with pytest.raises(BrokerUnavailable):
                look()
        # A name server that has forgotten it names a topic of two queues: they are not all.
        first.restart_namesrv()
        world.until(lambda: first.ask_namesrv(105, {"topic": topic}, ok=(0, 17)).code == 0)
        for look in (lambda: world.look.queues(topic), lambda: world.at(topic), world.look.clock):
            with pytest.raises(BrokerUnavailable, match="broker-b"):
                look()
        # Without the option the look is whole in itself: who calls it must remember that there were two.
        assert [(queue.queue_id, queue.next_offset) for queue in alone.look.queues(topic)] == [
            (0, 0),
            (1, 2),
        ]
        assert alone.look.servers(topic) == world.look.servers(topic) == {"broker-a"}
        alone.close()
        world.close()
