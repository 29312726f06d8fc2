"""What ActiveMQ's answers to a commit mean, connections in a forked child, and messages that name themselves alike."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backstop.brokers.activemq import drain as draining
from backstop.brokers.activemq.frames import Frame
from backstop.brokers.activemq.names import Names
from backstop.brokers.activemq.publish import Publisher, _uncommitted
from backstop.brokers.activemq.read_progress import ProgressReader
from backstop.brokers.activemq.receive import ActiveMQSubscription
from backstop.brokers.activemq.session import Address, NotSent, Pool, Refused, Session
from backstop.brokers.activemq.unavailable import unavailable
from backstop.model.errors import BrokerUnavailable, ConfigurationError
from backstop.model.records import ID_HEADER, Message, Outcome


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("COMMIT FAILED: Transaction rolled back", Outcome.REFUSED),
        (
            "Transaction 'b-7' has not been started. Transaction marked rollback only",
            Outcome.REFUSED,
        ),
        ("STORE COMMIT FAILED: Transaction rolled back", Outcome.UNKNOWN),
        ("STORE COMMIT FAILED: Transaction marked rollback only", Outcome.UNKNOWN),
        ("POST COMMIT FAILED", Outcome.UNKNOWN),
        ("No space left on device", Outcome.UNKNOWN),
    ],
)
def test_a_commit_is_refused_only_where_the_store_was_never_asked(
    message: str, outcome: Outcome
) -> None:
    trace = b"javax.transaction.xa.XAException: COMMIT FAILED\n caused by: Transaction rolled back, marked rollback only"
    assert _uncommitted(Frame("ERROR", {"message": message}, trace)).outcome is outcome


def test_a_port_that_is_a_piece_of_a_password_is_not_told() -> None:
    for url in (
        "stomp://u:S3cret/word@host:61613",
        "stomp://u:p@host:61613?jolokia=http%3A%2F%2Fu%3AS3cret%2Fword%40host%3A8161",
    ):
        with pytest.raises(ConfigurationError) as refused:
            Address.parse(url)
        assert "S3cret" not in str(refused.value) and refused.value.__cause__ is None


def test_a_forked_child_does_not_use_its_parents_connections() -> None:
    class Session:
        closed = False

        def idle(self) -> bool:
            return True

    pool = Pool(Address.parse("stomp://u:p@127.0.0.1:1"), connect_timeout=0.1)
    pool.give_back(Session())  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            pool.take()
            theirs.sendall(b"parent's")
        except BaseException as error:  # noqa: BLE001 - the child tells, and ends here
            theirs.sendall(type(error).__name__.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert ours.recv(100) == b"NotSent", (
        "it makes a connection of its own, and nobody listens there"
    )
    assert isinstance(pool.take(), Session)


def test_two_messages_that_name_themselves_alike_are_acknowledged_each_for_itself() -> None:
    class Session:
        sent = b""

        def number(self) -> str:
            return "1"

        def ask(self, frames: bytes, *_: Any) -> None:
            Session.sent += frames

    pool = Pool(Address.parse("stomp://u:p@127.0.0.1:1"), connect_timeout=0.1)
    made = ActiveMQSubscription(
        pool,
        Names(),
        None,
        group="g",
        topics=["t"],
        seconds=1,
        delivery_limit=None,
    )
    made._session = Session()  # type: ignore[assignment]
    first, second = (
        made._take(
            Frame("MESSAGE", {"message-id": "order 7", "ack": ack, "subscription": "0"}, b"x")
        )
        for ack in ("A1", "A2")
    )
    made.acknowledge([first])
    assert b"id:A1" in Session.sent and b"A2" not in Session.sent
    made.acknowledge([second])
    assert b"id:A2" in Session.sent


def test_an_error_that_is_no_text_is_written_to_the_dead_letter_as_far_as_it_is_one() -> None:
    class Session:
        sent = b""

        def number(self) -> str:
            return "1"

        def ask(self, frames: bytes, *_: Any) -> None:
            Session.sent += frames

    made = ActiveMQSubscription(
        Pool(Address.parse("stomp://u:p@127.0.0.1:1"), connect_timeout=0.1),
        Names(),
        None,
        group="g",
        topics=["t"],
        seconds=1,
        delivery_limit=1,
    )
    made._session = Session()  # type: ignore[assignment]
    headers = {"message-id": "1", "ack": "A1", "subscription": "0", "backstop-message-id": "m"}
    received = made._take(Frame("MESSAGE", headers, b"x"))
    made.hand_back(received, after=timedelta(0), counts=True, error="ValueError: caf\udce9 \x00")
    assert b"backstop-error:ValueError\\c caf? \n" in Session.sent and b"id:A1" in Session.sent


def test_a_queue_that_is_missing_keeps_no_other_topic_back_and_is_taken_when_it_is_there() -> None:
    there = {"Consumer.g.VirtualTopic.t"}
    answers = True

    class Session:
        sent, heard_at = b"", time.monotonic()

        def number(self) -> str:
            return "1"

        def ask(self, frames: bytes, *_: Any) -> None:
            Session.sent += frames

        def read(self, _: float) -> None:
            return None

        def close(self) -> None:
            return None

    def depth(queue: str) -> tuple[int, int, int] | None:
        if not answers:
            raise unavailable("looking", "Jolokia did not answer")
        return (0, 0, 0) if queue in there else None

    made = ActiveMQSubscription(
        cast(Any, SimpleNamespace(new=Session)),
        Names(),
        cast(Any, SimpleNamespace(depth=depth)),
        group="g",
        topics=["u", "t"],
        seconds=1,
        delivery_limit=None,
    )
    assert made.fetch(1, timedelta(0)) == []
    assert Session.sent.count(b"SUBSCRIBE") == 1
    assert b"VirtualTopic.t\nid:1\n" in Session.sent
    there.add("Consumer.g.VirtualTopic.u")
    made.fetch(1, timedelta(0))
    assert Session.sent.count(b"SUBSCRIBE") == 1, "it looks only now and then"
    made._look_at, answers = 0.0, False
    assert made.fetch(1, timedelta(0)) == [], "what is subscribed goes on without Jolokia"
    made._look_at, answers = 0.0, True
    made.fetch(1, timedelta(0))
    made._look_at = 0.0
    made.fetch(1, timedelta(0))
    assert Session.sent.count(b"SUBSCRIBE") == 2
    assert b"VirtualTopic.u\nid:0\n" in Session.sent
    there.clear()
    made.close()
    with pytest.raises(BrokerUnavailable, match="has no queue"):
        made.fetch(1, timedelta(0))


def test_a_queue_that_may_not_be_read_keeps_no_other_topic_back_and_is_taken_when_it_may() -> None:
    closed = {"Consumer.g.VirtualTopic.u"}

    class Session:
        made, sent, heard_at = 0, b"", time.monotonic()

        def __init__(self) -> None:
            Session.made += 1

        def number(self) -> str:
            return "1"

        def ask(self, frames: bytes, *_: Any) -> None:
            if any(queue.encode() in frames for queue in closed):
                raise Refused("ERROR: User g is not authorized to read from")
            Session.sent += frames

        def read(self, _: float) -> None:
            return None

        def close(self) -> None:
            return None

    def subscribed(*topics: str) -> ActiveMQSubscription:
        return ActiveMQSubscription(
            cast(Any, SimpleNamespace(new=Session)),
            Names(),
            cast(Any, SimpleNamespace(depth=lambda _: (0, 0, 0))),
            group="g",
            topics=topics,
            seconds=1,
            delivery_limit=None,
        )

    made = subscribed("u", "t")
    with pytest.raises(BrokerUnavailable, match="not authorized"):
        made.fetch(1, timedelta(0))
    for _ in range(3):
        assert made.fetch(1, timedelta(0)) == []
        made._look_at = 0.0
    assert (Session.made, Session.sent.count(b"SUBSCRIBE")) == (2, 1)
    assert b"VirtualTopic.t\nid:1\n" in Session.sent
    closed.clear()
    made._refused = dict.fromkeys(made._refused, 0.0)  # a minute later
    assert made.fetch(1, timedelta(0)) == []
    assert b"VirtualTopic.u\nid:0\n" in Session.sent
    assert Session.made == 2
    closed.add("Consumer.g.VirtualTopic.u")
    alone = subscribed("u")
    for _ in range(2):  # it has nothing else to do: the error is the answer
        with pytest.raises(BrokerUnavailable, match="not authorized"):
            alone.fetch(1, timedelta(0))


def test_a_silent_broker_costs_one_send_timeout_however_many_destinations_there_are() -> None:
    class Silent(Pool):
        asked = 0

        def take(self) -> Session:
            Silent.asked += 1
            time.sleep(0.1)
            raise NotSent("cannot log in: no answer in time")

    pool = Silent(Address.parse("stomp://u:p@127.0.0.1:1"), connect_timeout=0.1)
    publisher = Publisher(pool, Names(), None, send_timeout=0.3, max_bytes=1000)
    for _ in range(10):
        receipts = publisher.publish([Message(f"t{n}", "1", b"") for n in range(20)], None)
        if Silent.asked:
            break  # on a busy machine the time may be over before it is asked
    assert {one.outcome for one in receipts} == {Outcome.REFUSED}
    assert 1 <= Silent.asked <= 4


def test_a_silent_jolokia_costs_one_send_timeout_however_many_topics_there_are() -> None:
    asked = 0

    def there(_: str) -> bool:
        nonlocal asked
        asked += 1
        time.sleep(0.1)
        raise unavailable("looking", "Jolokia did not answer")

    pool = Pool(Address.parse("stomp://u:p@127.0.0.1:1"), connect_timeout=0.1)
    publisher = Publisher(pool, Names(), there, send_timeout=0.3, max_bytes=1000)
    for _ in range(10):
        receipts = publisher.publish([Message(f"t{n}", "1", b"") for n in range(20)], None)
        if asked:
            break  # on a busy machine the time may be over before it is asked
    assert {(one.outcome, one.refused_for_good) for one in receipts} == {(Outcome.REFUSED, False)}
    assert 1 <= asked <= 4


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            "User name [shop] or password is invalid.",
            "ActiveMQ refused connecting: User name [shop]",
        ),
        ("Jolokia answered 403: Forbidden", "ActiveMQ refused connecting: Jolokia"),
        ("Connection refused", "ActiveMQ did not answer while connecting: Connection refused"),
    ],
)
def test_a_broker_that_lets_nobody_in_is_not_called_silent(why: str, said: str) -> None:
    assert unavailable("connecting", why).what.startswith(said)


def test_a_message_under_another_programs_id_is_not_asked_for_and_stops_nobody() -> None:
    class Beans:
        def queue_bean(self, name: str) -> str:
            return name

        def run(self, *_: Any) -> Any:  # as the broker: a NumberFormatException
            raise unavailable("asking its management beans", "Jolokia: 500")

    reader = ProgressReader(
        cast(Any, None), cast(Any, Beans()), Names(), seconds=1, broker_redelivers=False
    )
    for odd in ("order 7", "ID:x-1", "ID:a:b:1", ""):
        assert not reader.whole("DLQ.q", Frame("MESSAGE", {"message-id": odd}, b"", True))
    for own in ("ID:h-38173-1700000000000-3:1:-1:1:7", "ID:h-1-2-3:1:1:1:12"):
        with pytest.raises(BrokerUnavailable):
            reader.whole("DLQ.q", Frame("MESSAGE", {"message-id": own}, b"", True))


def test_a_broker_that_is_stopping_has_no_beans_and_is_not_taken_for_an_empty_one() -> None:
    class Stopping(Pool):
        def new(self) -> Session:
            raise NotSent("cannot connect: refused")

    beans = SimpleNamespace(queues=dict, bean=lambda *parts: ",".join(parts), read=lambda *_: None)
    pool = Stopping(Address.parse("stomp://u:p@127.0.0.1:1"), connect_timeout=0.1)
    reader = ProgressReader(pool, cast(Any, beans), Names(), seconds=1, broker_redelivers=False)
    with pytest.raises(BrokerUnavailable):
        reader.dead_letters("billing")
    publisher = Publisher(pool, Names(), reader.there, send_timeout=1, max_bytes=1000)
    [receipt] = publisher.publish([Message("orders", "m", b"")], None)
    assert (receipt.outcome, receipt.refused_for_good) == (Outcome.REFUSED, False)


def test_letters_that_must_stay_hide_none_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "PREFETCH", 4)
    monkeypatch.setattr(draining, "LETTERS_IN_HAND", 2)
    ids = {n: f"ID:h-1-2-3:1:1:1:{n}" for n in range(5)}
    there = [Frame("MESSAGE", {"message-id": ids[n], "ack": str(n)}, b"", True) for n in range(4)]
    there.append(Frame("MESSAGE", {"message-id": ids[4], "ack": "4", ID_HEADER: "m"}, b"x"))

    class Session:
        room = given = 0
        was_quiet = False

        def number(self) -> str:
            return "1"

        def ask(self, frames: bytes, *_: Any) -> None:
            self.room += 4 * frames.count(b"SUBSCRIBE")

        def read(self, _: float) -> Frame | None:
            if self.given == min(self.room, len(there)):
                return None
            if (
                self.given == 4 and not self.was_quiet
            ):  # what lies behind comes a moment after it was asked for
                self.was_quiet = True
                return None
            self.given += 1
            return there[self.given - 1]

        def close(self) -> None: ...

    def whole(_: str, frame: Frame) -> bool:
        time.sleep(0 if frame.body else 0.06)  # four of them take longer than the reader has
        return bool(frame.body)

    reader = SimpleNamespace(depth=lambda _: (5, 5, 5), whole=whole)
    letters = draining.ActiveMQLetters(
        cast(Any, SimpleNamespace(new=Session)), cast(Any, reader), Names(), "DLQ.q", seconds=0.2
    )
    assert [one.message_id for one in letters.read(10)] == ["m"]
    with pytest.raises(BrokerUnavailable, match="4 dead letters are messages whose content"):
        letters.read(10)
