"""What the contract of every broker does not ask for: ActiveMQ's own faults, limits and dead letters, on a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import stomp

from activemq import FURTHER, PASSWORD, READER_PASSWORD
from activemq import ActiveMQ as Server
from activemq_world import GROUP, TOPIC, Listener, World, triage, until, world_of
from backstop.brokers.activemq import ActiveMQ
from backstop.brokers.activemq.decode import BROKERS_OWN, MORE
from backstop.brokers.activemq.read_progress import ProgressReader
from backstop.brokers.open import open_broker
from backstop.brokers.protocol import ProgressMeans, Received
from backstop.client import Consumer
from backstop.client.read_headers import read_headers
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.model.errors import BrokerUnavailable, ConfigurationError, ContractBroken
from backstop.model.records import ID_HEADER, Counts, Message, Outcome
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.servers.postgres import Postgres
from system import settings_dict


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("activemq")) as running:
        yield running


@pytest.fixture
def world(postgres: Postgres, server: Server) -> Iterator[World]:
    with world_of(postgres, server) as made:
        yield made


@contextmanager
def other_client(server: Server) -> Iterator[stomp.Connection12]:
    """A client that is not ours."""
    client = stomp.Connection12([(LOOPBACK, server.stomp_port)], auto_decode=False)
    client.connect("backstop", PASSWORD, wait=True)
    yield client
    client.disconnect()


class Inbox(stomp.ConnectionListener):
    def __init__(self) -> None:
        self.frames: list[Any] = []

    def on_message(self, frame: Any) -> None:
        self.frames.append(frame)


class Cutter:
    """Passes everything on until it is cut; with `at_commit` until a client's COMMIT, whose answer does not go through."""

    def __init__(self, target: int, *, at_commit: bool = True) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self._target, self._at_commit = target, at_commit
        self._sides: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection((LOOPBACK, self._target))
            self._sides += [client, server]
            committed = threading.Event()
            threading.Thread(
                target=self._pass, args=(client, server, committed, self._at_commit), daemon=True
            ).start()
            threading.Thread(
                target=self._pass, args=(server, client, committed, False), daemon=True
            ).start()

    @staticmethod
    def _pass(
        source: socket.socket, to: socket.socket, committed: threading.Event, asks: bool
    ) -> None:
        try:
            while data := source.recv(65536):
                if asks and b"COMMIT" in data:
                    committed.set()
                elif not asks and committed.is_set():
                    break
                to.sendall(data)
        except OSError:
            pass  # the other direction has closed it
        for side in (source, to):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)  # a close alone waits for the other thread's recv
            side.close()

    def cut(self) -> None:
        """Ends the connections that there are."""
        sides, self._sides = self._sides, []
        for side in sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def messages(*ids: str, content: bytes = b"{}", **headers: str) -> list[Message]:
    return [Message(TOPIC, one, content, headers) for one in ids]


def test_a_commit_whose_answer_is_lost_is_unknown_and_the_messages_are_stored_once(
    world: World, server: Server
) -> None:
    cutter = Cutter(server.stomp_port)
    with ActiveMQ(server.url(port=cutter.port)) as broker:
        receipts = broker.publish(messages("a", "b"))
    cutter.close()
    assert [receipt.outcome for receipt in receipts] == [Outcome.UNKNOWN] * 2
    until("the commit", lambda: world.depth() == 2)
    assert sorted(world.consume()) == ["a", "b"]


def test_a_message_that_the_broker_calls_too_large_is_refused_for_good_and_the_others_of_its_batch_go(
    world: World,
) -> None:
    large = Message(TOPIC, "large", b"x" * 3_500_000)
    receipts = world.broker.publish([*messages("a"), large, *messages("b")])
    assert [(one.outcome, one.refused_for_good) for one in receipts] == [
        (Outcome.SENT, False),
        (Outcome.REFUSED, True),
        (Outcome.SENT, False),
    ], receipts
    assert sorted(world.consume()) == ["a", "b"]


