"""What every broker adapter must hold, on a real server.

Tests branch on capability flags only, never on a broker's name. Server faults are real ones: processes killed and stopped.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, count, repeat
from typing import Any, cast

import pytest

from backstop.brokers.protocol import (
    LETTER_PAGE_BYTES,
    Broker,
    DeadLetter,
    DeadLetterReader,
    DeadLetterRef,
    GroupPosition,
    Receipt,
    Received,
    Retries,
    RetryLister,
    Subscription,
)
from backstop.brokers.testing.server import (
    DELIVERY_LIMIT,
    SEND_TIMEOUT,
    VISIBILITY,
    ServerUnderTest,
)
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import ID_HEADER, Message, Outcome

Name = Callable[[str], str]
Receive = Callable[..., list[Received]]
InThread = Callable[[Callable[[], Any]], Callable[[], Any]]
SHORT = timedelta(milliseconds=50)
NOTHING = timedelta(0)
_numbers = count()


def messages(topic: str, number: int, start: int = 0, **fields: Any) -> list[Message]:
    return [
        Message(topic, f"m-{i}", b"content %d" % i, **fields) for i in range(start, start + number)
    ]


def ids(received: list[Received]) -> list[str]:
    return [one.message.message_id for one in received]


def all_passed(adapter: ServerUnderTest, topic: str, group: str, number: int) -> bool:
    """Whether the group is done with all of the topic's messages, by the offset or, without offsets, by the time."""
    before = adapter.broker.clock()
    positions = adapter.broker.progress(topic, group)
    if any(position.pending for position in positions):
        return False
    if adapter.broker.capabilities.has_offsets:
        return sum(position.next_offset for position in positions) == number
    return all(position.passed_until >= before for position in positions)


def fetch_all(
    subscription: Subscription, number: int, seconds: float = 60.0, limit: int = 100
) -> list[Received]:
    """Fetches until so many messages came or the time is over."""
    found: list[Received] = []
    deadline = time.monotonic() + seconds
    while len(found) < number and (left := deadline - time.monotonic()) > 0:
        found += subscription.fetch(limit, timedelta(seconds=min(left, 0.2)))
    return found


def dead_letters(adapter: ServerUnderTest, group: str, number: int) -> list[DeadLetterRef]:
    """The group's, once there are so many: a broker may show a message a moment after it has accepted it."""
    deadline = time.monotonic() + 60
    while len(found := list(adapter.broker.dead_letters(group))) < number:
        assert time.monotonic() < deadline, found
    return found


def connected(adapter: ServerUnderTest, topic: str) -> Broker:
    """A second client that has published into the topic: `m-0`."""
    client = adapter.another()
    deadline = time.monotonic() + 60
    while client.publish(messages(topic, 1))[0].outcome is not Outcome.SENT:
        assert time.monotonic() < deadline
    return client


class _Fixtures:
    """What the tests are given beside `adapter`."""

    @pytest.fixture
    def name(self) -> Name:
        """Names of topics and groups that no other test uses, with every character that could break a key."""
        number = next(_numbers)
        return lambda kind: f"{kind} {number}:100%{{Größe}} “x” 注文 'q' [a]*?"

    @pytest.fixture
    def topic(self, adapter: ServerUnderTest, name: Name) -> str:
        """A topic of one queue."""
        adapter.create_topic(name("topic"), 1)
        return name("topic")

    @pytest.fixture
    def group(self, adapter: ServerUnderTest, topic: str, name: Name) -> str:
        """A group of that topic, from its first message."""
        adapter.create_group(name("group"), topic)
        return name("group")

    @pytest.fixture
    def receive(self) -> Receive:
        return fetch_all

    @pytest.fixture
    def in_thread(self) -> Iterator[InThread]:
        """Runs a function in a thread; what is returned waits for it, and raises what it raised."""
        threads: list[threading.Thread] = []

        def begin(work: Callable[[], Any]) -> Callable[[], Any]:
            answer: list[Any] = []
            failure: list[BaseException] = []

            def run() -> None:
                try:
                    answer.append(work())
                except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
                    failure.append(error)

            thread = threading.Thread(target=run, daemon=True)
            threads.append(thread)
            thread.start()

            def wait() -> Any:
                thread.join(300)
                assert not thread.is_alive(), "the thread did not end within 300 s"
                if failure:
                    raise failure[0]
                return answer[0]

            return wait

        yield begin
        for thread in threads:
            thread.join(30)


