"""One consumer group over a real RocketMQ: shared, killed, restarted, moved. Nothing is skipped; what comes twice is counted."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.protocol import Received
from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.brokers.rocketmq.consumer import pull
from backstop.brokers.rocketmq.consumer.receive import RocketMQSubscription
from backstop.brokers.rocketmq.message.batch import write_batch
from backstop.client.read_headers import read_headers
from backstop.model.errors import BrokerUnavailable, ContractBroken
from backstop.model.records import Message, Outcome
from rocketmq_java import JavaPeer
from rocketmq_server import RETENTION_AT_ONCE
from rocketmq_server import RocketMQ as Server

pytestmark = pytest.mark.other_broker

NOTHING = timedelta(0)
SHORT = timedelta(milliseconds=100)
LIMIT = 3
PATIENCE = 90.0
"""Seconds that a condition may take on a busy machine."""
_numbers = count()


def connect(server: Server, **options: Any) -> RocketMQ:
    levels = server.settings["messageDelayLevel"]
    return RocketMQ(server.url(), **{"delivery_limit": LIMIT, "delay_levels": levels, **options})


class World:
    """A topic and a group of their own, on some server."""

    def __init__(self, server: Server, queues: int) -> None:
        number = next(_numbers)
        self.server, self.broker = server, connect(server)
        self.topic, self.group = f"orders-{os.getpid()}-{number}", f"billing-{os.getpid()}-{number}"
        self.broker.create_topic(self.topic, queues)
        self.broker.create_group(self.group, self.topic, at="start")

    def publish(self, number: int, start: int = 0, **fields: Any) -> list[str]:
        messages = [
            Message(self.topic, f"m-{i}", b"content %d" % i, **fields)
            for i in range(start, start + number)
        ]
        receipts = self.broker.publish(messages)
        assert {receipt.outcome for receipt in receipts} == {Outcome.SENT}, receipts
        return [message.message_id for message in messages]

    def subscribe(self, consumer: str = "c", **options: Any) -> RocketMQSubscription:
        return self.broker.subscribe(self.group, [self.topic], consumer, **options)

    def committed(self) -> dict[int, int]:
        return {
            one.queue_id: one.next_offset for one in self.broker.progress(self.topic, self.group)
        }

    def stored(self) -> int:
        return sum(queue.next_offset for queue in self.broker.queues(self.topic))

    def all_passed(self) -> bool:
        return sum(self.committed().values()) == self.stored()


@pytest.fixture
def world(shared_rocketmq: Server) -> Callable[[int], World]:
    return lambda queues: World(shared_rocketmq, queues)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "server") as server:
        yield server


def ids(received: list[Received]) -> list[str]:
    return [one.message.message_id for one in received]


def get(subscription: RocketMQSubscription, number: int, *, limit: int = 100) -> list[Received]:
    """So many messages; a broker that is away is waited for, as the consumer loop does."""
    found: list[Received] = []
    away: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < number:
        assert time.monotonic() < deadline, f"only {len(found)} of {number} came; {away[-3:]}"
        try:
            found += subscription.fetch(min(limit, number - len(found)), timedelta(seconds=1))
        except BrokerUnavailable as error:
            away.append(error.what)
            time.sleep(0.1)
    return found


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


class Worker(threading.Thread):
    """Takes, notes and acknowledges until it is told to leave."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(daemon=True)
        self.subscription, self.seen, self.leaving = (
            world.subscribe(name),
            Counter[str](),
            threading.Event(),
        )
        self.errors: list[BaseException] = []
        self.start()

    def run(self) -> None:
        try:
            while not self.leaving.is_set():
                got = self.subscription.fetch(5, SHORT)
                self.seen.update(ids(got))
                self.subscription.acknowledge(got)
            self.subscription.close()
        except BaseException as error:  # noqa: BLE001 - shown by whoever waits
            self.errors.append(error)

    def leave(self) -> None:
        self.leaving.set()
        self.join(PATIENCE)
        assert not self.is_alive() and not self.errors, self.errors