def test_other_programs_read_our_messages_and_we_read_theirs(world: World, server: Server) -> None:
    with other_client(server) as client:
        inbox = Inbox()
        client.set_listener("inbox", inbox)
        client.subscribe(f"/queue/{world.queue}", "1", ack="client-individual")
        world.broker.publish(messages("ours", content=b"\x00\xff", shop="A:1\n", ümlaut="ü"))
        [frame] = until("our message", lambda: list(inbox.frames))
        assert (frame.body, frame.headers[ID_HEADER], frame.headers["shop"]) == (
            b"\x00\xff",
            "ours",
            "A:1\n",
        )
        client.ack(frame.headers["ack"])
        client.unsubscribe("1")
        client.send(
            "/topic/VirtualTopic.orders",
            "grüße",
            headers={ID_HEADER: "theirs", "persistent": "true", "priority": "7"},
        )
        with world.broker.subscribe(GROUP, [TOPIC], "us") as subscription:
            [got] = until("their message", lambda: subscription.fetch(1, timedelta(seconds=1)))
            subscription.acknowledge([got])
    assert (got.message.message_id, got.message.content) == ("theirs", "grüße".encode())
    assert got.message.headers == {ID_HEADER: "theirs"}


def test_whatever_headers_a_message_has_they_arrive_as_they_were_sent(world: World) -> None:
    odd = "".join(map(chr, range(33))) + "\x7f\x85\u2028\ufeff\\n\\c:😀 "
    headers = {
        **{name: f"our {name}" for name in sorted(BROKERS_OWN)},
        "odd": odd,
        "end": "x\r",
        odd: "name",
        "": "",
    }
    [receipt] = world.broker.publish([Message(TOPIC, "m " + odd, b"{}", headers, odd, odd)])
    assert receipt.outcome is Outcome.SENT, receipt
    with world.broker.subscribe(GROUP, [TOPIC], "us") as subscription:
        [got] = until("the message", lambda: subscription.fetch(1, timedelta(seconds=1)))
        subscription.acknowledge([got])
    assert got.message == Message(
        TOPIC, "m " + odd, b"{}", {**headers, ID_HEADER: "m " + odd}, odd, odd
    )
    [refused] = world.broker.publish([Message(TOPIC, "m", b"{}", {"long": "x" * 20_000})])
    assert (refused.outcome, refused.refused_for_good) == (
        Outcome.REFUSED,
        True,
    ) and "header length" in str(refused.error)