class Publishing(_Fixtures):
    def test_every_message_gets_its_receipt_in_order(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        adapter.create_topic(name("topic"), 4)
        receipts = adapter.broker.publish(messages(name("topic"), 50))
        assert [r.outcome for r in receipts] == [Outcome.SENT] * 50
        if adapter.broker.capabilities.knows_queue_of_send:
            stored = adapter.stored(name("topic"))
            told = {
                (r.position.queue_id, r.position.offset): f"m-{i}"
                for i, r in enumerate(receipts)
                if r.position
            }
            assert told == stored
            assert len({queue for queue, _ in stored}) == 4, "every queue gets a share"

    def test_offsets_are_dense_and_in_order_under_two_publishers(
        self, adapter: ServerUnderTest, name: Name, in_thread: InThread
    ) -> None:
        if not adapter.broker.capabilities.has_offsets:
            return
        adapter.create_topic(name("topic"), 3)
        start = threading.Barrier(2)

        def publisher(who: str) -> Callable[[], list[tuple[str, int, int]]]:
            client = adapter.another()

            def run() -> list[tuple[str, int, int]]:
                start.wait()
                told: list[tuple[str, int, int]] = []
                for batch in range(20):
                    sent = [Message(name("topic"), f"{who}-{batch}-{i}", b"x") for i in range(30)]
                    for message, receipt in zip(sent, client.publish(sent), strict=True):
                        assert receipt.position is not None
                        told.append(
                            (message.message_id, receipt.position.queue_id, receipt.position.offset)
                        )
                return told

            return run

        waits = [in_thread(publisher("a")), in_thread(publisher("b"))]
        told = [wait() for wait in waits]
        stored = adapter.stored(name("topic"))
        assert {(queue, offset): i for one in told for i, queue, offset in one} == stored
        for queue in range(3):
            assert sorted(o for q, o in stored if q == queue) == list(
                range(sum(q == queue for q, _ in stored))
            )
            for one in told:
                mine = [offset for _, q, offset in one if q == queue]
                assert mine == sorted(mine), (
                    "a publisher's own messages keep their order in a queue"
                )
        switches = [stored[0, o][0] for o in range(sum(q == 0 for q, _ in stored))]
        assert len(set(switches)) == 2, "both published into the same queue"

    @pytest.mark.parametrize(
        ("message_id", "content"),
        [
            ("order:1%3A{x}", b"plain"),
            ("注文 “1” 'x' \\ \n\t\u2028 😀", "Größe".encode()),
            ("nul \x00 inside", b"\x00\x01\xff" * 100),
            ("large", bytes(range(256)) * 4096),
            ("empty", b""),
            ("x" * 1000, b'{"json": "\\u0000"}'),
        ],
        ids=["separators", "unicode", "nul", "1 MB", "empty", "long id"],
    )
    def test_a_message_comes_back_as_it_was_sent(
        self,
        adapter: ServerUnderTest,
        topic: str,
        group: str,
        receive: Receive,
        message_id: str,
        content: bytes,
    ) -> None:
        headers = {"plain": "a", "quote's": '"; -- \\', "Ü:%{}": "注文 😀\x00\n", "empty": ""}
        sent = Message(topic, message_id, content, headers, tag="tag:% “ü”", partition_key="key é")
        [receipt] = adapter.broker.publish([sent])
        assert receipt.outcome is Outcome.SENT, receipt.error
        [got] = receive(adapter.subscribe(group, [topic], "c1"), 1)
        assert (got.message.topic, got.message.message_id, got.message.content) == (
            topic,
            message_id,
            content,
        )
        assert got.message.headers == {**headers, ID_HEADER: message_id}
        assert (got.message.tag, got.message.partition_key) == ("tag:% “ü”", "key é")
        assert got.deliveries == 1
        if adapter.broker.capabilities.knows_queue_of_send:
            assert got.position == receipt.position

    def test_absent_tag_and_key_are_not_empty_ones(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        adapter.broker.publish(
            [Message(topic, "none", b""), Message(topic, "empty", b"", tag="", partition_key="")]
        )
        got = {
            one.message.message_id: one.message
            for one in receive(adapter.subscribe(group, [topic], "c1"), 2)
        }
        assert (got["none"].tag, got["none"].partition_key) == (None, None)
        assert (got["empty"].tag, got["empty"].partition_key) == ("", "")

    def test_a_key_decides_the_queue_for_every_client(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        if not adapter.broker.capabilities.knows_queue_of_send:
            return
        adapter.create_topic(name("topic"), 8)
        keyed = [Message(name("topic"), f"m-{i}", b"", partition_key="one key") for i in range(10)]
        receipts = adapter.broker.publish(keyed[:5]) + adapter.another().publish(keyed[5:])
        assert len({r.position.queue_id for r in receipts if r.position}) == 1
        once, again = (
            client.publish([Message(name("topic"), "same id", b"")])
            for client in (adapter.broker,) * 2
        )
        assert once[0].position and again[0].position
        assert once[0].position.queue_id == again[0].position.queue_id

    def test_an_unknown_topic_is_refused_for_good_and_the_rest_of_the_batch_is_sent(
        self, adapter: ServerUnderTest, topic: str, name: Name
    ) -> None:
        batch = [
            Message(topic, "a", b""),
            Message(name("no such topic"), "b", b""),
            Message(topic, "c", b""),
        ]
        receipts = adapter.broker.publish(batch)
        assert [r.outcome for r in receipts] == [Outcome.SENT, Outcome.REFUSED, Outcome.SENT]
        assert receipts[1].refused_for_good and receipts[1].error
        assert sorted(adapter.stored(topic).values()) == ["a", "c"]

    def test_a_topic_that_was_deleted_is_refused_for_good(
        self, adapter: ServerUnderTest, topic: str
    ) -> None:
        client = adapter.another()
        assert client.publish(messages(topic, 1))[0].outcome is Outcome.SENT
        adapter.delete_topic(topic)
        [receipt] = client.publish(messages(topic, 1))
        assert (receipt.outcome, receipt.refused_for_good) == (Outcome.REFUSED, True)

    def test_a_message_too_large_for_its_topic_is_refused_for_good(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        adapter.create_topic(name("topic"), 1, max_message_bytes=500)
        small, large = (
            Message(name("topic"), "s", b"x" * 300),
            Message(name("topic"), "l", b"x" * 501),
        )
        receipts = adapter.broker.publish([small, large, small])
        assert [r.outcome for r in receipts] == [Outcome.SENT, Outcome.REFUSED, Outcome.SENT]
        assert [r.refused_for_good for r in receipts] == [False, True, False]
        assert list(adapter.stored(name("topic")).values()) == ["s", "s"]

    def test_what_the_server_does_not_allow_is_refused_and_not_stored(
        self, adapter: ServerUnderTest, topic: str
    ) -> None:
        with adapter.refusing(topic) as limited:
            receipts = limited.publish(messages(topic, 3))
            assert [(r.outcome, r.refused_for_good) for r in receipts] == [
                (Outcome.REFUSED, False)
            ] * 3
            assert "secret-of-limited" not in str(receipts)
        assert adapter.stored(topic) == {}

    def test_a_message_that_breaks_the_contract_is_refused_for_good(
        self, adapter: ServerUnderTest, topic: str
    ) -> None:
        bad_header: Any = {"n": 1}
        batch = [
            Message(topic, "", b""),
            Message(topic, "\ud800", b""),
            Message(topic, "x", b"", bad_header),
        ]
        receipts = adapter.broker.publish([*batch, Message(topic, "good", b"")])
        assert [r.outcome for r in receipts] == [Outcome.REFUSED] * 3 + [Outcome.SENT]
        assert [r.refused_for_good for r in receipts] == [True, True, True, False]

    def test_a_copy_for_one_group_never_reaches_the_others(
        self, adapter: ServerUnderTest, topic: str, group: str, name: Name, receive: Receive
    ) -> None:
        adapter.create_group(name("other"), topic)
        [receipt] = adapter.broker.publish([Message(topic, "a", b"")], group=group)
        assert receive(adapter.subscribe(name("other"), [topic], "c1"), 1, 0.3) == []
        if adapter.broker.capabilities.has_retry_topic_per_group:
            assert ids(receive(adapter.subscribe(group, [topic], "c1"), 1)) == ["a"]
        else:
            assert receipt.outcome is Outcome.REFUSED

    def test_an_empty_batch_is_nothing(self, adapter: ServerUnderTest) -> None:
        assert adapter.broker.publish([]) == []


class FaultsOfTheServer(_Fixtures):
    def test_a_server_that_is_away_refuses(self, adapter: ServerUnderTest, name: Name) -> None:
        adapter.create_topic(name("topic"), 1)
        client, fresh = adapter.another(), adapter.another()
        assert client.publish(messages(name("topic"), 1))[0].outcome is Outcome.SENT
        adapter.kill()
        for one in (client, fresh):
            [receipt] = one.publish(messages(name("topic"), 1))
            assert (receipt.outcome, receipt.refused_for_good) == (Outcome.REFUSED, False), (
                receipt.error
            )
        adapter.start()
        assert client.publish(messages(name("topic"), 1))[0].outcome is Outcome.SENT

    def test_a_server_killed_before_it_answers_leaves_the_batch_unknown(
        self, adapter: ServerUnderTest, name: Name, in_thread: InThread
    ) -> None:
        adapter.create_topic(name("topic"), 2)
        for seconds in (0.3, 1.0, 1.5):
            client = connected(adapter, name("topic"))
            adapter.stall()
            batch = messages(name("topic"), 20, start=1)
            wait = in_thread(partial(client.publish, batch))
            time.sleep(seconds)  # the bytes are on their way; there is no sign of it to wait for
            adapter.kill()
            outcomes = [receipt.outcome for receipt in wait()]
            adapter.start()
            if set(outcomes) == {adapter.silence}:
                break
            # On a busy machine some bytes had not left yet: refused is right then, so it gets more time.
            assert set(outcomes) <= {Outcome.REFUSED, adapter.silence}
        assert outcomes == [adapter.silence] * 20
        if adapter.silence is Outcome.REFUSED:
            assert set(adapter.stored(name("topic")).values()) == {"m-0"}

    def test_a_server_that_does_not_answer_in_time_leaves_the_batch_unknown(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        adapter.create_topic(name("topic"), 2)
        in_time, took = SEND_TIMEOUT.total_seconds() + 1, list[float]()
        # A machine that stands still for a second makes one of them longer, but not all.
        while not took or (took[-1] >= in_time and len(took) < 5):
            client = connected(adapter, name("topic"))
            adapter.stall()
            begun = time.monotonic()
            receipts = client.publish(messages(name("topic"), 20, start=1))
            took.append(time.monotonic() - begun)
            adapter.wake()
            assert [r.outcome for r in receipts] == [adapter.silence] * 20
        assert took[-1] < in_time, took
        if adapter.silence is Outcome.REFUSED:
            adapter.broker.publish([Message(name("topic"), "after", b"")])
            stored = adapter.stored(name("topic")).values()
            assert [one for one in stored if one != "m-0"] == ["after"]

    def test_what_was_acknowledged_survives_a_kill_and_nothing_else_claims_to(
        self, adapter: ServerUnderTest, name: Name, in_thread: InThread
    ) -> None:
        adapter.create_topic(name("topic"), 3)
        sent: dict[str, Any] = {}
        running, over = threading.Event(), threading.Event()

        def publish_until_it_dies() -> None:
            client = adapter.another()
            for batch in range(10_000):
                some = messages(name("topic"), 100, start=batch * 100)
                receipts = client.publish(some)
                sent.update(zip((m.message_id for m in some), receipts, strict=True))
                if not running.is_set() and enough():
                    running.set()
                # A server that stands still makes an outcome unknown, too; the kill is still to come then.
                if over.is_set() and receipts[-1].outcome is not Outcome.SENT:
                    return

        def enough() -> bool:
            return sum(receipt.outcome is Outcome.SENT for receipt in sent.values()) > 1000

        wait = in_thread(publish_until_it_dies)
        assert running.wait(120)
        over.set()
        adapter.kill()
        wait()
        adapter.start()
        stored = adapter.stored(name("topic"))
        for message_id, receipt in sent.items():
            if receipt.outcome is Outcome.SENT and adapter.broker.capabilities.knows_queue_of_send:
                assert stored[receipt.position.queue_id, receipt.position.offset] == message_id
            elif receipt.outcome is Outcome.SENT:
                assert message_id in stored.values()
            elif receipt.outcome is Outcome.REFUSED:
                assert message_id not in stored.values()
        assert enough()
        if adapter.broker.capabilities.has_offsets:
            for queue in range(3):
                offsets = sorted(o for q, o in stored if q == queue)
                assert offsets == list(range(len(offsets)))
            [receipt] = adapter.broker.publish(messages(name("topic"), 1))
            assert (
                receipt.position
                and (receipt.position.queue_id, receipt.position.offset) not in stored
            )

    def test_every_look_raises_when_the_server_is_away(
        self, adapter: ServerUnderTest, name: Name, receive: Receive
    ) -> None:
        adapter.create_topic(name("topic"), 1)
        adapter.create_group(name("group"), name("topic"))
        subscription = adapter.subscribe(name("group"), [name("topic")], "c1")
        adapter.broker.publish(messages(name("topic"), 1))
        [got] = receive(subscription, 1)
        adapter.kill()
        broker = adapter.broker
        looks: list[Callable[[], Any]] = [
            broker.clock,
            lambda: broker.queues(name("topic")),
            lambda: broker.progress(name("topic"), name("group")),
            lambda: list(broker.dead_letters(name("group"))),
            lambda: broker.durability([name("topic")]),
            lambda: subscription.fetch(1, SHORT),
            lambda: subscription.acknowledge([got]),
            lambda: subscription.hand_back(got, after=SHORT, counts=True),
        ]
        for look in looks:
            with pytest.raises(BrokerUnavailable) as raised:
                look()
            assert raised.value.what and raised.value.unaffected and raised.value.next_step
        subscription.close()

    def test_what_a_consumer_held_at_a_crash_of_the_server_comes_again(
        self, adapter: ServerUnderTest, name: Name, receive: Receive
    ) -> None:
        adapter.create_topic(name("topic"), 1)
        adapter.create_group(name("group"), name("topic"))
        adapter.broker.publish(messages(name("topic"), 3))
        first = adapter.subscribe(name("group"), [name("topic")], "c1")
        held, waiting, done = receive(first, 3)
        first.hand_back(held, after=timedelta(seconds=1), counts=False)
        first.acknowledge([done])
        adapter.kill()
        adapter.start()
        second = adapter.subscribe(name("group"), [name("topic")], "c2")
        again = receive(second, 1)
        second.acknowledge(again)
        each = adapter.broker.capabilities.acknowledges_each
        left = (2 if each else 3) - len(again)
        came = ids(again + receive(second, max(left, 1), seconds=60.0 if left else 5.0))
        if not adapter.broker.capabilities.redelivers_to_any:
            came.sort(
                reverse=True
            )  # it was held by its consumer alone, and its delay died with that
        assert came == ids([waiting, held] if each else [done, waiting, held])


class Epochs(_Fixtures):
    def test_an_epoch_survives_a_restart_and_not_a_new_life(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        if not adapter.broker.capabilities.has_epochs:
            return

        def epochs() -> list[str]:
            return [queue.epoch for queue in adapter.another().queues(name("topic"))]

        adapter.create_topic(name("topic"), 2)
        first = epochs()
        [receipt] = adapter.broker.publish(messages(name("topic"), 1))
        assert receipt.position and receipt.position.epoch == first[receipt.position.queue_id]
        adapter.kill()
        adapter.start()
        adapter.create_topic(name("topic"), 2)
        assert epochs() == first, "a restart, and creating what is there, change nothing"
        adapter.delete_topic(name("topic"))
        adapter.create_topic(name("topic"), 2)
        second = epochs()
        adapter.wipe()
        adapter.create_topic(name("topic"), 2)
        third = epochs()
        assert len({*first, *second, *third}) == 6
        assert [queue.next_offset for queue in adapter.broker.queues(name("topic"))] == [0, 0]

    def test_an_acknowledgement_from_an_earlier_life_does_not_touch_the_new_one(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        if not adapter.broker.capabilities.has_epochs:
            return
        adapter.broker.publish([Message(topic, "old", b"")])
        old_consumer = adapter.subscribe(group, [topic], "old")
        old = receive(old_consumer, 1)
        adapter.delete_topic(topic)
        adapter.create_topic(topic, 1)
        adapter.create_group(group, topic)
        adapter.another().publish([Message(topic, "new", b"")])
        assert ids(receive(adapter.subscribe(group, [topic], "new"), 1)) == ["new"]
        old_consumer.acknowledge(old)
        old_consumer.hand_back(old[0], after=NOTHING, counts=True)
        [position] = adapter.broker.progress(topic, group)
        assert (position.next_offset, position.pending) == (0, 1)


class Looking(_Fixtures):
    def test_a_queue_that_never_stored_anything_counts_as_passed(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        adapter.create_topic(name("topic"), 3)
        adapter.create_group(name("group"), name("topic"))
        before = adapter.broker.clock()
        positions = adapter.broker.progress(name("topic"), name("group"))
        after = adapter.broker.clock()
        # Without offsets a group has one queue of the topic, whatever was asked for.
        assert [p.queue_id for p in positions] == (
            [0, 1, 2] if adapter.broker.capabilities.has_offsets else [0]
        )
        for position in positions:
            assert (position.next_offset, position.pending) == (0, 0)
            assert before <= position.passed_until <= after
        if adapter.broker.capabilities.has_first_and_next_offset:
            assert [
                (q.first_offset, q.next_offset) for q in adapter.broker.queues(name("topic"))
            ] == [(0, 0)] * 3

    def test_progress_is_the_lowest_message_not_acknowledged(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        if not adapter.broker.capabilities.has_offsets:
            return

        known = adapter.broker.capabilities.knows_pending

        def is_at(next_offset: int, pending: int) -> bool:
            [position] = adapter.broker.progress(topic, group)
            return (position.next_offset, position.pending) == (
                next_offset,
                pending if known else 0,
            )

        adapter.broker.publish(messages(topic, 5))
        assert is_at(0, 0)
        subscription = adapter.subscribe(group, [topic], "c1")
        got = receive(subscription, 5)
        assert is_at(0, 5)
        subscription.acknowledge(got[2:])
        assert is_at(0, 2), "acknowledged out of order: the lowest still holds it back"
        subscription.acknowledge([got[0]])
        assert is_at(1, 1)
        subscription.acknowledge([got[1], got[0]])
        assert is_at(5, 0), "and acknowledging twice is acknowledging once"
        adapter.broker.publish(messages(topic, 1))
        assert is_at(5, 0)

    def test_a_message_that_fails_again_and_again_is_listed_by_id_and_holds_back_nothing_else(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        """In the consumer's hands, on its way back, in its hands again: its id is told, or the group is not past it."""
        if not adapter.broker.capabilities.lists_retries:
            return
        adapter.broker.publish(
            [Message(topic, message_id, b"x") for message_id in ("poison", "a", "b")]
        )
        stored_by = adapter.broker.clock()

        def all_passed() -> bool:
            """Whether the group is past everything but what is listed; the failing one is always either."""
            live = adapter.broker.progress(topic, group)
            looks = [adapter.broker.list_retries(topic, group)]
            if adapter.broker.capabilities.lists_retries_together:
                pair = (topic, group)
                together = cast(RetryLister, adapter.broker).list_retries_together({pair: None})
                looks.append(together[pair])
            listed = [is_listed(live, seen) for seen in looks]
            return all(listed)

        def is_listed(live: Sequence[GroupPosition], seen: Retries) -> bool:
            assert seen.ids is not None and seen.ids <= {"poison", "a", "b"}
            at = live if seen.but_for_them is None else seen.but_for_them
            passed = all(position.passed_until > stored_by for position in at)
            assert "poison" in seen.ids or not passed
            return passed and seen.ids == {"poison"}

        def until(holds: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 60
            while not holds():
                assert time.monotonic() < deadline
                time.sleep(0.05)

        subscription = adapter.subscribe(group, [topic], "c1")
        got = {one.message.message_id: one for one in receive(subscription, 3)}
        all_passed()
        subscription.acknowledge([got["a"], got["b"]])
        all_passed()
        subscription.hand_back(got["poison"], after=NOTHING, counts=True)
        until(all_passed)
        [again] = receive(subscription, 1)
        until(all_passed)
        subscription.hand_back(again, after=NOTHING, counts=True)
        until(all_passed)
        [again] = receive(subscription, 1)
        subscription.acknowledge([again])
        until(lambda: adapter.broker.list_retries(topic, group).ids == frozenset())

    def test_progress_never_passes_a_message_that_is_not_acknowledged(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        """Received, handed back, held, redelivered, abandoned: until it is done or a dead letter. Or, where failures wait in
        a queue of their own, that queue has it."""
        adapter.broker.publish([Message(topic, "m", b"")])
        passes: list[bool] = []
        stored_by = adapter.broker.clock()

        def look() -> None:
            [position] = adapter.broker.progress(topic, group)
            waits = (
                adapter.broker.capabilities.has_retry_queues
                and adapter.broker.retry_pending(topic, group) > 0
            )
            passes.append(
                not waits and (position.next_offset > 0 or position.passed_until > stored_by)
            )

        first, second = (
            adapter.subscribe(group, [topic], "c1"),
            adapter.subscribe(group, [topic], "c2"),
        )
        [got] = receive(first, 1)
        look()
        first.hand_back(got, after=timedelta(milliseconds=300), counts=False)
        look()
        other = second if adapter.broker.capabilities.redelivers_to_any else first
        [got] = receive(other, 1)
        look()
        other.hand_back(got, after=NOTHING, counts=True)
        look()
        [got] = receive(first, 1)
        look()
        assert got.deliveries == 2
        first.close()
        [got] = receive(second, 1)
        look()
        assert passes == [False] * 6
        assert (
            got.deliveries == 3 if adapter.broker.capabilities.counts_deaths else got.deliveries > 1
        )
        second.acknowledge([got])
        assert all_passed(adapter, topic, group, 1)

    def test_passed_until_is_the_time_of_the_first_message_not_passed(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        instants = [adapter.broker.clock()]
        for number in range(3):
            adapter.broker.publish(messages(topic, 1, start=number))
            instants.append(adapter.broker.clock())
        subscription = adapter.subscribe(group, [topic], "c1")

        def passed() -> Any:
            return adapter.broker.progress(topic, group)[0].passed_until

        def reaches(
            told: Callable[[], datetime], low: datetime, high: Callable[[], datetime]
        ) -> bool:
            """A look's instant may be older, never later: it is asked until it is there."""
            deadline = time.monotonic() + 60
            while (instant := told()) < low and time.monotonic() < deadline:
                pass
            return low <= instant <= high()

        got = receive(subscription, 3)
        assert reaches(passed, instants[0], lambda: instants[1])
        subscription.acknowledge([got[1]])
        assert reaches(passed, instants[0], lambda: instants[1])
        subscription.acknowledge([got[0]])
        assert reaches(passed, instants[2], lambda: instants[3])
        subscription.acknowledge([got[2]])
        assert reaches(passed, adapter.broker.clock(), adapter.broker.clock)
        if adapter.broker.capabilities.has_time_at_offset:

            def at(offset: int) -> datetime:
                return adapter.broker.passed_until(topic, {0: offset})[0]

            for offset in range(3):
                assert reaches(
                    partial(at, offset), instants[offset], partial(instants.__getitem__, offset + 1)
                )
            assert reaches(partial(at, 3), adapter.broker.clock(), adapter.broker.clock)
            assert adapter.broker.passed_until(topic, {}) == {}

    def test_nothing_stored_before_passed_until_lies_above_the_place(
        self,
        adapter: ServerUnderTest,
        topic: str,
        group: str,
        receive: Receive,
        in_thread: InThread,
    ) -> None:
        """While messages flow, each look's instant must be right forever."""
        if not adapter.broker.capabilities.has_time_at_offset:
            return
        stop = threading.Event()

        def publish() -> None:
            client = adapter.another()
            for number in range(100_000):
                if stop.is_set():
                    return
                client.publish([Message(topic, f"{number}", b"")])

        def consume() -> None:
            subscription = adapter.subscribe(group, [topic], "c1")
            while not stop.is_set():
                subscription.acknowledge(subscription.fetch(3, SHORT))

        waits = [in_thread(publish), in_thread(consume)]
        looks: list[GroupPosition] = []
        deadline = time.monotonic() + 20
        while len(looks) < 400 and (
            time.monotonic() < deadline or len({look.next_offset for look in looks}) <= 20
        ):
            looks += adapter.broker.progress(topic, group)
        stop.set()
        for wait in waits:
            wait()
        assert len({look.next_offset for look in looks}) > 20, "it moved while we looked"
        end = adapter.broker.queues(topic)[0].next_offset
        stored_at = {
            offset: adapter.broker.passed_until(topic, {0: offset})[0]
            for offset in {one.next_offset for one in looks}
        }
        for look in looks:
            if look.next_offset < end:
                assert look.passed_until <= stored_at[look.next_offset]

    def test_deleted_messages_do_not_hold_progress_or_time_back(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        if not (adapter.broker.capabilities.has_time_at_offset and adapter.deletes_one):
            return
        for number in range(4):
            adapter.broker.publish(messages(topic, 1, start=number))
        times = [adapter.broker.passed_until(topic, {0: offset})[0] for offset in range(4)]
        adapter.delete_message(topic, 0, 0)
        adapter.delete_message(topic, 0, 2)
        [queue] = adapter.broker.queues(topic)
        assert (queue.first_offset, queue.next_offset) == (1, 4)
        [position] = adapter.broker.progress(topic, group)
        assert (position.next_offset, position.passed_until) == (0, times[1])
        subscription = adapter.subscribe(group, [topic], "c1")
        got = receive(subscription, 2)
        assert ids(got) == ["m-1", "m-3"]
        subscription.acknowledge(got[:1])
        [position] = adapter.broker.progress(topic, group)
        assert (position.next_offset, position.passed_until) == (3, times[3])
        subscription.acknowledge(got[1:])
        assert adapter.broker.progress(topic, group)[0].next_offset == 4
        for offset in (1, 3):
            adapter.delete_message(topic, 0, offset)
        [queue] = adapter.broker.queues(topic)
        assert (queue.first_offset, queue.next_offset) == (4, 4), (
            "a queue emptied by hand keeps its numbers"
        )
        [receipt] = adapter.broker.publish(messages(topic, 1))
        assert receipt.position and receipt.position.offset == 4

    def test_a_message_deleted_while_in_flight_is_passed_when_its_consumer_is_gone(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        if not (adapter.broker.capabilities.has_offsets and adapter.deletes_one):
            return
        adapter.broker.publish(messages(topic, 2))
        first = adapter.subscribe(group, [topic], "c1")
        assert len(receive(first, 2)) == 2
        adapter.delete_message(topic, 0, 0)
        assert adapter.broker.progress(topic, group)[0].next_offset == 0
        first.close()
        assert ids(receive(adapter.subscribe(group, [topic], "c2"), 1)) == ["m-1"]
        [position] = adapter.broker.progress(topic, group)
        assert (position.next_offset, position.pending) == (1, 1)

    @pytest.mark.parametrize(
        ("moved_to", "then_receives"), [(3, ["m-3", "m-4"]), (0, ["m-0", "m-1", "m-2"])]
    )
    def test_progress_follows_a_group_that_was_moved(
        self,
        adapter: ServerUnderTest,
        topic: str,
        group: str,
        receive: Receive,
        moved_to: int,
        then_receives: list[str],
    ) -> None:
        if not adapter.broker.capabilities.has_offsets:
            return
        adapter.broker.publish(messages(topic, 5))
        subscription = adapter.subscribe(group, [topic], "c1")
        subscription.acknowledge(receive(subscription, 2, limit=2))
        adapter.move_group(group, topic, 0, moved_to)
        [position] = adapter.broker.progress(topic, group)
        assert (position.next_offset, position.pending) == (moved_to, 0)
        assert position.passed_until == adapter.broker.passed_until(topic, {0: moved_to})[0]
        assert (
            ids(receive(subscription, len(then_receives)))[: len(then_receives)]
            == [
                *then_receives,
                "m-3",
                "m-4",
            ][: len(then_receives)]
        )

    def test_a_look_at_what_is_not_there_raises(
        self, adapter: ServerUnderTest, topic: str, name: Name
    ) -> None:
        for look in (
            lambda: adapter.broker.queues(name("no such topic")),
            lambda: adapter.broker.progress(name("no such topic"), name("group")),
            lambda: adapter.broker.progress(topic, name("no such group")),
        ):
            with pytest.raises(BrokerUnavailable):
                look()

    def test_groups_do_not_know_of_each_other(
        self, adapter: ServerUnderTest, topic: str, group: str, name: Name, receive: Receive
    ) -> None:
        adapter.create_group(name("other"), topic)
        adapter.broker.publish(messages(topic, 3))
        for one in (group, name("other")):
            assert len(receive(adapter.subscribe(one, [topic], "c"), 3)) == 3
        assert adapter.broker.retry_pending(topic, group) == 0

    def test_it_has_every_method_of_the_protocol(self, adapter: ServerUnderTest) -> None:
        wanted = {name for name in vars(Broker) if not name.startswith("_")} | {
            "__enter__",
            "__exit__",
        }
        assert wanted <= set(dir(type(adapter.broker)))

    def test_the_servers_of_a_topic_have_the_same_names_at_each_look(
        self, adapter: ServerUnderTest, topic: str
    ) -> None:
        names = adapter.broker.servers(topic)
        assert isinstance(names, frozenset) and all(isinstance(one, str) and one for one in names)
        assert names == adapter.another().servers(topic)

    def test_durability_is_told_as_facts(
        self, adapter: ServerUnderTest, topic: str, name: Name
    ) -> None:
        findings = adapter.broker.durability([topic, name("no such topic")])
        good = {finding.subject: finding.good for finding in findings}
        assert good.pop(f"topic {name('no such topic')}") is False
        assert len(good) >= 2 and all(good.values()), findings
        assert all(finding.says and (finding.good or finding.do) for finding in findings)


class Receiving(_Fixtures):
    def test_fetch_keeps_its_limit_and_its_time(
        self, adapter: ServerUnderTest, name: Name, in_thread: InThread
    ) -> None:
        adapter.create_topic(name("topic"), 5)
        adapter.create_group(name("group"), name("topic"))
        subscription = adapter.subscribe(name("group"), [name("topic")], "c1")
        took: list[float] = []
        # A machine that stands still for a moment makes one of them longer, but not all.
        while not took or (took[-1] >= 1.0 and len(took) < 10):
            begun = time.monotonic()
            assert subscription.fetch(10, timedelta(milliseconds=300)) == []
            took.append(time.monotonic() - begun)
        assert min(took) >= 0.25 and took[-1] < 1.0, took
        adapter.broker.publish(messages(name("topic"), 40))
        seen: set[str] = set()
        limits = chain((1, 3, 7), repeat(8))
        deadline = time.monotonic() + 60
        while len(seen) < 40:
            assert time.monotonic() < deadline, seen
            limit = next(limits)
            some = subscription.fetch(limit, timedelta(seconds=60))
            # A queue may tell of its messages a moment after they were sent: then fewer come, and never more.
            assert 0 < len(some) <= limit
            seen.update(ids(some))
            # Or they come again, on a machine that stands still for long enough.
            subscription.acknowledge(some)

        def fetch() -> tuple[list[Received], float]:
            return subscription.fetch(10, timedelta(seconds=30)), time.monotonic()

        waited: list[float] = []
        while not waited or (waited[-1] >= 2.0 and len(waited) < 5):
            wait = in_thread(fetch)
            # It waits already; what it must not do is to wait until its time is over.
            time.sleep(0.2)
            published = time.monotonic()
            adapter.broker.publish([Message(name("topic"), "late", b"")])
            found, at = wait()
            assert ids(found) == ["late"]
            subscription.acknowledge(found)
            waited.append(at - published)
        assert waited[-1] < 2.0, waited

    def test_one_subscription_takes_several_topics(
        self, adapter: ServerUnderTest, name: Name, receive: Receive
    ) -> None:
        for kind in ("one", "two"):
            adapter.create_topic(name(kind), 2)
            adapter.create_group(name("group"), name(kind))
            adapter.broker.publish(messages(name(kind), 10))
        subscription = adapter.subscribe(name("group"), [name("one"), name("two")], "c1")
        got = receive(subscription, 20)
        assert Counter(one.message.topic for one in got) == {name("one"): 10, name("two"): 10}
        subscription.acknowledge(got)
        for kind in ("one", "two"):
            assert all_passed(adapter, name(kind), name("group"), 10)

    def test_two_consumers_share_the_work_without_doing_any_twice(
        self, adapter: ServerUnderTest, name: Name, in_thread: InThread
    ) -> None:
        adapter.create_topic(name("topic"), 3)
        adapter.create_group(name("group"), name("topic"))
        seen: Counter[str] = Counter()
        workers: Counter[str] = Counter()
        late: set[str] = set()
        lock = threading.Lock()
        delay = adapter.broker.capabilities.redelivery_delay

        def consume(who: str) -> Callable[[], None]:
            def run() -> None:
                subscription = adapter.subscribe(name("group"), [name("topic")], who)
                deadline = time.monotonic() + 240
                while len(seen) < 600 and time.monotonic() < deadline:
                    begun = time.monotonic()
                    got = subscription.fetch(5, SHORT)
                    with lock:
                        seen.update(ids(got))
                        workers[who] += len(got)
                    subscription.acknowledge(got)
                    if delay is not None and time.monotonic() - begun > delay.total_seconds() / 2:
                        late.update(ids(got))  # on a busy machine the other may get them meanwhile

            return run

        waits = [in_thread(consume("c1")), in_thread(consume("c2"))]
        for start in range(0, 600, 50):
            adapter.broker.publish(messages(name("topic"), 50, start=start))
        for wait in waits:
            wait()
        assert seen.keys() == {f"m-{i}" for i in range(600)}
        assert [one for one, times in seen.items() if times > 1 and one not in late] == []
        assert min(workers.values()) > 0
        assert all_passed(adapter, name("topic"), name("group"), 600)

    def test_what_a_dead_consumer_held_comes_to_another_with_its_place_and_count(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        adapter.broker.publish(messages(topic, 3))
        first = adapter.subscribe(group, [topic], "c1")
        begun = time.monotonic()
        held = receive(first, 3)
        first.acknowledge(held[1:2])
        first.close()
        second = adapter.subscribe(group, [topic], "c2")
        can, early = adapter.broker.capabilities, list[Received]()
        if can.redelivery_delay is not None:
            early = second.fetch(10, NOTHING)
            passed = time.monotonic() - begun
            assert early == [] or passed > can.redelivery_delay.total_seconds(), (
                "not before its time"
            )
        left = [held[0], held[2]] if can.acknowledges_each else held
        again = early + receive(second, len(left) - len(early))
        count = 2 if can.marks_redelivered else 1
        assert [(g.message, g.position, g.deliveries) for g in again] == [
            (g.message, g.position, count) for g in left
        ]


class HandingBack(_Fixtures):
    def test_it_comes_again_no_sooner_than_asked_and_spends_nothing(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        if not adapter.broker.capabilities.can_delay_redelivery:
            return
        adapter.broker.publish(messages(topic, 1))
        subscription = adapter.subscribe(group, [topic], "c1")
        [got] = receive(subscription, 1)
        for _ in range(DELIVERY_LIMIT + 2):
            begun = time.monotonic()
            subscription.hand_back(got, after=timedelta(milliseconds=200), counts=False)
            [got] = receive(subscription, 1)
            assert time.monotonic() - begun >= 0.19
            assert got.deliveries == 1
        assert list(adapter.broker.dead_letters(group)) == []

    def test_a_delay_longer_than_the_visibility_is_kept_too(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        can = adapter.broker.capabilities
        if not (can.can_delay_redelivery and can.redelivers_to_any):
            return
        adapter.broker.publish(messages(topic, 2))
        subscription = adapter.subscribe(group, [topic], "c1")
        held, left = receive(subscription, 2)
        begun = time.monotonic()
        subscription.hand_back(held, after=VISIBILITY * 3, counts=False)
        other = adapter.subscribe(group, [topic], "c2")
        [meanwhile] = receive(other, 1, limit=1)
        is_early = time.monotonic() - begun < VISIBILITY.total_seconds() * 3
        other.acknowledge([meanwhile])
        [again] = receive(other, 1, limit=1)
        assert time.monotonic() - begun >= VISIBILITY.total_seconds() * 3 - 0.01
        assert sorted(ids([meanwhile, again])) == sorted(ids([held, left]))
        if is_early:  # on a busy machine both may be due by then
            assert ids([meanwhile]) == ids([left]), "what nobody held comes meanwhile"

    def test_it_comes_again_when_its_consumer_died(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        adapter.broker.publish(messages(topic, 1))
        first = adapter.subscribe(group, [topic], "c1")
        [got] = receive(first, 1)
        first.hand_back(got, after=SHORT, counts=False)
        first.close()
        assert ids(receive(adapter.subscribe(group, [topic], "c2"), 1)) == ["m-0"]

    def test_acknowledged_while_held_it_does_not_come_again(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        adapter.broker.publish(messages(topic, 1))
        first = adapter.subscribe(group, [topic], "c1")
        [got] = receive(first, 1)
        first.hand_back(got, after=SHORT, counts=False)
        first.acknowledge([got])
        assert receive(first, 1, seconds=VISIBILITY.total_seconds() * 2) == []
        assert all_passed(adapter, topic, group, 1)

    def test_a_late_hand_back_does_not_disturb_who_has_it_now(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        if adapter.broker.capabilities.redelivery_delay is None:
            return
        late, now = (adapter.subscribe(group, [topic], name) for name in ("late", "now"))
        for number in range(10):
            adapter.broker.publish(messages(topic, 1, start=number))
            [stale] = receive(late, 1)
            got: list[Received] = []
            deadline = time.monotonic() + 60
            while not got:
                assert time.monotonic() < deadline
                begun = time.monotonic()
                got = now.fetch(1, SHORT)
            assert got[0].deliveries == 2
            late.hand_back(stale, after=NOTHING, counts=True)
            disturbed = late.fetch(1, VISIBILITY / 4)
            if not disturbed:
                break
            # On a machine that stood still it was with nobody any more; what was disturbed would come at once.
            assert time.monotonic() - begun >= VISIBILITY.total_seconds(), (
                "it stays with who has it"
            )
            late.acknowledge(disturbed)
        assert not disturbed
        now.hand_back(got[0], after=NOTHING, counts=True)
        assert [g.deliveries for g in receive(now, 1)] == [3]


class DeadLetters(_Fixtures):
    def fail(self, subscription: Subscription, receive: Receive, times: int) -> list[int]:
        counts = []
        for _ in range(times):
            [got] = receive(subscription, 1)
            counts.append(got.deliveries)
            subscription.hand_back(got, after=NOTHING, counts=True)
        return counts

    def test_failures_up_to_the_limit_make_one_dead_letter(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        adapter.broker.publish([Message(topic, "poison", b"x"), Message(topic, "fine", b"")])
        subscription = adapter.subscribe(group, [topic], "c1")
        poison, fine = receive(subscription, 2)
        subscription.acknowledge([fine])
        subscription.hand_back(poison, after=NOTHING, counts=True)
        assert self.fail(subscription, receive, DELIVERY_LIMIT - 1) == [2, 3]
        [letter] = dead_letters(adapter, group, 1)
        assert (letter.group, letter.topic, letter.message_id) == (group, topic, "poison")
        assert letter.died_at is None or abs(datetime.now(UTC) - letter.died_at) < timedelta(
            minutes=1
        )
        assert receive(subscription, 1, seconds=VISIBILITY.total_seconds() * 2) == []
        assert all_passed(adapter, topic, group, 2)

    def test_consumers_that_die_up_to_the_limit_make_one_dead_letter(
        self,
        adapter: ServerUnderTest,
        topic: str,
        group: str,
        receive: Receive,
        in_thread: InThread,
    ) -> None:
        if not adapter.broker.capabilities.counts_deaths:
            return
        adapter.broker.publish(messages(topic, 5))
        for number in range(DELIVERY_LIMIT):
            subscription = adapter.subscribe(group, [topic], f"c{number}")
            assert [g.deliveries for g in receive(subscription, 5)] == [number + 1] * 5
            subscription.close()

        # Several take over at once; whoever comes first buries it, once.
        def take_over(number: int) -> list[Received]:
            subscription = adapter.subscribe(group, [topic], f"last{number}")
            found = receive(subscription, 1, seconds=1.0)
            deadline = time.monotonic() + 60
            while len(list(adapter.broker.dead_letters(group))) < 5 and not found:
                assert time.monotonic() < deadline
                found += subscription.fetch(1, SHORT)
            return found

        waits = [in_thread(partial(take_over, number)) for number in range(3)]
        assert [wait() for wait in waits] == [[], [], []]
        assert Counter(d.message_id for d in adapter.broker.dead_letters(group)) == {
            f"m-{i}": 1 for i in range(5)
        }
        [position] = adapter.broker.progress(topic, group)
        assert (position.next_offset, position.pending) == (5, 0)

    def test_a_message_is_pending_or_a_dead_letter_at_every_instant(
        self,
        adapter: ServerUnderTest,
        topic: str,
        group: str,
        receive: Receive,
        in_thread: InThread,
    ) -> None:
        if not adapter.broker.capabilities.settles_dead_letters_atomically:
            return
        adapter.broker.publish(messages(topic, 40))
        by_offset, stored_by = adapter.broker.capabilities.has_offsets, adapter.broker.clock()
        stop = threading.Event()

        def watch() -> int:
            looks = 0
            while not stop.is_set():
                [position] = adapter.broker.progress(topic, group)
                dead = {letter.message_id for letter in adapter.broker.dead_letters(group)}
                passed = (
                    position.next_offset if by_offset else 40 * (position.passed_until > stored_by)
                )
                assert {f"m-{i}" for i in range(passed)} <= dead
                looks += 1
            return looks

        wait = in_thread(watch)
        subscription = adapter.subscribe(group, [topic], "c1")
        deadline = time.monotonic() + 60
        while len(list(adapter.broker.dead_letters(group))) < 40 and time.monotonic() < deadline:
            for got in subscription.fetch(7, SHORT):
                subscription.hand_back(got, after=NOTHING, counts=True)
        stop.set()
        assert wait() > 2
        assert len(dead_letters(adapter, group, 40)) == 40

    def test_reading_them_takes_nothing_away_and_ends_where_they_ended_at_the_call(
        self, adapter: ServerUnderTest, topic: str, group: str, receive: Receive
    ) -> None:
        adapter.broker.publish(messages(topic, 2))
        subscription = adapter.subscribe(group, [topic], "c1")
        self.fail(subscription, lambda s, n: receive(s, n, limit=1), 1)
        while len(list(adapter.broker.dead_letters(group))) < 1:
            for got in receive(subscription, 1, limit=1):
                subscription.hand_back(got, after=NOTHING, counts=got.message.message_id == "m-0")
        reading = adapter.broker.dead_letters(group)
        while len(list(adapter.broker.dead_letters(group))) < 2:
            for got in receive(subscription, 1):
                subscription.hand_back(got, after=NOTHING, counts=True)
        assert [letter.message_id for letter in reading] == ["m-0"]
        once, again = (
            list(adapter.broker.dead_letters(group)),
            list(adapter.broker.dead_letters(group)),
        )
        assert once == again and [letter.message_id for letter in once] == ["m-0", "m-1"]
        assert len({letter.broker_id for letter in once}) == 2
        since = dict(letter.place for letter in once[:1] if letter.place)
        assert list(adapter.broker.dead_letters(group, since=since)) == (
            once[1:] if since else once
        )
        since = dict(letter.place for letter in once if letter.place)
        assert list(adapter.broker.dead_letters(group, since=since)) == ([] if since else once)

    def test_one_without_a_readable_id_is_told_without_one(
        self, adapter: ServerUnderTest, topic: str, group: str
    ) -> None:
        adapter.add_unreadable_dead_letter(group, topic)
        [letter] = dead_letters(adapter, group, 1)
        assert (letter.group, letter.topic, letter.message_id) == (group, topic, None)
        assert letter.broker_id

    def test_a_group_without_dead_letters_has_none(
        self, adapter: ServerUnderTest, group: str
    ) -> None:
        assert list(adapter.broker.dead_letters(group)) == []


class DrainingDeadLetters(_Fixtures):
    """Dead letters handed out whole, and gone once they are acknowledged. A queue may hold other topics' letters too."""

    def die(
        self, adapter: ServerUnderTest, topic: str, group: str, sent: list[Message]
    ) -> list[Receipt]:
        """Publishes these, and lets each of them fail in this group until it is dead."""
        before = len(self.refs(adapter, topic, group))
        receipts = adapter.broker.publish(sent)
        assert [receipt.outcome for receipt in receipts] == [Outcome.SENT] * len(sent)
        subscription = adapter.subscribe(group, [topic], "dying")
        deadline = time.monotonic() + 120
        while (
            len(self.refs(adapter, topic, group)) < before + len(sent)
            and time.monotonic() < deadline
        ):
            for got in subscription.fetch(100, SHORT):
                subscription.hand_back(
                    got, after=NOTHING, counts=True, error="ValueError: “x” is no number"
                )
        subscription.close()
        assert len(self.refs(adapter, topic, group)) == before + len(sent)
        return receipts

    def refs(self, adapter: ServerUnderTest, topic: str, group: str) -> list[str | None]:
        return [
            letter.message_id
            for letter in adapter.broker.dead_letters(group)
            if letter.topic == topic
        ]

    def open(self, adapter: ServerUnderTest, topic: str, group: str) -> DeadLetterReader:
        """The queue in which the letters of this topic and group are; they are there."""
        for queue in adapter.broker.dead_letter_queues([group]):
            reader = adapter.another().open_dead_letters(queue)
            letters = reader.read(100)
            reader.close()
            if any((letter.topic, letter.group) == (topic, group) for letter in letters):
                return adapter.another().open_dead_letters(queue)
        raise AssertionError("no queue has them")

    def rest(self, reader: DeadLetterReader, topic: str, limit: int = 100) -> list[DeadLetter]:
        found = []
        while page := reader.read(limit):
            assert len(page) <= limit
            found += [letter for letter in page if letter.topic == topic]
        return found

    def test_a_letter_is_handed_out_whole_and_stays_until_it_is_acknowledged(
        self, adapter: ServerUnderTest, topic: str, group: str
    ) -> None:
        name, content = "überwiesen “1” 注文", bytes(range(256)) * 4
        headers = {ID_HEADER: name, "x-text": "a\tb “ü”", "x-empty": ""}
        [receipt] = self.die(
            adapter,
            topic,
            group,
            [Message(topic, name, content, headers, tag="eu", partition_key="k 1")],
        )
        with self.open(adapter, topic, group) as reader:
            [letter] = self.rest(reader, topic)
        assert (letter.group, letter.topic, letter.message_id, letter.invalid) == (
            group,
            topic,
            name,
            None,
        )
        assert (letter.content, letter.tag, letter.partition_key) == (content, "eu", "k 1")
        assert headers.items() <= json.loads(letter.headers).items()
        assert letter.broker_id and letter.queue
        assert letter.died_at is None or abs(datetime.now(UTC) - letter.died_at) < timedelta(
            minutes=1
        )
        assert letter.deliveries in (None, DELIVERY_LIMIT)
        if adapter.broker.capabilities.has_offsets:
            assert letter.position == receipt.position
        if adapter.broker.capabilities.gives_dead_letter_cause:
            assert letter.cause
        assert self.refs(adapter, topic, group) == [name]
        with self.open(adapter, topic, group) as reader:
            [again] = self.rest(reader, topic)
            assert (again.broker_id, again.content, again.headers) == (
                letter.broker_id,
                content,
                letter.headers,
            )
            reader.acknowledge([again])
            reader.acknowledge([again])
            assert self.rest(reader, topic) == []
        assert self.refs(adapter, topic, group) == []

    def test_pages_go_on_behind_what_is_not_yet_acknowledged_until_the_end(
        self, adapter: ServerUnderTest, topic: str, group: str
    ) -> None:
        self.die(adapter, topic, group, messages(topic, 7))
        with self.open(adapter, topic, group) as reader:
            first = reader.read(2)
            others = self.rest(reader, topic, limit=2)
            found = [*(letter for letter in first if letter.topic == topic), *others]
            assert [letter.message_id for letter in found] == self.refs(adapter, topic, group), (
                "the oldest first"
            )
            assert len({letter.broker_id for letter in found}) == 7
            reader.acknowledge(found[:3])
        assert self.refs(adapter, topic, group) == [letter.message_id for letter in found[3:]]
        with self.open(adapter, topic, group) as reader:
            left = self.rest(reader, topic)
            assert [letter.message_id for letter in left] == [
                letter.message_id for letter in found[3:]
            ]
            reader.acknowledge(left)
        assert self.refs(adapter, topic, group) == []

    def test_two_readers_lose_nothing_between_them(
        self, adapter: ServerUnderTest, topic: str, group: str
    ) -> None:
        self.die(adapter, topic, group, messages(topic, 6))
        seen: set[str | None] = set()
        with self.open(adapter, topic, group) as one, self.open(adapter, topic, group) as two:
            mine = [letter for letter in one.read(4) if letter.topic == topic]
            seen |= {letter.message_id for letter in mine}
            one.acknowledge(mine)
            one.close()
            theirs = self.rest(two, topic)
            seen |= {letter.message_id for letter in theirs}
            two.acknowledge(theirs)
        assert seen == {f"m-{i}" for i in range(6)}
        assert self.refs(adapter, topic, group) == []

    def test_large_letters_come_in_pages_of_bounded_size(
        self, adapter: ServerUnderTest, topic: str, group: str
    ) -> None:
        size = LETTER_PAGE_BYTES // 3
        self.die(
            adapter,
            topic,
            group,
            [Message(topic, f"m-{number}", b"%d" % number * size) for number in range(5)],
        )
        sizes, found = [], []
        with self.open(adapter, topic, group) as reader:
            while page := reader.read(100):
                sizes.append(sum(len(letter.content) for letter in page))
                found += [letter for letter in page if letter.topic == topic]
            assert max(sizes) <= LETTER_PAGE_BYTES
            assert {letter.message_id: letter.content for letter in found} == {
                f"m-{number}": b"%d" % number * size for number in range(5)
            }
            reader.acknowledge(found)

    def test_an_entry_that_is_no_message_is_handed_out_with_what_is_wrong(
        self, adapter: ServerUnderTest, topic: str, group: str
    ) -> None:
        adapter.add_unreadable_dead_letter(group, topic)
        with self.open(adapter, topic, group) as reader:
            [letter] = self.rest(reader, topic)
            assert (letter.message_id, letter.content, letter.group) == (None, b"x", group)
            assert letter.invalid
            reader.acknowledge([letter])
        assert self.refs(adapter, topic, group) == []

    def test_each_queue_is_listed_once_and_nothing_for_nobody(
        self, adapter: ServerUnderTest, topic: str, group: str, name: Name
    ) -> None:
        adapter.create_group(name("other"), topic)
        queues = adapter.broker.dead_letter_queues([group, name("other"), group])
        assert len(queues) == len(set(queues))
        assert adapter.broker.dead_letter_queues([]) == []

    def test_a_broker_that_goes_away_before_the_acknowledgement_has_them_still(
        self, adapter: ServerUnderTest, name: Name
    ) -> None:
        topic, group = name("topic"), name("group")
        adapter.create_topic(topic, 1)
        adapter.create_group(group, topic)
        self.die(adapter, topic, group, messages(topic, 3))
        reader = self.open(adapter, topic, group)
        letters = self.rest(reader, topic)
        assert len(letters) == 3
        adapter.kill()
        with pytest.raises(BrokerUnavailable):
            reader.acknowledge(letters)
        with pytest.raises(BrokerUnavailable):
            self.open(adapter, topic, group)
        adapter.start()
        with self.open(adapter, topic, group) as again:
            assert [letter.message_id for letter in self.rest(again, topic)] == [
                "m-0",
                "m-1",
                "m-2",
            ]


class BrokerContract(
    Publishing,
    FaultsOfTheServer,
    Epochs,
    Looking,
    Receiving,
    HandingBack,
    DeadLetters,
    DrainingDeadLetters,
):
    """The whole suite. A subclass, or a conftest.py beside it, gives the fixture `adapter`: a running ServerUnderTest."""