class TestSharing:
    def test_members_that_come_and_go_under_traffic_skip_nothing_and_repeat_nothing(
        self, world: Callable[[int], World]
    ) -> None:
        """Each finishes its batch in time, so that a queue changes hands between two batches."""
        its = world(4)
        workers = [Worker(its, "a")]
        sent = its.publish(100)
        until(lambda: workers[0].seen, "it has all of them")
        workers.append(Worker(its, "b"))
        workers.append(Worker(its, "c"))
        for start in range(100, 1_000, 50):
            sent += its.publish(50, start)
            if start == 600:
                until(lambda: workers[2].seen, "the third has a share")
                workers[2].leave()
        seen: Counter[str] = Counter()
        until(
            lambda: sum(sum(worker.seen.values()) for worker in workers) >= len(sent),
            "all of them came",
        )
        for worker in workers[:2]:
            worker.leave()
        for worker in workers:
            seen += worker.seen
        assert set(seen) == set(sent)
        assert sum(seen.values()) - len(sent) == 0
        assert its.all_passed()

    def test_a_java_consumer_in_the_group_has_its_share_and_nothing_is_left_to_nobody(
        self, world: Callable[[int], World], tmp_path: Path
    ) -> None:
        its = world(4)
        with JavaPeer(its.server, tmp_path) as peer:
            java = peer.consume(its.group, its.topic)
            ours = Worker(its, "ours")
            sent = its.publish(40)
            until(lambda: len(java.done) and sum(ours.seen.values()), "both have a share")
            sent += its.publish(200, 40)
            # As one of them learned of the other, the queues that changed hands may have been in hand.
            until(
                lambda: {one.keys for one in java.done} | set(ours.seen) == set(sent),
                "all of them came",
            )
            java_queues = {one.queue for one in java.done[-20:]}
            assert len(java_queues) <= 2, "two of four queues"
            java.close()
            sent += its.publish(100, 240)
            until(lambda: set(sent[240:]) <= set(ours.seen), "the rest came to us")
            ours.leave()
        assert its.all_passed()

    def test_one_that_is_dropped_without_being_closed_leaves_its_queues_to_the_others(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(2)
        sent = its.publish(6)
        first = its.subscribe("a")
        assert len(get(first, 6)) == 6
        del first
        assert sorted(ids(get(its.subscribe("b"), 6))) == sorted(sent)

    def test_a_consumer_that_works_long_stays_a_member_and_answers(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(1)
        its.publish(2)
        subscription = its.subscribe()
        get(subscription, 2)
        # Nothing is fetched from here on: only the thread beside it can answer.
        [holder] = until(
            lambda: [
                one for one in its.broker.holders(its.topic, its.group) if one.queue_id is not None
            ],
            "it answers",
        )
        assert (holder.queue_id, holder.locked) == (0, False)
        subscription.close()


CONSUMER = """
import json, random, sys
from datetime import timedelta
from backstop.brokers.rocketmq.adapter import RocketMQ
url, topic, group, seed = sys.argv[1:]
draw, open_ones = random.Random(int(seed)), []
subscription = RocketMQ(url).subscribe(group, [topic], "to be killed")
while True:
    open_ones += subscription.fetch(7, timedelta(milliseconds=200))
    draw.shuffle(open_ones)
    done, open_ones = open_ones[:5], open_ones[5:]
    for one in open_ones[:1]:
        subscription.hand_back(one, after=timedelta(milliseconds=draw.randrange(50)), counts=False)
        open_ones.remove(one)
    print(json.dumps([[one.position.queue_id, one.position.offset, one.message.message_id] for one in done]), flush=True)
    subscription.acknowledge(done)
"""


class TestDying:
    def test_the_committed_offset_never_passes_what_a_killed_consumer_had_not_acknowledged(
        self, world: Callable[[int], World]
    ) -> None:
        """Killed in the middle of batches that are acknowledged out of order, three times; the rest comes to another one."""
        its = world(2)
        sent = its.publish(300)
        acknowledged: dict[tuple[int, int], str] = {}
        draw = random.Random(7)
        for seed in range(3):
            consumer = subprocess.Popen(
                [sys.executable, "-c", CONSUMER, its.server.url(), its.topic, its.group, str(seed)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert consumer.stdout is not None
            for _ in range(draw.randrange(3, 12)):
                acknowledged |= {
                    (queue, offset): name
                    for queue, offset, name in json.loads(consumer.stdout.readline())
                }
            consumer.kill()
            rest, _ = consumer.communicate()
            # Written before it was acknowledged: what is not here was not.
            for line in rest.splitlines(keepends=True):
                if line.endswith("\n"):
                    acknowledged |= {
                        (queue, offset): name for queue, offset, name in json.loads(line)
                    }
            for queue, committed in its.committed().items():
                assert {(queue, offset) for offset in range(committed)} <= set(acknowledged)
        came: set[str] = set()
        with its.subscribe("the heir") as heir:
            left = set(sent) - set(acknowledged.values())
            while not left <= came:
                got = get(heir, 1)
                came |= set(ids(got))
                heir.acknowledge(got)
            until(
                lambda: heir.acknowledge(heir.fetch(100, SHORT)) or its.all_passed(), "all passed"
            )

    def test_a_broker_killed_and_a_name_server_restarted_under_a_consumer_skip_nothing(
        self, own: Server
    ) -> None:
        its = World(own, 2)
        subscription = its.subscribe()
        sent = its.publish(20)
        first = get(subscription, 20)
        subscription.acknowledge(first[:10])

        own.kill_namesrv()
        own.restart_namesrv()
        sent += its.publish(10, 20)
        second = get(subscription, 10)
        assert not set(ids(first)) & set(ids(second)), "a name server that is away stops nobody"

        own.kill_broker()
        with pytest.raises(BrokerUnavailable):
            for _ in range(100):
                subscription.fetch(1, SHORT)
        with pytest.raises(BrokerUnavailable):
            subscription.acknowledge(second)
        with pytest.raises(BrokerUnavailable):
            subscription.hand_back(second[0], after=NOTHING, counts=True)
        own.start()
        its.broker.close()
        its.broker = connect(own)
        sent += its.publish(5, 30)
        came: Counter[str] = Counter()
        while not set(sent) - set(ids(first[:10])) <= set(came):
            got = get(subscription, 1)
            came.update(ids(got))
            subscription.acknowledge(got)
        assert max(came.values()) == 1
        until(
            lambda: subscription.acknowledge(subscription.fetch(100, SHORT)) or its.all_passed(),
            "all passed",
        )


class TestMoving:
    def test_offsets_that_somebody_sets_are_followed_and_what_was_in_hand_is_nobodys(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(1)
        its.publish(6)
        subscription = its.subscribe()
        held = get(subscription, 4)
        reset = {
            "group": its.group,
            "topic": its.topic,
            "queueId": 0,
            "timestamp": -1,
            "isForce": True,
        }
        its.server.ask(222, {**reset, "offset": 1})
        assert ids(get(subscription, 2)) == ["m-1", "m-2"], "back"
        subscription.acknowledge(held)
        assert its.committed() == {0: 1}, "an acknowledgement from before the move moves nothing"
        its.server.ask(222, {**reset, "offset": 5})
        assert ids(get(subscription, 1)) == ["m-5"], "and past messages"
        assert its.committed() == {0: 5}

    def test_an_offset_committed_by_hand_is_noticed_when_the_queues_are_shared_anew(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(1)
        its.publish(6)
        subscription = its.subscribe("a")
        subscription.acknowledge(get(subscription, 6))
        assert subscription.fetch(1, SHORT) == []  # a pull from behind the last one is on its way
        its.server.ask(
            15, {"consumerGroup": its.group, "topic": its.topic, "queueId": 0, "commitOffset": 2}
        )
        other = its.subscribe("b")  # the broker tells the first one of it
        other.fetch(1, SHORT)
        came: list[str] = []
        until(
            lambda: (
                came.extend(ids(subscription.fetch(9, SHORT) + other.fetch(9, SHORT)))
                or len(came) >= 4
            ),
            "they come again",
        )
        assert came == ["m-2", "m-3", "m-4", "m-5"]

    def test_a_queue_that_begins_above_the_committed_offset_is_read_from_there(
        self, tmp_path: Path
    ) -> None:
        with Server(tmp_path / "server", settings=RETENTION_AT_ONCE) as server:
            its = World(server, 1)
            large = [Message(its.topic, f"m-{i}", os.urandom(100_000)) for i in range(40)]
            for start in range(0, 40, 10):
                assert {
                    receipt.outcome for receipt in its.broker.publish(large[start : start + 10])
                } == {Outcome.SENT}

            def first_offset() -> int:
                server.delete_expired_files()
                return its.broker.queues(its.topic)[0].first_offset or 0

            first = until(first_offset, "files were removed")
            subscription = its.subscribe()
            got = get(subscription, 1)
            assert got[0].position is not None and got[0].position.offset >= first > 0
            subscription.acknowledge(got)
            until(
                lambda: subscription.fetch(1, SHORT) and its.committed()[0] > first,
                "the place is told",
            )
            subscription.close()


class TestHandingBack:
    def test_a_failed_message_comes_again_with_its_first_position_and_its_count_until_it_is_dead(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(2)
        [receipt] = its.broker.publish(
            [Message(its.topic, "poison", b"x", {"a": "b"}, tag="t", partition_key="k")]
        )
        its.publish(3)
        subscription = its.subscribe()
        got = {one.message.message_id: one for one in get(subscription, 4)}
        first = poison = got.pop("poison")
        assert (first.message.headers["a"], first.message.tag, first.message.partition_key) == (
            "b",
            "t",
            "k",
        )
        subscription.acknowledge(list(got.values()))
        for deliveries in range(1, LIMIT + 1):
            assert (poison.message, poison.position, poison.deliveries) == (
                first.message,
                receipt.position,
                deliveries,
            )
            subscription.hand_back(poison, after=NOTHING, counts=True)
            subscription.hand_back(poison, after=NOTHING, counts=True)
            if deliveries < LIMIT:
                assert its.broker.retry_pending(its.topic, its.group) >= 1
                [poison] = get(subscription, 1)
        assert subscription.fetch(1, timedelta(seconds=2)) == []
        [letter] = until(lambda: list(its.broker.dead_letters(its.group)), "its dead letter")
        assert (letter.message_id, letter.topic) == ("poison", its.topic)
        assert its.all_passed()
        until(lambda: its.broker.retry_pending(its.topic, its.group) == 0, "nothing waits any more")
        subscription.close()

    def test_a_message_that_is_cut_off_is_processed_by_nobody_and_buried_at_once(
        self, world: Callable[[int], World]
    ) -> None:
        """A batch is stored as it comes: here as a broker leaves one that was killed while it wrote the last message."""
        its = world(1)
        whole = 'backstop-message-id\x01m-1\x02backstop-groups\x01["other"]\x02'
        cut = [whole[:at] + "\0" * (len(whole) - at) for at in (22, 30)]
        body = write_batch(
            [
                ("backstop-message-id\x01m-0\x02", b"whole"),
                (cut[0], b"in its id"),
                (cut[1], b"behind it"),
            ]
        )
        its.server.ask(
            320,
            {
                "a": "tests",
                "b": its.topic,
                "c": "TBW102",
                "d": 4,
                "e": 0,
                "f": 0,
                "g": 1,
                "h": 0,
                "i": "",
                "j": 0,
                "k": False,
                "m": True,
            },
            body,
        )
        its.publish(1, 2)
        subscription = its.subscribe()
        first, in_its_id, behind_it, last = get(subscription, 4)
        assert ids([first, in_its_id, behind_it, last]) == ["m-0", "", "", "m-2"]
        for one in (in_its_id, behind_it):
            with pytest.raises(ContractBroken):
                read_headers(one)
            subscription.hand_back(one, after=NOTHING, counts=True)
        subscription.acknowledge([first, last])
        assert subscription.fetch(1, SHORT) == [] and its.all_passed()
        assert its.broker.retry_pending(its.topic, its.group) == 0, (
            "never again: without its headers it could pass for whole"
        )
        until(
            lambda: {ref.message_id for ref in its.broker.dead_letters(its.group)} == {None, "m-1"},
            "both are dead letters",
        )
        with its.broker.open_dead_letters(f"%DLQ%{its.group}") as reader:
            letters = {letter.content: letter for letter in reader.read(10)}
        assert {content: letter.message_id for content, letter in letters.items()} == {
            b"in its id": None,
            b"behind it": "m-1",
        }
        assert letters[b"in its id"].position == in_its_id.position and "cut off" in str(
            letters[b"in its id"].invalid
        )

    def test_while_origins_cannot_be_looked_up_what_comes_again_has_no_position_and_holds_up_nothing(
        self,
        world: Callable[[int], World],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        its = world(1)
        its.publish(1)
        subscription = its.subscribe()
        [failed] = get(subscription, 1)
        subscription.hand_back(failed, after=NOTHING, counts=True)

        def away(*_: object) -> None:
            raise BrokerUnavailable(
                "The master of the broker broker-b is away.", unaffected="", next_step=""
            )

        monkeypatch.setattr("backstop.brokers.rocketmq.routes.find_origins.Origins.find", away)
        until(
            lambda: its.broker.retry_pending(its.topic, its.group) == 1,
            "it waits in the retry topic",
        )
        its.publish(1, 1)
        came = {one.message.message_id: one for one in get(subscription, 2)}
        assert set(came) == {"m-0", "m-1"} and came["m-1"].position is not None
        assert (came["m-0"].position, came["m-0"].deliveries) == (None, 2)
        subscription.hand_back(came["m-0"], after=NOTHING, counts=True)
        [again] = get(subscription, 1)
        subscription.acknowledge([again, came["m-1"]])
        until(its.all_passed, "all passed")
        assert caplog.text.count("is away") == 1, "told once"

    def test_what_is_handed_back_uncounted_spends_nothing_and_is_not_passed(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(1)
        its.publish(3)
        subscription = its.subscribe()
        held, *others = get(subscription, 3)
        subscription.acknowledge(others)
        for _ in range(LIMIT + 2):
            begun = time.monotonic()
            subscription.hand_back(held, after=timedelta(milliseconds=200), counts=False)
            assert its.committed() == {0: 0}
            [held] = get(subscription, 1)
            assert time.monotonic() - begun >= 0.2
            assert (held.message.message_id, held.deliveries) == ("m-0", 1)
        assert (
            its.broker.retry_pending(its.topic, its.group) == 0
            and list(its.broker.dead_letters(its.group)) == []
        )
        subscription.acknowledge([held])
        assert its.committed() == {0: 3}
        subscription.close()

    def test_what_is_in_hand_of_one_queue_stops_no_other(
        self, world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        its = world(2)
        monkeypatch.setattr(pull, "MOST_IN_HAND", 40)
        its.publish(400)
        done: list[Received] = []
        held: list[Received] = []
        with its.subscribe() as subscription:

            def goes_on() -> bool:
                for one in subscription.fetch(10, SHORT):
                    (held if one.position and one.position.queue_id == 0 else done).append(one)
                subscription.acknowledge(done)
                return len(done) > 100 and len(held) >= 20

            until(goes_on, "the other queue's messages")
        assert len(held) < 100

    def test_a_copy_for_one_group_comes_without_a_position(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(1)
        subscription = its.subscribe()
        subscription.fetch(
            1, SHORT
        )  # the broker makes the retry topic when it hears of the first member
        copy = Message(its.topic, "again", b"x")
        until(
            lambda: its.broker.publish([copy], group=its.group)[0].outcome is Outcome.SENT,
            "it was sent",
        )
        [got] = get(subscription, 1)
        assert (got.message.topic, got.message.message_id, got.position, got.deliveries) == (
            its.topic,
            "again",
            None,
            1,
        )
        subscription.acknowledge([got])
        subscription.close()

    def test_what_another_broker_gave_is_refused(self, world: Callable[[int], World]) -> None:
        subscription = world(1).subscribe()
        with pytest.raises(ContractBroken):
            subscription.acknowledge([Received(Message("t", "m", b""), None, "0/1-0", 1)])


class TestWaiting:
    def test_a_wait_costs_next_to_nothing_and_ends_when_a_message_comes(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(8)
        subscription = its.subscribe()
        subscription.fetch(1, timedelta(seconds=2))  # joined, and every queue is empty
        spent = time.process_time()
        assert subscription.fetch(5, timedelta(seconds=5)) == []
        assert time.process_time() - spent < 1.0, "of 5 s"
        at: list[float] = []
        sender = threading.Timer(1.0, lambda: at.append(time.monotonic() if its.publish(1) else 0))
        sender.start()
        got = subscription.fetch(5, timedelta(seconds=PATIENCE))
        came = time.monotonic()
        sender.join()
        assert ids(got) == ["m-0"] and came - at[0] < 10.0
        subscription.close()

    def test_a_filter_leaves_out_other_tags_and_the_place_passes_them(
        self, world: Callable[[int], World]
    ) -> None:
        its = world(1)
        # "Aa" and "BB" have one hash, which is all that the broker compares.
        for place, tag in enumerate(["Aa", "BB", "other", None, "Aa", "other", "other"]):
            its.publish(1, place, tag=tag)
        subscription = its.subscribe(tags={its.topic: ["Aa"]})
        got = get(subscription, 2)
        assert ids(got) == ["m-0", "m-4"]
        subscription.acknowledge(got)
        until(
            lambda: subscription.fetch(1, SHORT) == [] and its.all_passed(),
            "what was left out is passed",
        )
        subscription.close()

    def test_a_broker_that_does_nothing_is_told_from_one_that_has_nothing(
        self, own: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("backstop.brokers.rocketmq.consumer.pull.SUSPEND_SECONDS", 1.0)
        monkeypatch.setattr("backstop.brokers.rocketmq.consumer.pull.LATE_SECONDS", 6.0)
        its = World(own, 1)
        its.broker = connect(own, answer_timeout=timedelta(seconds=5))
        subscription = its.subscribe()
        for _ in range(12):
            assert subscription.fetch(1, timedelta(seconds=1)) == [], (
                "pulls that the broker holds and gives back are no silence"
            )
        own.stall(namesrv=False)
        try:
            with pytest.raises(BrokerUnavailable):
                subscription.fetch(1, timedelta(seconds=60))
        finally:
            own.wake()


def test_a_place_beyond_the_queue_s_end_is_corrected_at_once_and_nothing_is_skipped(
    world: Callable[[int], World],
) -> None:
    its = world(1)
    its.publish(3)
    # As after a loss of the log's end: the group had committed what is not there any more.
    its.server.ask(
        15, {"consumerGroup": its.group, "topic": its.topic, "queueId": 0, "commitOffset": 50}
    )
    with its.subscribe() as consumer:
        assert consumer.fetch(10, SHORT) == []
        assert its.committed() == {0: 3}, "the broker knows where the group goes on"
        wanted = its.publish(3, start=3)
        received = get(consumer, 3)
        assert ids(received) == wanted
        consumer._share._rebalance_at = 0.0  # as every 20 s
        assert consumer.fetch(10, SHORT) == []
        consumer.acknowledge(received)
        assert its.committed() == {0: 6}


def test_a_message_in_the_topic_is_of_that_topic_whatever_its_properties_say(
    world: Callable[[int], World],
) -> None:
    its = world(1)
    properties = "backstop-message-id\x01m-0\x02RETRY_TOPIC\x01another\x02"
    its.server.ask(
        310,
        {
            "a": "tests",
            "b": its.topic,
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": 1,
            "h": 0,
            "i": properties,
            "j": 0,
            "k": False,
            "m": False,
        },
        b"x",
    )
    with its.subscribe() as consumer:
        [one] = get(consumer, 1)
        assert (one.message.topic, one.message.message_id) == (its.topic, "m-0")


def test_the_thread_beside_a_consumer_ends_with_it(world: Callable[[int], World]) -> None:
    its = world(1)
    subscription = its.subscribe()
    subscription.fetch(1, SHORT)
    name = f"alive-{its.group}"
    assert any(thread.name == name for thread in threading.enumerate())
    subscription.close()
    until(lambda: all(thread.name != name for thread in threading.enumerate()), "it ended")