def test_what_clients_in_java_write_is_read_or_left_to_the_broker_whole(
    world: World,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Properties named like STOMP's own headers stand in their place; a map has no content there."""
    monkeypatch.setattr("backstop.brokers.activemq.session.HEARTBEAT_SECONDS", 0.3)
    world.broker.create_group("late", TOPIC)
    queue = "Consumer.late.VirtualTopic.orders"
    listener = Listener(world, tmp_path, server.openwire_port)
    try:
        listener.end("texts", queue)
        listener.hears("sent texts")
        sent_by = world.broker.clock()
        listener.end("map", queue)
        listener.hears("sent a map")
    finally:
        listener.close()
    found: list[Received] = []
    with world.broker.subscribe("late", [TOPIC], "us") as subscription:
        until(
            "all of them",
            lambda: found.extend(subscription.fetch(9, timedelta(seconds=1))) or len(found) == 9,
        )
        assert [one.message.message_id for one in found] == [
            *(f"m-{number}" for number in range(8)),
            "",
        ]
        assert [one.message.content.decode() for one in found[:8]] == [
            f"a\0😀 {number}" for number in range(8)
        ]
        [hides_its_time] = [one for one in found if one.message.message_id == "m-4"]
        subscription.acknowledge([one for one in found[:8] if one is not hides_its_time])
        with pytest.raises(ContractBroken):
            read_headers(found[8])
        subscription.hand_back(found[8], after=timedelta(0), counts=True)
        [position] = world.broker.progress(TOPIC, "late")
        assert position.passed_until <= sent_by, (
            "by the broker's time, whatever time its producer wrote"
        )
        subscription.acknowledge([hides_its_time])
        assert world.broker.progress(TOPIC, "late")[0].passed_until > sent_by
    assert [letter.message_id for letter in world.broker.dead_letters("late")] == ["map"]
    beans = server.jolokia()
    [whole] = beans.run(beans.queue_bean(f"DLQ.{queue}"), "browse()")
    assert "total=12" in str(whole["ContentMap"]), "as its producer sent it"
    assert "cannot be read over STOMP" in caplog.text
    # A letter whose content STOMP does not show is left in the broker, and named.
    with other_client(server) as client:
        client.send(
            f"/queue/DLQ.{queue}",
            "",
            headers={ID_HEADER: "empty text", "persistent": "true"},
            content_length=False,
        )
        until("both letters", lambda: world.depth(f"DLQ.{queue}") == 2)
    with world.broker.open_dead_letters(f"DLQ.{queue}") as reader:
        [letter] = reader.read(10)
        assert (letter.message_id, letter.content) == ("empty text", b"")
        reader.acknowledge([letter])
        with pytest.raises(
            BrokerUnavailable, match="1 dead letters are messages whose content STOMP does not show"
        ):
            reader.read(10)
    assert world.depth(f"DLQ.{queue}") == 1


def test_a_message_that_cannot_be_written_again_is_left_to_the_broker_and_stops_nobody(
    world: World, server: Server
) -> None:
    with other_client(server) as client, ActiveMQ(server.url(), delivery_limit=1) as broker:
        for headers in (
            {ID_HEADER: "odd", MORE: '{"x": "\\ud800"}'},
            {"shop": "A"},
            {ID_HEADER: "fine"},
        ):
            client.send(f"/queue/{world.queue}", "{}", headers={"persistent": "true", **headers})
        with broker.subscribe(GROUP, [TOPIC], "us") as subscription:
            got: list[Received] = []
            until(
                "all of them",
                lambda: got.extend(subscription.fetch(3, timedelta(seconds=1))) or len(got) == 3,
            )
            for one in got[:2]:
                subscription.hand_back(one, after=timedelta(0), counts=True, error="ValueError: no")
            subscription.acknowledge(got[2:])
    with world.broker.open_dead_letters(f"DLQ.{world.queue}") as reader:
        odd, nameless = reader.read(10)
    assert (odd.message_id, odd.content, json.loads(odd.headers)["x"]) == ("odd", b"{}", "\ud800")
    assert (nameless.message_id, json.loads(nameless.headers)) == (None, {"shop": "A"}), (
        "with all that it carried"
    )
    assert world.depth() == 0


def test_a_group_is_not_past_what_an_open_transaction_has_acknowledged(
    world: World, server: Server
) -> None:
    world.broker.publish(messages("oldest"))
    stored_by = world.broker.clock()
    with other_client(server) as client:
        inbox = Inbox()
        client.set_listener("inbox", inbox)
        client.subscribe(f"/queue/{world.queue}", "1", ack="client-individual")
        [frame] = until("the message", lambda: list(inbox.frames))
        world.broker.publish(messages("newer"))
        transaction = client.begin()
        client.ack(frame.headers["ack"], transaction=transaction, receipt="acknowledged")
        until(
            "it is hidden", lambda: len(world.broker._reader._browse(world.queue, None, "")[0]) == 1
        )
        with pytest.raises(BrokerUnavailable, match="transaction"):
            world.broker.progress(TOPIC, GROUP)
        client.abort(transaction)
        until(
            "it is back", lambda: len(world.broker._reader._browse(world.queue, None, "")[0]) == 2
        )
        assert world.broker.progress(TOPIC, GROUP)[0].passed_until <= stored_by


def test_a_plain_queue_has_one_group_and_its_letters_come_from_the_shared_dead_letter_queue(
    world: World, server: Server
) -> None:
    options = {
        "send_to": "/queue/plain.{topic}",
        "receive_from": "plain.{topic}",
        "groups": {TOPIC: GROUP},
    }
    with ActiveMQ(server.url(), **options) as broker, other_client(server) as client:  # type: ignore[arg-type]
        broker.create_topic(TOPIC)
        assert broker.publish(messages("m"))[0].outcome is Outcome.SENT
        inbox = Inbox()
        client.set_listener("inbox", inbox)
        client.subscribe(f"/queue/plain.{TOPIC}", "1", ack="client-individual")
        [frame] = until("the message", lambda: list(inbox.frames))
        client.nack(
            frame.headers["ack"]
        )  # without a redelivery policy at the broker: dead at once, and no cause
        [letter] = until("the letter", lambda: list(broker.dead_letters(GROUP)))
        assert (letter.group, letter.topic, letter.message_id) == (GROUP, TOPIC, "m")
        assert broker.dead_letter_queues([GROUP]) == ["ActiveMQ.DLQ"]
        with broker.open_dead_letters("ActiveMQ.DLQ") as reader:
            [whole] = reader.read(10)
            assert (whole.group, whole.topic, whole.cause, whole.content) == (
                GROUP,
                TOPIC,
                "",
                b"{}",
            )
            assert whole.properties["original-destination"] == f"/queue/plain.{TOPIC}"
        # To the adapter of the virtual topics it is a letter of nobody's it knows, and still somebody's with an id.
        [strange] = world.broker.dead_letters(GROUP)
        assert (strange.group, strange.topic, strange.message_id) == (None, None, "m")


def test_the_front_of_a_long_queue_that_delivers_by_priority_says_nothing_of_its_oldest_message(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def options(name: str) -> dict[str, Any]:
        return {
            "send_to": f"/queue/{name}.{{topic}}",
            "receive_from": f"{name}.{{topic}}",
            "groups": {TOPIC: GROUP},
        }

    with (
        ActiveMQ(server.url(), **options("first")) as first,
        ActiveMQ(server.url(), **options("plain.long")) as plain,
        other_client(server) as client,
    ):
        for broker, name in ((first, "first"), (plain, "plain.long")):
            broker.create_topic(TOPIC)
            before = broker.clock()
            assert broker.publish(messages("old"))[0].outcome is Outcome.SENT
            until("a later time", lambda: broker.clock() > before + timedelta(seconds=1))  # noqa: B023
            for number in range(4):
                headers = {ID_HEADER: f"new-{number}", "persistent": "true", "priority": "9"}
                client.send(f"/queue/{name}.{TOPIC}", "{}", headers=headers)
            until("all of them", lambda: broker.progress(TOPIC, GROUP) and True)  # noqa: B023
            assert broker.progress(TOPIC, GROUP)[0].passed_until < before + timedelta(seconds=1)
        monkeypatch.setattr("backstop.brokers.activemq.read_progress.LISTED", 3)
        monkeypatch.setattr("backstop.brokers.activemq.read_progress.OLDEST", 2)
        assert plain.progress(TOPIC, GROUP)[0].passed_until < before + timedelta(seconds=1)
        with pytest.raises(BrokerUnavailable, match="by priority"):
            first.progress(TOPIC, GROUP)


def test_a_letter_of_the_redelivery_limit_and_an_expired_one_tell_their_cause(
    world: World, server: Server, tmp_path: Path
) -> None:
    listener = Listener(world, tmp_path, server.openwire_port, redeliveries=1)
    try:
        world.send("poison")
        for time_ in (1, 2):
            listener.hears("started poison", time_)
            listener.end("fail", "poison")
        until("the dead letter", lambda: world.dead() == ["poison"])
        with other_client(server) as client:
            client.send(
                "/queue/Consumer.late.VirtualTopic.orders",
                "{}",
                headers={
                    ID_HEADER: "late",
                    "persistent": "true",
                    "expires": str(int(time.time() * 1000) + 200),
                },
            )
            until(
                "the expired letter",
                lambda: [one.message_id for one in world.broker.dead_letters("late")] == ["late"],
            )
    finally:
        listener.close()
    with world.broker.open_dead_letters(f"DLQ.{world.queue}") as reader:
        [limit] = reader.read(10)
    assert limit.cause.startswith(
        "java.lang.Throwable: Delivery[2] exceeds redelivery policy limit:"
    )
    assert "cause:java.lang.IllegalStateException: The till is closed" in limit.cause
    assert (limit.deliveries, limit.message_id, limit.group) == (2, "poison", GROUP)
    with world.broker.open_dead_letters("DLQ.Consumer.late.VirtualTopic.orders") as reader:
        [expired] = reader.read(10)
    assert expired.cause.startswith("java.lang.Throwable: Message Expired. Expiration:")
    assert (expired.message_id, expired.group, expired.topic) == ("late", "late", TOPIC)
    counts = triage(world)
    assert counts["stored"] == 1, (
        "the letter of a group that the settings do not name is left alone"
    )
    # Thrown by the listener: an IllegalStateException is no matter of time.
    assert world.rows("control", "SELECT category, deliveries FROM dead_letter") == [("poison", 2)]


def test_more_letters_than_a_browser_shows_are_never_taken_for_all_and_the_drain_takes_them_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"DLQ.{world.queue}"
    frames = [f"m-{number}" for number in range(1500)]
    into = f"DLQ.{world.queue.removesuffix(TOPIC)}{{topic}}"
    with ActiveMQ(world.server.url(), send_to=f"/queue/{into}", receive_from=into) as broker:
        broker.create_topic(TOPIC)
        assert {receipt.outcome for receipt in broker.publish(messages(*frames))} == {Outcome.SENT}
    with pytest.raises(BrokerUnavailable, match="maxBrowsePageSize"):
        world.broker.dead_letters(GROUP)
    with world.broker.open_dead_letters(queue) as reader:
        found = [letter for page in iter(lambda: reader.read(400), []) for letter in page]
        assert [letter.message_id for letter in found] == frames
        browse = ProgressReader._browse

        def drained_behind(browser: ProgressReader, queue: str, *more: Any) -> Any:
            shown = browse(browser, queue, *more)
            reader.acknowledge(found[:1300])
            return shown

        with monkeypatch.context() as patch:
            patch.setattr(ProgressReader, "_browse", drained_behind)
            left = [letter.message_id for letter in world.broker.dead_letters(GROUP)]
        assert left == frames[1300:], "as many were shown as are left, and they were others"
        reader.acknowledge(found[1300:])
    assert list(world.broker.dead_letters(GROUP)) == []


def test_what_was_handed_out_over_a_lost_connection_cannot_be_acknowledged(
    world: World, server: Server
) -> None:
    """The broker has it still and hands it out again: a page of it that counted as acknowledged would be stored twice."""
    queue = f"DLQ.{world.queue}"
    into = f"DLQ.{world.queue.removesuffix(TOPIC)}{{topic}}"
    with ActiveMQ(world.server.url(), send_to=f"/queue/{into}", receive_from=into) as broker:
        broker.create_topic(TOPIC)
        broker.publish(messages("a", "b", "c"))
    cutter = Cutter(server.stomp_port, at_commit=False)
    with (
        ActiveMQ(server.url(port=cutter.port)) as broker,
        broker.open_dead_letters(queue) as reader,
    ):
        page = reader.read(1)
        cutter.cut()
        with pytest.raises(BrokerUnavailable, match=r"closed the connection|reset"):
            while reader.read(1):
                pass
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match="is delivered again"):
                reader.acknowledge(page)
            again = reader.read(3)
            assert [one.message_id for one in again] == ["a", "b", "c"]
            cutter.cut()
            with pytest.raises(BrokerUnavailable):
                reader.acknowledge(again)
            page = again
        again = reader.read(3)
        reader.acknowledge(again)
        reader.acknowledge(again)
        until("an empty queue", lambda: world.depth(queue) == 0)
    cutter.close()


def test_what_waits_in_the_brokers_scheduler_is_never_taken_for_passed(
    world: World, server: Server
) -> None:
    with other_client(server) as client:
        inbox = Inbox()
        client.set_listener("inbox", inbox)
        # The broker's redelivery plugin is on for these queues.
        client.subscribe("/queue/retried.orders", "1", ack="client-individual")
        client.send("/queue/retried.orders", "{}", headers={ID_HEADER: "m", "persistent": "true"})
        [frame] = until("the message", lambda: list(inbox.frames))
        client.nack(frame.headers["ack"])
        with ActiveMQ(server.url(), redelivery="broker") as broker:
            until("the wait in the scheduler", lambda: broker.retry_pending(TOPIC, GROUP) == 1)
            with pytest.raises(BrokerUnavailable, match="wait in its scheduler"):
                world.broker.progress(TOPIC, GROUP)
            told = {finding.subject: finding for finding in world.broker.durability([TOPIC])}
            assert not told["scheduler"].good and told["scheduler"].do
            assert (
                broker.capabilities.progress_means is ProgressMeans.RECEIVED
                and broker.capabilities.has_retry_queues
            )
            assert len(broker.progress(TOPIC, GROUP)) == 1
            long_ago = datetime(2001, 1, 1, tzinfo=UTC)
            assert broker.delivered_until(TOPIC) < long_ago, "nobody knows what waits there"
            until("its return", lambda: broker.retry_pending(TOPIC, GROUP) == 0)
            before = broker.clock()
            assert broker.delivered_until(TOPIC) >= before
        frame = until("the redelivery", lambda: inbox.frames[1:])[0]
        client.ack(frame.headers["ack"])


def test_a_dead_letter_queue_that_the_settings_do_not_name_is_told(
    world: World, server: Server
) -> None:
    good = {finding.subject: finding.good for finding in world.broker.durability([TOPIC])}
    assert good == {
        "store": True,
        "room": True,
        "time stamps": True,
        "scheduler": True,
        "dead-letter queues": True,
        f"topic {TOPIC}": True,
    }
    with ActiveMQ(server.url(), dead_letters="ELSEWHERE") as broker, other_client(server) as client:
        client.send(
            f"/queue/{world.queue}",
            "{}",
            headers={"persistent": "true", "expires": str(int(time.time() * 1000) + 50)},
        )
        until("the expired letter", lambda: world.depth(f"DLQ.{world.queue}") == 1)
        told = {finding.subject: finding for finding in broker.durability([TOPIC])}
        assert (
            not told["dead-letter queues"].good and world.queue in told["dead-letter queues"].says
        )


def test_no_group_is_judged_by_the_clocks_of_clients(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "server", without="<timeStampingBrokerPlugin/>") as other,
        ActiveMQ(other.url()) as broker,
    ):
        broker.create_topic(TOPIC)
        broker.create_group(GROUP, TOPIC)
        assert broker.publish(messages("m"))[0].outcome is Outcome.SENT
        with pytest.raises(BrokerUnavailable, match="timeStampingBrokerPlugin"):
            broker.progress(TOPIC, GROUP)
        assert not {finding.subject: finding.good for finding in broker.durability([TOPIC])}[
            "time stamps"
        ]


