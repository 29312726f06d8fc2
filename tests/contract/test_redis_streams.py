"""What is true of Redis Streams alone: the server's errors and settings, and what others do to its keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import LETTER_PAGE_BYTES, Receipt, Received
from backstop.brokers.redis_streams import Keys, RedisStreams, receive_owned
from backstop.brokers.redis_streams.drain import MOST_AT_ONCE
from backstop.brokers.redis_streams.exchange import Exchange, unavailable
from backstop.brokers.redis_streams.publish import CALL_BYTES, PUBLISH
from backstop.brokers.redis_streams.read_progress import micros_of
from backstop.brokers.redis_streams.receive import POLL_SECONDS, RedisSubscription
from backstop.brokers.testing import VISIBILITY
from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.config.settings import BrokerSettings, Settings
from backstop.model.errors import BrokerUnavailable, ConfigurationError, ContractBroken
from backstop.model.records import ID_HEADER, Message, Outcome
from backstop_lab.chaos.tcp_proxy import Proxy
from backstop_lab.servers.valkey import Valkey
from contract.conftest import RedisStreamsUnderTest

Receive = Callable[..., list[Received]]
SHORT = timedelta(milliseconds=50)
LONG = timedelta(seconds=60)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisStreamsUnderTest]:
    """A server of its own with the topic `t` of one queue and its group `g`."""
    server = Valkey(tmp_path / "broker")
    server.start()
    under_test = RedisStreamsUnderTest(server)
    under_test.create_topic("t", 1)
    under_test.create_group("g", "t")
    yield under_test
    under_test.close()
    server.kill()


def publish(broker: RedisStreams, number: int = 1, content: bytes = b"x") -> list[Receipt]:
    return broker.publish([Message("t", f"m-{i}", content) for i in range(number)])


def lie_idle(own: RedisStreamsUnderTest, consumer: str) -> None:
    """What this consumer holds of `t` becomes as idle as if the visibility had passed."""
    stream, idle = own.keys.stream("t", 0), int(VISIBILITY.total_seconds() * 1200)
    pending = own.raw.xpending_range(stream, "g", "-", "+", 10, consumername=consumer)
    held = [entry["message_id"] for entry in pending]
    own.raw.xclaim(stream, "g", consumer, 0, held, idle=idle, justid=True)


def until_dead(broker: RedisStreams, subscription: RedisSubscription) -> list[Received]:
    """What comes until the group has a dead letter."""
    found: list[Received] = []
    deadline = time.monotonic() + 60
    while not list(broker.dead_letters("g")):
        assert time.monotonic() < deadline, found
        found += subscription.fetch(1, SHORT)
    return found


def only(receipts: list[Receipt]) -> tuple[Outcome, bool, str]:
    [receipt] = receipts
    return receipt.outcome, receipt.refused_for_good, (receipt.error or "").split(" ")[0]


class TestErrorsOfTheServer:
    @pytest.mark.parametrize(
        ("command", "code"),
        [
            (("CONFIG", "SET", "maxmemory", "1"), "OOM"),
            (("REPLICAOF", "127.0.0.1", "1"), "READONLY"),
            (("SET", Keys().stream("t", 0), "text"), "WRONGTYPE"),
            (("SET", Keys().life("t", 0), "text"), "WRONGTYPE"),
            (("DEL", Keys().stream("t", 0)), "NOSTREAM"),
            (("CONFIG", "SET", "min-replicas-to-write", "1"), "NOREPLICAS"),
        ],
    )
    def test_an_error_given_before_anything_is_stored_refuses_but_not_for_good(
        self, own: RedisStreamsUnderTest, command: tuple[str, ...], code: str
    ) -> None:
        own.raw.execute_command(*command)
        assert only(publish(own.broker)) == (Outcome.REFUSED, False, code)

    def test_behind_an_address_that_moved_a_demoted_primary_is_left(
        self, own: RedisStreamsUnderTest, tmp_path: Path
    ) -> None:
        """Its connections stay open at a failover, and it still answers what only reads."""
        with Valkey(tmp_path / "promoted") as server, closing(Proxy()) as address:
            promoted = RedisStreamsUnderTest(server)
            promoted.create_topic("t", 1)
            promoted.create_group("g", "t")
            promoted.raw.config_set("requirepass", own.server.password)
            port = address.add("broker", own.server.port)
            client = own.another(own.server.url().replace(f":{own.server.port}/", f":{port}/"))
            with closing(client.subscribe_owned("g", ["t"], "c")) as subscription:
                assert only(publish(client))[0] is Outcome.SENT
                assert [one.message.content for one in subscription.fetch(("t", 0), 1, 10)] == [
                    b"x"
                ]
                own.raw.execute_command("REPLICAOF", "127.0.0.1", "1")
                address.links["broker"].target = server.port
                assert subscription.queues() == {"t": [0]}
                with pytest.raises(BrokerUnavailable, match="read only replica"):
                    subscription.fetch(("t", 0), 1, 10)
                assert only(publish(client)) == (Outcome.REFUSED, False, "READONLY")
                assert only(publish(client, content=b"new"))[0] is Outcome.SENT
                assert [one.message.content for one in subscription.fetch(("t", 0), 1, 10)] == [
                    b"new"
                ]
            promoted.close()

    def test_a_script_that_the_server_forgot_is_loaded_again(
        self, own: RedisStreamsUnderTest
    ) -> None:
        publish(own.broker)
        own.raw.script_flush()
        assert only(publish(own.broker))[0] is Outcome.SENT
        own.raw.script_flush()
        assert own.broker.queues("t")[0].next_offset == 2

    def test_pieces_of_a_key_keep_their_places_when_another_program_loads_the_script_in_between(
        self, own: RedisStreamsUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchange = own.broker._sending
        once = exchange._once

        def loaded_in_between(commands: Sequence[Any], blocking: float) -> list[Any]:
            if len(commands) < 2 or commands[0][0] != "EVALSHA":
                return once(commands, blocking)
            own.raw.script_flush()
            first = once(commands[:1], blocking)
            own.raw.script_load(PUBLISH.text)
            return first + once(commands[1:], blocking)

        monkeypatch.setattr(exchange, "_once", loaded_in_between)
        large = b"x" * (CALL_BYTES // 2 + 1)
        receipts = own.broker.publish(
            [Message("t", f"m-{i}", large, partition_key="k") for i in range(2)]
        )
        assert [receipt.outcome for receipt in receipts] == [Outcome.REFUSED, Outcome.SENT]
        assert list(own.stored("t").values()) == ["m-1"], "and m-0 is no later one of its key"

    def test_an_error_that_nobody_knows_is_not_called_refused(
        self, own: RedisStreamsUnderTest
    ) -> None:
        publish(own.broker)
        own.raw.hset(own.keys.life("t", 0), "next", "no number")
        assert only(publish(own.broker))[0] is Outcome.UNKNOWN

    def test_a_stalled_server_does_not_store_late_what_was_given_up(
        self, own: RedisStreamsUnderTest
    ) -> None:
        def scripts_called() -> int:
            return int(own.raw.info("commandstats")["cmdstat_evalsha"]["calls"])

        client = own.another(send_timeout=timedelta(milliseconds=300))
        deadline = time.monotonic() + 60
        while only(publish(client))[0] is not Outcome.SENT:
            assert time.monotonic() < deadline  # the first one also connects, which may take longer
        before, called = own.stored("t"), scripts_called()
        own.stall()
        assert [r.outcome for r in publish(client, 5)] == [Outcome.UNKNOWN] * 5
        own.wake()
        deadline = time.monotonic() + 60
        while scripts_called() == called:  # the server has not read the batch yet
            assert time.monotonic() < deadline
        assert own.stored("t") == before

    def test_a_question_may_take_longer_than_a_publish(self, own: RedisStreamsUnderTest) -> None:
        client = own.another(
            send_timeout=timedelta(milliseconds=1), answer_timeout=timedelta(seconds=30)
        )
        own.stall()
        waking = threading.Timer(0.3, own.wake)
        waking.start()
        assert len(client.progress("t", "g")) == 1
        waking.join()

    def test_an_offset_taken_by_a_foreign_entry_refuses_instead_of_losing_the_order(
        self, own: RedisStreamsUnderTest
    ) -> None:
        own.raw.xadd(
            own.keys.stream("t", 0), {"foreign": "entry"}
        )  # its id is a time, far above our numbers
        [receipt] = publish(own.broker)
        assert receipt.outcome is not Outcome.SENT and receipt.error


class TestLife:
    def test_a_stream_that_was_deleted_begins_a_new_life_when_the_topic_is_created_again(
        self, own: RedisStreamsUnderTest
    ) -> None:
        publish(own.broker, 3)
        before = own.broker.queues("t")[0]
        own.raw.delete(own.keys.stream("t", 0))
        with pytest.raises(BrokerUnavailable, match="NOSTREAM"):
            own.broker.queues("t")
        own.create_topic("t", 1)
        after = own.broker.queues("t")[0]
        assert after.epoch != before.epoch and after.next_offset == 0

    def test_a_stream_whose_record_was_lost_keeps_its_life_and_its_numbers(
        self, own: RedisStreamsUnderTest
    ) -> None:
        publish(own.broker, 3)
        before = own.broker.queues("t")[0]
        own.raw.delete(own.keys.life("t", 0))
        assert only(publish(own.broker))[:2] == (Outcome.REFUSED, True)
        own.create_topic("t", 1)
        after = own.broker.queues("t")[0]
        assert (after.epoch, after.first_offset, after.next_offset) == (before.epoch, 0, 3)

    def test_queues_can_be_added_and_serve_every_group_and_cannot_be_cut(
        self, own: RedisStreamsUnderTest
    ) -> None:
        subscription = own.subscribe("g", ["t"], "c1")
        subscription.fetch(1, SHORT)
        own.create_topic("t", 6)
        own.broker.publish([Message("t", f"{i}", b"") for i in range(60)])
        assert len({queue for queue, _ in own.stored("t")}) == 6
        seen: set[str] = set()
        deadline = time.monotonic() + 60  # a consumer looks for new queues every few seconds
        while len(seen) < 60 and time.monotonic() < deadline:
            got = subscription.fetch(100, SHORT)
            subscription.acknowledge(got)
            seen |= {one.message.message_id for one in got}
        assert len(seen) == 60
        assert own.broker.groups("t") == ["g"]
        with pytest.raises(ConfigurationError, match="6 queues"):
            own.create_topic("t", 5)

    def test_a_limit_stays_and_holds_for_queues_that_are_added(
        self, own: RedisStreamsUnderTest
    ) -> None:
        own.broker.create_topic("t", 1, max_message_bytes=100)
        own.broker.create_topic("t", 3)
        assert {receipt.outcome for receipt in publish(own.broker, 20, b"x" * 500)} == {
            Outcome.REFUSED
        }
        assert {receipt.outcome for receipt in publish(own.broker, 20)} == {Outcome.SENT}

    def test_a_group_that_exists_stays_where_it_is(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker, 4)
        subscription = own.subscribe("g", ["t"], "c1")
        subscription.acknowledge(receive(subscription, 4))
        own.create_group("g", "t")
        own.broker.create_group("late", "t", at="end")
        assert [own.broker.progress("t", group)[0].next_offset for group in ("g", "late")] == [4, 4]
        assert own.broker.groups("t") == ["g", "late"]

    def test_dead_letters_outlive_their_topic(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker)
        subscription = own.another(delivery_limit=1).subscribe("g", ["t"], "c1")
        [got] = receive(subscription, 1)
        subscription.hand_back(got, after=SHORT, counts=True, error="ValueError: no such customer")
        own.delete_topic("t")
        assert [letter.message_id for letter in own.broker.dead_letters("g")] == ["m-0"]

    def test_two_prefixes_share_a_server_without_meeting(self, own: RedisStreamsUnderTest) -> None:
        other = own.another(prefix="other")
        other.create_topic("t", 2)
        assert len(other.queues("t")) == 2 and len(own.broker.queues("t")) == 1

    @pytest.mark.parametrize("name", ["", "\ud800"])
    def test_a_name_that_no_key_can_carry_is_refused(
        self, own: RedisStreamsUnderTest, name: str
    ) -> None:
        with pytest.raises(ContractBroken):
            own.create_topic(name, 1)
        assert own.broker.publish([Message(name, "m", b"")])[0].refused_for_good
        with pytest.raises(BrokerUnavailable):
            own.broker.queues(name)


@contextmanager
def loses_what_comes(own: RedisStreamsUnderTest) -> Iterator[None]:
    """As a failover to a replica that has not got it yet."""
    keys = (own.keys.stream("t", 0), own.keys.life("t", 0))
    kept = {key: own.raw.dump(key) for key in keys}
    yield
    for key, value in kept.items():
        own.raw.restore(key, 0, value, replace=True)


class TestIdsThatAreGivenAgain:
    """Of a message that a failover lost, within the same epoch. The clock was set back, so the times are the same, too."""

    def test_an_owner_gets_the_new_message_and_ends_only_that(
        self, own: RedisStreamsUnderTest
    ) -> None:
        own.raw.hset(own.keys.life("t", 0), "last_time", "9000000000000000")
        subscription = own.broker.subscribe_owned("g", ["t"], "c")
        assert subscription.fetch(("t", 0), 1, 10) == []
        with loses_what_comes(own):
            own.broker.publish([Message("t", "lost", b"")])
            [lost] = subscription.fetch(("t", 0), 1, 10) or []
        own.broker.publish([Message("t", "new", b"")])
        [new] = subscription.fetch(("t", 0), 1, 10) or []
        assert (new.message.message_id, new.position) == ("new", lost.position)
        subscription.acknowledge([lost])
        assert not subscription.bury(lost, "it cannot be read")
        assert subscription.fetch(("t", 0), 1, 10) == [], "it is in hand"
        assert own.broker.progress("t", "g")[0].pending == 1
        assert list(own.broker.dead_letters("g")) == []
        subscription.acknowledge([new])
        assert own.broker.progress("t", "g")[0].pending == 0

    def test_a_consumer_acknowledges_and_hands_back_only_what_it_received(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        own.raw.hset(own.keys.life("t", 0), "last_time", "9000000000000000")
        one, two = (own.another(delivery_limit=1).subscribe("g", ["t"], name) for name in "ab")
        with loses_what_comes(own):
            own.broker.publish([Message("t", "lost", b"")])
            [lost] = receive(one, 1)
        own.broker.publish([Message("t", "new", b"")])
        [new] = receive(one, 1)
        assert (new.message.message_id, new.position) == ("new", lost.position)
        one.hand_back(lost, after=SHORT, counts=True, error="ValueError")
        for subscription in (one, two):
            subscription.acknowledge([lost])
        assert own.broker.progress("t", "g")[0].pending == 1
        assert list(own.broker.dead_letters("g")) == []
        one.acknowledge([new])
        assert own.broker.progress("t", "g")[0].pending == 0

    def test_a_deleted_entry_can_be_acknowledged(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker)
        subscription = own.subscribe("g", ["t"], "c")
        got = receive(subscription, 1)
        own.delete_message("t", 0, 0)
        subscription.acknowledge(got)
        assert own.broker.progress("t", "g")[0].pending == 0


class TestLargeMessages:
    @pytest.mark.parametrize("fence", [1, 2], ids=["read", "adopted"])
    def test_a_read_of_an_owned_queue_brings_few_bytes_and_at_least_one_message(
        self, own: RedisStreamsUnderTest, monkeypatch: pytest.MonkeyPatch, fence: int
    ) -> None:
        monkeypatch.setattr(receive_owned, "MOST_BYTES_AT_ONCE", 100_000)
        names = [receipt.position for receipt in publish(own.broker, 2, b"x" * 300_000)]
        names += [receipt.position for receipt in publish(own.broker, 40, b"x" * 30_000)]
        if fence > 1:
            before = own.broker.subscribe_owned("g", ["t"], "before")
            while before.fetch(("t", 0), 1, 500):
                pass
        subscription = own.broker.subscribe_owned("g", ["t"], "c")
        found: list[Received] = []
        sizes = []
        while got := subscription.fetch(("t", 0), fence, 500):
            sizes.append(len(got))
            found += got
        assert sizes[:2] == [1, 1] and max(sizes) <= 3 + 4, "each large one alone, then few"
        assert [one.position for one in found] == names

    def test_what_is_in_hand_of_one_queue_is_bounded_and_stops_no_other(
        self, own: RedisStreamsUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(receive_owned, "MOST_BYTES_AT_ONCE", 100_000)
        monkeypatch.setattr(receive_owned, "MOST_BYTES_IN_HAND", 400_000)
        own.create_topic("t", 2)
        own.broker.publish([Message("t", f"m-{n}", b"x" * 30_000) for n in range(100)])
        subscription = own.broker.subscribe_owned("g", ["t"], "c")
        first: list[Received] = []
        assert subscription.fetch(("t", 1), 1, 1)
        while got := subscription.fetch(("t", 0), 1, 500):
            first += got
        assert 400_000 <= sum(len(one.message.content) for one in first) < 700_000
        assert subscription.fetch(("t", 1), 1, 500)
        subscription.acknowledge(first)
        assert subscription.fetch(("t", 0), 1, 500)


class TestClock:
    def test_a_clock_that_jumped_ahead_costs_one_batch_and_not_a_minute(
        self, own: RedisStreamsUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [before] = publish(own.broker)
        # Our clock goes back by as much as the server's would go ahead.
        behind = SimpleNamespace(monotonic=lambda: time.monotonic() - 60)
        monkeypatch.setattr("backstop.brokers.redis_streams.publish.time", behind)
        assert only(publish(own.broker)) == (Outcome.REFUSED, False, "LATE")
        [after] = publish(own.broker)
        assert (before.outcome, after.outcome) == (Outcome.SENT, Outcome.SENT)
        assert (
            before.position
            and after.position
            and after.position.offset == before.position.offset + 1
        )


class TestRetention:
    def test_after_the_servers_clock_was_set_back_nothing_counts_as_passed_by_time_until_it_caught_up(
        self, own: RedisStreamsUnderTest
    ) -> None:
        """What is stored then carries a time after its own: a group that stands before it is not past what lies behind."""
        now = own.broker.clock()
        ahead = now + timedelta(seconds=1)
        # As a server leaves it whose clock was ahead for a while.
        own.raw.hset(own.keys.life("t", 0), "last_time", micros_of(ahead))
        publish(own.broker, 2)
        assert own.broker.progress("t", "g")[0].passed_until < now
        assert own.broker.passed_until("t", {0: 1})[0] < now
        while own.broker.clock() <= ahead:
            own.raw.ping()
        # The clock has caught up: these entries still say nothing, a later one does.
        assert own.broker.progress("t", "g")[0].passed_until < now
        publish(own.broker)
        assert own.broker.passed_until("t", {0: 2})[0] > ahead

    def test_trim_removes_what_every_group_has_acknowledged_and_moves_the_first_offset_alone(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker, 30)
        boundary = own.broker.clock()
        while own.broker.clock() - boundary < timedelta(seconds=1):
            own.raw.ping()
        publish(own.broker, 12)
        own.broker.create_group("late", "t", "start")
        keeps = own.another(retention=timedelta(milliseconds=1))
        [queue] = own.broker.queues("t")
        all_of_it = {0: (queue.epoch, 42)}
        assert keeps.trim("t", all_of_it) == 0, "no group has read anything"
        subscription, late = (
            own.broker.subscribe("g", ["t"], "c"),
            own.broker.subscribe("late", ["t"], "c"),
        )
        subscription.acknowledge(receive(subscription, 42))
        assert keeps.trim("t", all_of_it) == 0, "one group has not"
        got = receive(late, 42)
        late.acknowledge(got[:20] + got[21:])
        assert keeps.trim("t", {}) == keeps.trim("t", {0: ("another life", 42)}) == 0
        assert keeps.trim("t", {0: (queue.epoch, 10)}) == 10, "no more than is settled"
        assert own.broker.trim("t", all_of_it) == 0, "without a retention nothing goes"
        assert own.another(retention=timedelta(minutes=1)).trim("t", all_of_it) == 0
        before = own.broker.progress("t", "late")
        assert keeps.trim("t", all_of_it) == 10, (
            "and nothing from what is still in somebody's hands on"
        )
        assert own.broker.progress("t", "late") == before and before[0].next_offset == 20
        late.acknowledge([got[20]])
        length = own.broker.clock() - boundary - timedelta(seconds=0.1)
        assert own.another(retention=length).trim("t", all_of_it) == 10, "what is younger stays"
        [queue] = own.broker.queues("t")
        assert (queue.first_offset, queue.next_offset) == (30, 42)
        for group in ("g", "late"):
            assert own.broker.progress("t", group)[0].next_offset == 42


class TestDeadLetterEntry:
    def test_it_says_where_it_came_from_and_why(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        [_, receipt] = publish(own.broker, 2, b"payload")
        subscription = own.another(delivery_limit=1).subscribe("g", ["t"], "c1")
        first, second = receive(subscription, 2)
        subscription.acknowledge([first])
        subscription.hand_back(
            second, after=SHORT, counts=True, error="ValueError: “x”" + "y" * 5000
        )
        [(_, entry)] = own.raw.xrange(own.keys.dead("t", "g"))
        text = {name.decode(): value.decode() for name, value in entry.items()}
        assert receipt.position is not None
        assert text["content"] == "payload" and "m-1" in text["headers"]
        assert (text["origin-group"], text["origin-topic"]) == ("g", "t")
        assert (text["origin-queue"], text["origin-offset"]) == ("0", "1")
        assert text["origin-epoch"] == receipt.position.epoch
        assert (text["deliveries"], text["cause"]) == ("1", "handler failed")
        assert text["error"].startswith("ValueError: “x”") and len(text["error"]) == 2000

    def test_a_foreign_entry_is_handed_out_without_an_id_and_dies_like_any_other(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        own.raw.xadd(own.keys.stream("t", 0), {"headers": b"\xff[", "content": b"\x00"}, id="1-0")
        subscription = own.subscribe("g", ["t"], "c1")
        [got] = receive(subscription, 1)
        assert (got.message.message_id, dict(got.message.headers)) == ("", {})
        again = until_dead(own.broker, subscription)
        assert [one.deliveries for one in again] == [2, 3]
        assert [letter.message_id for letter in own.broker.dead_letters("g")] == [None]

    def test_a_foreign_id_beyond_all_offsets_costs_only_its_own_entry(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker, 2)
        stream, huge = own.keys.stream("t", 0), "18446744073709551615-1"
        own.raw.xadd(stream, {"headers": json.dumps({ID_HEADER: "huge"}), "content": b""}, id=huge)
        subscription = own.another(delivery_limit=1).subscribe("g", ["t"], "c1")
        got = receive(subscription, 3)
        assert [(one.message.message_id, one.position and one.position.offset) for one in got] == [
            ("m-0", 0),
            ("m-1", 1),
            ("huge", None),
        ]
        subscription.acknowledge(got[:2])
        for retries in (own.broker.list_retries("t", "g"), None):
            [position] = (
                own.broker.progress("t", "g") if retries is None else retries.but_for_them or ()
            )
            assert position.next_offset == 2
            assert (
                own.broker.clock() - position.passed_until < timedelta(seconds=30)
                if retries
                else position.pending == 1
            )
        own.raw.xdel(stream, "1-0", "2-0")
        [queue] = own.broker.queues("t")
        assert (queue.first_offset, queue.next_offset) == (2, 2)
        while own.broker.progress("t", "g")[0].pending:
            assert subscription.fetch(1, SHORT) == []  # its visibility ends, and so does it
        own.raw.xadd(own.keys.dead("t", "g"), {"headers": json.dumps({ID_HEADER: "odd"})}, id=huge)
        letters = list(own.broker.dead_letters("g"))
        assert [(one.message_id, one.died_at is None) for one in letters] == [
            ("huge", False),
            ("odd", True),
        ]
        [position] = own.broker.progress("t", "g")
        assert (position.next_offset, position.pending) == (2, 0)
        assert own.broker.clock() - position.passed_until < timedelta(seconds=30)
        [reader] = [
            own.broker.open_dead_letters(name) for name in own.broker.dead_letter_queues(["g"])
        ]
        drained = reader.read(10)
        assert [(one.message_id, one.position) for one in drained] == [
            ("huge", None),
            ("odd", None),
        ]
        assert drained[0].invalid is not None and "origin-offset" in drained[0].invalid
        reader.acknowledge(drained)
        assert list(own.broker.dead_letters("g")) == []


class TestReadingDeadLetters:
    """Pages of whole dead letters, whatever their sizes: by replies of few entries while nobody knows how large they are."""

    SMALL, LARGE = 300, 40

    @pytest.fixture
    def sizes(self, own: RedisStreamsUnderTest) -> list[int]:
        """Many small ones and then large ones, of which a few fit into a page; their sizes in order."""
        sizes = [10] * self.SMALL + [LETTER_PAGE_BYTES // 10] * self.LARGE
        for number, size in enumerate(sizes):
            fields: Any = {
                "headers": json.dumps({ID_HEADER: f"m-{number}"}),
                "content": b"c" * size,
            }
            own.raw.xadd(own.keys.dead("t", "g"), fields)
        return sizes

    def test_large_ones_behind_small_ones_come_in_bounded_pages_and_replies(
        self, own: RedisStreamsUnderTest, sizes: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replies: list[int] = []
        ask = Exchange.ask

        def ask_and_note(exchange: Exchange, commands: Any, doing: str, **options: Any) -> Any:
            answers = ask(exchange, commands, doing, **options)
            replies.extend(
                len(answer)
                for command, answer in zip(commands, answers, strict=True)
                if command[0] == "XRANGE"
            )
            return answers

        monkeypatch.setattr(Exchange, "ask", ask_and_note)
        found = []
        with own.broker.open_dead_letters(own.keys.dead("t", "g")) as reader:
            while page := reader.read(100):
                assert len(page) <= 100
                assert sum(len(letter.content) for letter in page) <= LETTER_PAGE_BYTES
                found += page
        assert [len(letter.content) for letter in found] == sizes
        assert [letter.message_id for letter in found] == [f"m-{i}" for i in range(len(sizes))]
        assert replies[:5] == [4, 8, 16, 32, 64] and max(replies) == MOST_AT_ONCE
        assert all(number <= 10 for number in replies[-3:]), "one page's worth of large ones"

    def test_a_reply_that_did_not_come_loses_nothing_that_came_before_it(
        self, own: RedisStreamsUnderTest, sizes: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask, numbers = Exchange.ask, iter(range(1000))

        def ask_but_fail_once(exchange: Exchange, *arguments: Any, **options: Any) -> Any:
            if next(numbers) == 3:
                raise unavailable("reading", "the connection broke")
            return ask(exchange, *arguments, **options)

        with own.broker.open_dead_letters(own.keys.dead("t", "g")) as reader:
            monkeypatch.setattr(Exchange, "ask", ask_but_fail_once)
            # What had come is handed out, and the rest is asked for again.
            found, reads = list[Any](), 0
            while page := reader.read(100):
                found += [letter.message_id for letter in page]
                reads += 1
            assert reads > 1
        assert found == [f"m-{i}" for i in range(len(sizes))]


class TestConsumers:
    def test_a_consumer_that_leaves_empty_handed_is_forgotten(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker, 2)
        tidy, holding = own.subscribe("g", ["t"], "tidy"), own.subscribe("g", ["t"], "holding")
        tidy.acknowledge(tidy.fetch(1, timedelta(seconds=5)))
        assert len(holding.fetch(1, timedelta(seconds=5))) == 1
        tidy.close()
        holding.close()
        assert [c["name"] for c in own.raw.xinfo_consumers(own.keys.stream("t", 0), "g")] == [
            b"holding"
        ]
        assert own.broker.progress("t", "g")[0].pending == 1

    def test_an_owner_gets_again_what_a_failover_does_not_know_as_acknowledged(
        self, own: RedisStreamsUnderTest
    ) -> None:
        publish(own.broker, 3)
        subscription = own.broker.subscribe_owned("g", ["t"], "c")
        got = subscription.fetch(("t", 0), 1, 10) or []
        with loses_what_comes(own):
            subscription.acknowledge(got[:2])
        assert own.broker.progress("t", "g")[0].pending == 3
        again = [one for _ in range(2) for one in subscription.fetch(("t", 0), 1, 10) or []]
        assert [one.message.message_id for one in again] == ["m-0", "m-1"], "m-2 is in hand"
        assert subscription.fetch(("t", 0), 1, 10) == []
        subscription.acknowledge([*again, got[2]])
        assert own.broker.progress("t", "g")[0].pending == 0

    def test_lag_counts_what_is_in_flight_too(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker, 5)
        subscription = own.subscribe("g", ["t"], "c1")
        got = receive(subscription, 2, limit=2)
        assert own.broker.lag("t", "g") == {0: 5}
        subscription.acknowledge(got)
        assert own.broker.lag("t", "g") == {0: 3}


class TestQueuesThatAnswerWithAnError:
    def test_a_topic_without_the_group_stops_no_other_and_spends_no_delivery_there(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        own.create_topic("u", 1)  # and nobody made the group there
        publish(own.broker, 2)
        before = own.subscribe("g", ["t"], "before")
        held, done = receive(before, 2)
        before.acknowledge([done])
        before.hand_back(held, after=timedelta(0), counts=False)
        # Its visibility is so long that most looks seek nothing that lay idle, and meet no error there.
        subscription = own.another(visibility=LONG).subscribe("g", ["t", "u"], "c")
        [again] = receive(subscription, 1)
        assert (again.message.message_id, again.deliveries) == (held.message.message_id, 1)
        for number in range(5):
            own.broker.publish([Message("t", f"new {number}", b"")])
            [new] = subscription.fetch(10, SHORT)
            assert new.message.message_id == f"new {number}"
            assert subscription.fetch(10, timedelta(milliseconds=150)) == []
        own.create_group("g", "u")
        own.broker.publish([Message("u", "late", b"")])
        [late] = receive(subscription, 1, seconds=LONG.total_seconds())
        assert late.message.message_id == "late", "it is looked for again"

    def test_a_topic_that_is_not_there_stops_no_other(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker)
        subscription = own.subscribe("g", ["t", "no such topic"], "c")
        assert len(receive(subscription, 1)) == 1
        with pytest.raises(BrokerUnavailable, match="no such topic"):
            own.subscribe("g", ["no such topic"], "c").fetch(1, SHORT)

    def test_a_group_that_goes_while_it_is_read_costs_the_other_topics_one_fetch(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        own.create_topic("u", 1)
        own.create_group("g", "u")
        subscription = own.another(visibility=LONG).subscribe("g", ["t", "u"], "c")
        publish(own.broker)
        [held] = receive(subscription, 1)
        subscription.hand_back(held, after=timedelta(0), counts=False)
        own.raw.xgroup_destroy(own.keys.stream("u", 0), "g")
        time.sleep(POLL_SECONDS)
        [again] = subscription.fetch(10, SHORT)
        assert again.deliveries == 1, "the error that came behind it did not spend it"
        own.broker.publish([Message("t", "new", b"")])
        with pytest.raises(BrokerUnavailable, match="NOGROUP"):
            subscription.fetch(10, SHORT)
        assert [one.message.message_id for one in subscription.fetch(10, SHORT)] == ["new"]


class TestAServerThatIsFull:
    def test_consumers_begin_and_read_it(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        publish(own.broker, 2)
        own.raw.config_set("maxmemory", "1")
        assert only(publish(own.broker)) == (Outcome.REFUSED, False, "OOM")
        subscription = own.subscribe("g", ["t"], "late")
        got = receive(subscription, 2)
        assert len(got) == 2
        subscription.acknowledge(got)
        assert own.broker.progress("t", "g")[0].pending == 0

    def test_an_owner_of_a_queue_begins_and_reads_it(self, own: RedisStreamsUnderTest) -> None:
        publish(own.broker)
        own.raw.config_set("maxmemory", "1")
        with closing(own.broker.subscribe_owned("g", ["t"], "late")) as subscription:
            assert len(subscription.fetch(("t", 0), 1, 10) or []) == 1
            assert subscription.fetch(("t", 0), 0, 10) is None, "the fence is kept"

    def test_a_message_that_cannot_be_buried_there_stops_no_other(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        broker = own.another(delivery_limit=1)
        publish(broker)
        assert len(receive(broker.subscribe("g", ["t"], "dies"), 1)) == 1
        broker.publish([Message("t", "later", b"")])
        subscription = broker.subscribe("g", ["t"], "next")
        lie_idle(own, "dies")
        own.raw.config_set("maxmemory", "1")
        [later] = receive(subscription, 1)
        assert later.message.message_id == "later"
        subscription.acknowledge([later])
        assert own.broker.progress("t", "g")[0].pending == 1
        own.raw.config_set("maxmemory", "0")
        assert until_dead(broker, subscription) == []
        assert [letter.message_id for letter in broker.dead_letters("g")] == ["m-0"]

    def test_an_entry_of_thousands_of_fields_ends_among_the_dead_letters_as_any_other(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        others = {f"field {n}".encode(): b"\x00%d" % n for n in range(4_500)}
        own.raw.xadd(own.keys.stream("t", 0), {b"content": b"\x00\xff", **others}, id="1-0")
        subscription = own.another(delivery_limit=1).subscribe("g", ["t"], "c")
        [foreign] = receive(subscription, 1)
        subscription.hand_back(foreign, after=SHORT, counts=True, error="ValueError")
        [letter] = own.raw.xrange(own.keys.dead("t", "g"))
        assert letter[1][b"content"] == b"\x00\xff" and letter[1][b"origin-offset"] == b"0"
        packed = letter[1][b"packed-fields"]
        assert all(name in packed and value in packed for name, value in others.items())
        later = {"headers": json.dumps({ID_HEADER: "later"}), "content": b""}
        own.raw.xadd(own.keys.stream("t", 0), later, id="2-0")
        assert [one.message.message_id for one in receive(subscription, 1)] == ["later"]

    def test_where_one_cannot_be_buried_none_behind_it_is(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        broker = own.another(delivery_limit=1)
        publish(broker)
        broker.publish([Message("t", f"more-{n}", b"") for n in range(3)])
        assert len(receive(broker.subscribe("g", ["t"], "dies"), 4)) == 4
        subscription = broker.subscribe("g", ["t"], "next")
        lie_idle(own, "dies")
        own.raw.config_set("maxmemory", "1")
        assert receive(subscription, 1, seconds=VISIBILITY.total_seconds() / 2) == []
        assert own.broker.progress("t", "g")[0].pending == 4
        assert list(broker.dead_letters("g")) == []

    def test_a_failed_last_delivery_that_cannot_be_buried_there_waits_for_memory(
        self, own: RedisStreamsUnderTest, receive: Receive
    ) -> None:
        broker = own.another(delivery_limit=1)
        publish(broker)
        subscription = broker.subscribe("g", ["t"], "c")
        [failed] = receive(subscription, 1)
        own.raw.config_set("maxmemory", "1")
        subscription.hand_back(failed, after=SHORT, counts=True, error="ValueError")
        assert own.broker.progress("t", "g")[0].pending == 1
        assert receive(subscription, 1, seconds=VISIBILITY.total_seconds() * 2) == []
        own.raw.config_set("maxmemory", "0")
        assert until_dead(broker, subscription) == []
        assert own.broker.progress("t", "g")[0].pending == 0
        assert [letter.message_id for letter in broker.dead_letters("g")] == ["m-0"]


class TestDurability:
    @pytest.mark.parametrize(
        ("settings", "subject"),
        [
            ({"appendfsync": "everysec"}, "append-only file"),
            ({"appendonly": "no"}, "append-only file"),
            ({"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}, "eviction"),
            ({"maxmemory": "0"}, "eviction"),
        ],
    )
    def test_a_weaker_setting_is_a_bad_finding(
        self, own: RedisStreamsUnderTest, settings: dict[str, str], subject: str
    ) -> None:
        assert all(finding.good for finding in own.broker.durability(["t"]))
        for name, value in settings.items():
            own.raw.config_set(name, value)
        assert [f.subject for f in own.broker.durability(["t"]) if not f.good] == [subject]

    def test_a_replica_is_a_bad_finding(self, own: RedisStreamsUnderTest) -> None:
        own.raw.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert "replication" in [f.subject for f in own.broker.durability(["t"]) if not f.good]

    def test_what_may_not_be_read_is_not_called_good(self, own: RedisStreamsUnderTest) -> None:
        own.raw.execute_command(
            "ACL", "SETUSER", "reader", "reset", "on", ">pw-reader", "~*", "+hget"
        )
        client = own.another(f"redis://reader:pw-reader@127.0.0.1:{own.server.port}/0")
        findings = client.durability(["t"])
        assert [f.good for f in findings] == [False, False, False, False, True]


class TestScale:
    def test_a_thousand_queues_are_looked_at_in_one_go(
        self, own: RedisStreamsUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own.create_topic("wide", 1000)
        own.create_group("g", "wide")
        run, sizes = Exchange.run, list[int]()

        def counted(exchange: Exchange, commands: Sequence[Any], **options: Any) -> list[Any]:
            sizes.append(len(commands))
            return run(exchange, commands, **options)

        monkeypatch.setattr(Exchange, "run", counted)
        assert len(own.broker.progress("wide", "g")) == 1000
        assert len(own.broker.queues("wide")) == 1000
        assert 0 < len(sizes) < 20 and 1000 <= sum(sizes) < 10_000, sizes


class TestOpening:
    def settings(self, **options: Any) -> Settings:
        broker = BrokerSettings(kind="redis_streams", connection="env:BROKER_URL", options=options)
        return load(Path(__file__).parents[2] / "backstop.yaml").model_copy(
            update={"brokers": {"embedded": broker}}
        )

    def test_options_reach_the_adapter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BROKER_URL", "redis://:the-password@127.0.0.1:1/0")
        settings = self.settings(visibility="2s", delivery_limit=4, send_timeout=1)
        with open_broker(settings, Connections(), "embedded") as broker:
            assert broker.capabilities.redelivery_delay == timedelta(seconds=2)
            assert broker.capabilities.delivery_limit == 4
            assert "the-password" not in repr(broker)
            with pytest.raises(BrokerUnavailable) as raised:
                broker.clock()
            assert "the-password" not in str(raised.value)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"visibility": "soon"}, "visibility"),
            ({"visibility": 0}, "more than zero"),
            ({"delivery_limit": 0}, "at least 1"),
            ({"speed": 1}, "unknown option"),
        ],
    )
    def test_a_wrong_option_is_refused_with_its_path(
        self, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str
    ) -> None:
        monkeypatch.setenv("BROKER_URL", "redis://127.0.0.1:1/0")
        with pytest.raises(ConfigurationError, match=says) as raised:
            open_broker(self.settings(**options), Connections(), "embedded")
        assert "brokers.embedded.options" in raised.value.what

    def test_an_unknown_broker_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"brokers\.other"):
            open_broker(self.settings(), Connections(), "other")