def test_a_queue_that_may_not_be_read_keeps_no_other_topic_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = f'<authorizationEntry queue="Consumer.{GROUP}.VirtualTopic.{TOPIC}" read="all"/>'
    entry = '<authorizationEntry queue=">" read='
    monkeypatch.setitem(FURTHER, f'{entry}"all"', f'{theirs}{entry}"writers"')
    with (
        Server(tmp_path / "server") as other,
        ActiveMQ(other.url()) as broker,
        ActiveMQ(other.url("limited", READER_PASSWORD)) as consumer,
    ):
        for topic in ("closed", TOPIC):
            broker.create_topic(topic)
            broker.create_group(GROUP, topic)
        assert broker.publish(messages("m"))[0].outcome is Outcome.SENT
        with consumer.subscribe(GROUP, ["closed", TOPIC], "c") as subscription:
            with pytest.raises(BrokerUnavailable, match="not authorized to read"):
                subscription.fetch(1, timedelta(seconds=5))
            [received] = subscription.fetch(1, timedelta(seconds=5))
            subscription.acknowledge([received])
            assert received.message.message_id == "m"


def test_a_producer_without_jolokia_publishes_and_a_look_without_it_is_refused(
    world: World, server: Server
) -> None:
    with ActiveMQ(server.url(jolokia=False)) as broker:
        assert broker.publish(messages("m"))[0].outcome is Outcome.SENT
        with pytest.raises(BrokerUnavailable, match="names no Jolokia"):
            broker.progress(TOPIC, GROUP)
    assert world.consume() == ["m"]


def test_the_duties_need_no_right_to_make_queues(world: World, server: Server) -> None:
    with world.broker.subscribe(GROUP, [TOPIC], "c") as subscription:
        world.broker.publish(messages("dead"))
        while not world.dead():
            for got in subscription.fetch(1, timedelta(seconds=1)):
                subscription.hand_back(got, after=timedelta(0), counts=True, error="no")
    with ActiveMQ(server.url("duty", READER_PASSWORD)) as broker:
        assert broker.publish(messages("m"))[0].outcome is Outcome.SENT
        assert broker.publish(messages("n"), group=GROUP)[0].outcome is Outcome.SENT
        [refused] = broker.publish(messages("x"), group="no such group")
        assert (refused.outcome, "not authorized to create" in str(refused.error)) == (
            Outcome.REFUSED,
            True,
        )
        assert broker.progress(TOPIC, GROUP)[0].passed_until <= broker.clock()
        assert [letter.message_id for letter in broker.dead_letters(GROUP)] == ["dead"]
        [queue] = broker.dead_letter_queues([GROUP])
        with broker.open_dead_letters(queue) as reader:
            letters = reader.read(10)
            reader.acknowledge(letters)
            assert [(letter.message_id, letter.error, letter.deliveries) for letter in letters] == [
                ("dead", "no", 5)
            ]
            assert reader.read(10) == []
        assert all(finding.good for finding in broker.durability([TOPIC]))
    assert sorted(world.consume()) == ["m", "n"]


@pytest.mark.parametrize(
    ("options", "changes", "says"),
    [
        (
            {"receive_from": "Q.{topic}", "send_to": "/queue/Q.{topic}"},
            {"topics": ["billing", "shipping"]},
            "one another's",
        ),
        ({"receive_from": "Q.{topic}"}, {}, "must hold {group}"),
        ({"send_to": "/queue/{topic}"}, {}, "the same name"),
        ({"send_to": "VirtualTopic.{topic}"}, {}, "must begin with"),
        ({"redelivery": "nobody"}, {}, "client or broker"),
        ({"visibility": 5}, {}, "unknown option"),
        ({"prefetch": 0}, {}, "at least 1"),
        ({}, {"progress": "logged"}, "needs offsets"),
    ],
    ids=[
        "groups share a queue",
        "no group",
        "queue and topic",
        "no kind",
        "redelivery",
        "unknown",
        "prefetch",
        "logged",
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    group = {
        "store": "billing_db",
        "duplicates": "guard",
        "progress": changes.get("progress", "acknowledged"),
    }
    settings = Settings.model_validate(
        settings_dict(
            brokers={"amq": {"kind": "activemq", "connection": "broker", "options": options}},
            topics={TOPIC: {"broker": "amq", "groups": changes.get("topics", [GROUP])}},
            groups={GROUP: group, "shipping": group},
        )
    )
    with pytest.raises(ConfigurationError, match=says):
        open_broker(
            settings, Connections(resolver={"broker": "stomp://u:p@127.0.0.1:1"}.get), "amq"
        )


class CutOff:
    """A subscription whose connection ends before its first acknowledgement."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.is_cut = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def acknowledge(self, received: Any) -> None:
        if not self.is_cut:
            self.is_cut = True
            self._inner.close()
            raise BrokerUnavailable("cut", unaffected="", next_step="")
        self._inner.acknowledge(received)


@pytest.mark.parametrize("is_restored", [False, True])
def test_what_was_done_and_not_acknowledged_comes_again_and_asks_the_log_only_after_a_restore(
    world: World, is_restored: bool
) -> None:
    ids = {f"m-{number}" for number in range(5)}
    for message_id in sorted(ids):
        world.send(message_id)
    handled: list[str] = []
    inner = world.broker.subscribe(GROUP, [TOPIC], "w1")
    consumer = Consumer(
        CutOff(inner),
        lambda: psycopg2.connect(world.urls["billing_db"]),
        GROUP,
        lambda connection, message, work: handled.append(message.message_id),
        wait=timedelta(milliseconds=200),
    )
    counts = Counts()
    try:
        with pytest.raises(BrokerUnavailable):
            while True:
                consumer.run_once(counts)
        first = set(handled)
        assert first and world.depth() == len(ids), "done, and not acknowledged"
        if is_restored:  # behind a pooler that keeps its clients
            world.rows("billing_db", "DELETE FROM consumer_log")
            consumer._server_life = "the server before"
        until("the end", lambda: consumer.run_once(counts) is not None and world.depth() == 0)
    finally:
        consumer.close()
        inner.close()
    assert set(handled) == ids
    assert (len(handled) > len(ids)) == is_restored
    assert counts.get("done_before", 0) == (0 if is_restored else len(first))
    assert world.rows("billing_db", "SELECT sum(duplicates_stopped) FROM consumer_log") == [(0,)]
    assert consumer.books.difference(0) == 0
