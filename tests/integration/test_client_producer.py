"""The producer's side on real parts: the stub in the business transaction, the send after it, its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import psycopg2
import pytest
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extensions import connection as PlainConnection
from psycopg2.extensions import cursor as PlainCursor
from psycopg2.extras import RealDictCursor

from backstop.brokers.protocol import Receipt
from backstop.brokers.redis_streams import RedisStreams
from backstop.client import (
    KeptConnection,
    NewMessage,
    Recorded,
    SendPolicy,
    SendState,
    publish,
    record,
    record_many,
    send,
    send_many,
)
from backstop.model.errors import ConfigurationError, ContractBroken, StoreUnavailable
from backstop.model.records import Message, Outcome
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.valkey import Valkey
from client_world import (  # noqa: F401
    GROUP,
    TOPIC,
    Database,
    broker,
    open_broker,
    postgres,
    producer,
    stored,
    valkey,
)

POLICY = SendPolicy(timedelta(seconds=30), timedelta(seconds=20), timedelta(seconds=5))
ID = "order-1:placed"


def committed(database: Database, message_id: str = ID, **values: Any) -> Recorded:
    """A stub with its business row, committed together."""
    connection = database.connect()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO business_order VALUES (%s)", (message_id,))
            values = {"content": b"{}", "policy": POLICY, **values}
            return record(connection, TOPIC, message_id=message_id, **values)
    finally:
        connection.close()


def stub(database: Database, message_id: str = ID) -> dict[str, Any]:
    return database.one(
        "SELECT *, extract(epoch FROM next_check_at - created_at)::float8 AS check_after,"
        " extract(epoch FROM attempt_deadline - attempted_at)::float8 AS attempt_lasts"
        " FROM message_stub WHERE message_id = %s",
        (message_id,),
    )


def attempts(database: Database) -> list[dict[str, Any]]:
    return database.run("SELECT * FROM send_attempt ORDER BY message_id")


class Answering:
    """A broker that answers as told, and remembers what reached it; `before` happens inside the publish."""

    def __init__(
        self, outcome: Outcome, before: Any = None, *, error: str = "as told \x00"
    ) -> None:
        self.outcome, self.before, self.published = outcome, before, list[Message]()
        self.error = error

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        self.published += messages
        if self.before:
            self.before()
        return [Receipt(self.outcome, error=self.error) for _ in messages]


def test_the_stub_and_the_business_change_are_both_there_or_neither(producer: Database) -> None:
    connection = producer.connect()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO business_order VALUES ('1')")
    record(connection, TOPIC, b"x", message_id=ID)
    assert producer.run("SELECT 1 FROM message_stub") == [], "record must not commit"
    connection.rollback()
    assert producer.run("SELECT 1 FROM message_stub") == []
    record(connection, TOPIC, b"x", message_id=ID)
    connection.commit()
    connection.close()
    assert stub(producer)["status"] == "pending"


def test_record_hands_out_the_first_number_with_a_token_and_a_deadline(producer: Database) -> None:
    recorded = committed(
        producer,
        content=b"\x00\xff",
        content_type="application/json",
        headers={"trace": "é"},
        tag="paid",
        ordering_key="order-1",
        sequence=7,
        message_key="k",
    )
    row = stub(producer)
    assert (row["send_count"], row["refusals"], row["attempt_token"]) == (1, 0, recorded.token)
    assert (row["check_after"], row["attempt_lasts"], row["attempt_requested_by"]) == (
        30.0,
        20.0,
        "producer",
    )
    assert row["attempted_at"] == row["created_at"]
    assert (row["tag"], row["ordering_key"], row["sequence"], row["message_key"]) == (
        "paid",
        "order-1",
        7,
        "k",
    )
    assert (bytes(row["content"]), row["content_type"]) == (b"\x00\xff", "application/json")
    assert row["headers"] == {"trace": "é", "content-type": "application/json"}
    assert recorded.message.partition_key == "order-1"


def test_what_backstop_is_to_send_has_no_number_yet(
    producer: Database, broker: RedisStreams
) -> None:
    recorded = committed(producer, send=False)
    row = stub(producer)
    assert (row["send_count"], row["attempt_token"], row["attempted_at"]) == (0, None, None)
    assert row["check_after"] == 30.0
    with pytest.raises(ContractBroken):
        send(recorded, broker, producer.connect)
    assert stored(broker) == []


def test_a_delivery_beyond_the_longest_delay_is_refused(producer: Database) -> None:
    """Nobody would keep the logs for so long, and it would be too old before it was sent at all."""
    policy = SendPolicy(longest_delay=timedelta(days=2))
    with pytest.raises(ContractBroken, match=r"more than longest_delay \(2 days"):
        committed(
            producer, deliver_at=datetime.now(UTC) + timedelta(days=2, minutes=1), policy=policy
        )
    committed(producer, deliver_at=datetime.now(UTC) + timedelta(days=2, minutes=-1), policy=policy)


def test_a_later_delivery_is_looked_at_after_it_and_never_sent_early(
    producer: Database, broker: RedisStreams
) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    recorded = committed(producer, deliver_at=due)
    assert stub(producer)["next_check_at"] == due + timedelta(seconds=30)
    with pytest.raises(ContractBroken, match="delivered"):
        send(recorded, broker, producer.connect)
    assert stored(broker) == []


@pytest.mark.parametrize(
    ("content", "says"), [(b"{}", "the same content"), (b"[]", "another content")]
)
def test_an_id_that_was_recorded_before_is_refused(
    producer: Database, content: bytes, says: str
) -> None:
    committed(producer)
    before = stub(producer)
    connection = producer.connect()
    with pytest.raises(ContractBroken, match=says) as raised:
        record(connection, TOPIC, content, message_id=ID)
    connection.commit()  # even then
    connection.close()
    assert stub(producer) == before
    assert all((raised.value.what, raised.value.unaffected, raised.value.next_step))


def test_an_autocommit_connection_is_refused(producer: Database) -> None:
    connection = producer.connect()
    connection.autocommit = True
    with pytest.raises(ContractBroken, match="autocommit"):
        record(connection, TOPIC, b"x", message_id=ID)
    connection.close()
    assert producer.run("SELECT 1 FROM message_stub") == []


@pytest.mark.parametrize("message_id", ["ключ/鍵", "a:b%s%%(x)s", 'it\'s "quoted" \\', "{0}"])
def test_any_id_reaches_the_broker_whole(
    producer: Database, broker: RedisStreams, message_id: str
) -> None:
    assert send(committed(producer, message_id), broker, producer.connect).state == SendState.SENT
    assert stored(broker) == [message_id]
    assert stub(producer, message_id)["sent_at"] is not None


def test_a_send_settles_with_position_epoch_and_attempt(
    producer: Database, broker: RedisStreams
) -> None:
    sent = send(committed(producer), broker, producer.connect, broker_name="embedded")
    row, (attempt,) = stub(producer), attempts(producer)
    assert sent.settled
    assert sent.receipt is not None
    position = sent.receipt.position
    assert position is not None
    assert (row["queue_id"], row["queue_offset"], row["queue_epoch"]) == (
        position.queue_id,
        position.offset,
        position.epoch,
    )
    assert (row["broker"], row["attempt_token"], row["send_count"], row["refusals"]) == (
        "embedded",
        None,
        1,
        0,
    )
    assert row["sent_at"] >= row["attempted_at"]
    assert (attempt["send_number"], attempt["requested_by"], attempt["outcome"]) == (
        1,
        "producer",
        "sent",
    )
    assert (attempt["queue_offset"], attempt["started_at"]) == (
        position.offset,
        row["attempted_at"],
    )
    assert attempt["groups"] is None


def test_the_copy_carries_its_headers_and_its_number(
    producer: Database, broker: RedisStreams
) -> None:
    send(committed(producer, headers={"trace": "1"}), broker, producer.connect)
    (received,) = broker.subscribe(GROUP, [TOPIC], "w").fetch(10, timedelta(seconds=1))
    headers = dict(received.message.headers)
    assert (headers["trace"], headers["backstop-send-number"]) == ("1", "1")
    assert headers["backstop-message-id"] == ID


def test_a_refusal_is_counted_and_leaves_the_next_look(
    producer: Database, broker: RedisStreams
) -> None:
    broker.delete_topic(TOPIC)
    before = committed(producer)
    due = stub(producer)["next_check_at"]
    assert send(before, broker, producer.connect).state == SendState.REFUSED
    row, (attempt,) = stub(producer), attempts(producer)
    assert (row["refusals"], row["sent_at"], row["attempt_token"], row["queue_offset"]) == (
        1,
        None,
        None,
        None,
    )
    assert row["next_check_at"] == due
    assert (attempt["outcome"], bool(attempt["error"])) == ("refused", True)


def test_an_error_that_no_database_holds_leaves_the_outcome_known(producer: Database) -> None:
    refusing = Answering(
        Outcome.REFUSED, error="half \ud800 of a character, and \x00" + "!" * 2_000
    )
    sent = send(committed(producer), refusing, producer.connect)  # type: ignore[arg-type]
    row, (attempt,) = stub(producer), attempts(producer)
    assert (sent.state, sent.settled) == (SendState.REFUSED, True)
    assert (row["refusals"], row["attempt_token"], attempt["outcome"]) == (1, None, "refused")
    assert attempt["error"].startswith("half ? of a character, and \ufffd!")
    assert len(attempt["error"]) == 2_000


def test_a_broker_that_is_not_there_refuses_certainly(producer: Database) -> None:
    with open_broker(f"redis://127.0.0.1:{free_port()}/0") as nowhere:
        assert send(committed(producer), nowhere, producer.connect).state == SendState.REFUSED


def test_an_unknown_end_is_stored_as_unknown(producer: Database) -> None:
    sent = send(committed(producer), Answering(Outcome.UNKNOWN), producer.connect)  # type: ignore[arg-type]
    row, (attempt,) = stub(producer), attempts(producer)
    assert (sent.state, attempt["outcome"]) == (SendState.UNKNOWN, "unknown")
    assert (row["refusals"], row["sent_at"], row["attempt_token"], row["status"]) == (
        0,
        None,
        None,
        "pending",
    )
    assert row["attempt_deadline"] is not None, "until then the copy may still arrive"


@pytest.mark.parametrize("outcome", [Outcome.SENT, Outcome.UNKNOWN])
def test_a_send_that_began_late_is_not_past_before_it_can_have_been_stored(
    producer: Database, outcome: Outcome
) -> None:
    # The rule takes a copy without a trusted offset for stored by attempted_at + max_send_duration.
    recorded = committed(producer)
    producer.run("UPDATE message_stub SET attempted_at = attempted_at - interval '1 minute'")
    send(recorded, Answering(outcome), producer.connect)  # type: ignore[arg-type]
    row, (attempt,) = stub(producer), attempts(producer)
    assert row["attempted_at"] + recorded.policy.max_send_duration >= attempt[
        "finished_at"
    ] - timedelta(seconds=1)
    assert attempt["started_at"] == row["attempted_at"]


@pytest.mark.parametrize("how", ["another connection", "the same connection", "a kept connection"])
def test_inside_the_uncommitted_transaction_nothing_is_sent_and_the_transaction_is_left_alone(
    producer: Database, broker: RedisStreams, how: str
) -> None:
    kept = KeptConnection(producer.connect, "producer database")
    with kept.transaction() as connection:
        recorded = record(connection, TOPIC, b"x", message_id=ID, policy=POLICY)
        connect = {
            "another connection": producer.connect,
            "the same connection": lambda: connection,
            "a kept connection": kept,
        }[how]
        with pytest.raises(ContractBroken):
            send(recorded, broker, connect)
        assert stored(broker) == []
        assert producer.run("SELECT 1 FROM message_stub") == []
    assert send(recorded, broker, kept).state == SendState.SENT
    kept.close()


class Logged(PlainConnection):
    """Keeps whether the server was in a transaction after each statement, and what the connection was left as."""

    seen: ClassVar[list[int]] = []

    def cursor(self, *given: Any, **named: Any) -> Any:
        return super().cursor(*given, cursor_factory=_LoggedCursor, **named)


class _LoggedCursor(PlainCursor):
    def execute(self, *given: Any) -> None:
        super().execute(*given)
        Logged.seen.append(self.connection.info.transaction_status)


def test_the_look_and_the_settle_are_one_round_trip_each_and_leave_the_connection_as_it_was(
    producer: Database, broker: RedisStreams
) -> None:
    recorded, connection = committed(producer), producer.connect(connection_factory=Logged)
    Logged.seen.clear()
    kept = KeptConnection(lambda: connection, "producer database")
    assert send(recorded, broker, kept).settled
    assert Logged.seen == [TRANSACTION_STATUS_IDLE] * 2, "the server committed each by itself"
    assert stub(producer)["sent_at"] is not None and connection.autocommit is False
    with pytest.raises(ContractBroken, match="not committed"):
        send(replace(recorded, message=replace(recorded.message, message_id="no")), broker, kept)
    assert connection.autocommit is False
    connection.close()
    with pytest.raises(StoreUnavailable):
        kept.run("SELECT 1 AS one", {})
    kept.close()


def test_an_open_transaction_is_seen_by_the_database_when_the_driver_does_not_tell(
    producer: Database, broker: RedisStreams
) -> None:
    connection = producer.connect(connection_factory=Silent)
    recorded = record(connection, TOPIC, b"x", message_id=ID, policy=POLICY)
    with pytest.raises(ContractBroken, match="not committed"):
        send(recorded, broker, lambda: connection)
    assert stored(broker) == []
    assert producer.run("SELECT 1 FROM message_stub") == []


def test_after_a_rollback_nothing_is_sent(producer: Database, broker: RedisStreams) -> None:
    connection = producer.connect()
    recorded = record(connection, TOPIC, b"x", message_id=ID, policy=POLICY)
    connection.rollback()
    connection.close()
    good = committed(producer, "good")
    with pytest.raises(ContractBroken, match="rolled back"):
        send_many([good, recorded], broker, producer.connect)
    assert stored(broker) == []
    assert stub(producer, "good")["attempt_token"] == good.token


@pytest.mark.parametrize(
    "change",
    [
        "attempt_deadline = clock_timestamp() + interval '4.9 s'",  # less than a send may take
        "attempt_deadline = clock_timestamp() - interval '1 s'",
        "attempt_token = NULL",  # recovered: Backstop may have sent number 2
        "attempt_token = gen_random_uuid(), send_count = 2",
        "status = 'voided'",
    ],
)
def test_a_late_sender_publishes_nothing(
    producer: Database, broker: RedisStreams, change: str
) -> None:
    late, timely = committed(producer, "late"), committed(producer, "timely")
    producer.run(f"UPDATE message_stub SET {change} WHERE message_id = 'late'")
    before = stub(producer, "late")
    ends = send_many([late, timely], broker, producer.connect)
    assert [end.state for end in ends] == [SendState.LEFT, SendState.SENT]
    assert stored(broker) == ["timely"]
    assert stub(producer, "late") == before


def test_time_that_passes_after_the_look_counts(
    producer: Database, broker: RedisStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = committed(producer)
    times = iter([100.0, 115.1])  # the look, and the moment before the publish: 20 s - 15.1 s < 5 s
    monkeypatch.setattr(publish, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert send(recorded, Answering(Outcome.SENT), producer.connect).state == SendState.LEFT  # type: ignore[arg-type]


def test_a_message_is_sent_once_by_its_handle(producer: Database, broker: RedisStreams) -> None:
    recorded = committed(producer)
    assert send(recorded, broker, producer.connect).state == SendState.SENT
    assert send(recorded, broker, producer.connect).state == SendState.LEFT
    with pytest.raises(ContractBroken, match="twice"):
        send_many([recorded, recorded], broker, producer.connect)
    assert stored(broker) == [ID]


def test_a_settle_whose_attempt_was_recovered_meanwhile_changes_nothing(producer: Database) -> None:
    def recover() -> None:
        producer.run("UPDATE message_stub SET attempt_token = NULL")

    recorded = committed(producer)
    sent = send(recorded, Answering(Outcome.SENT, recover), producer.connect)  # type: ignore[arg-type]
    assert (sent.state, sent.settled) == (SendState.SENT, False)
    assert (attempts(producer), stub(producer)["sent_at"]) == ([], None)


def test_without_the_database_nothing_is_published(
    producer: Database, broker: RedisStreams
) -> None:
    recorded = committed(producer)

    def nowhere() -> Any:
        return psycopg2.connect(
            f"postgresql://u:hidden-word@127.0.0.1:{free_port()}/x", connect_timeout=2
        )

    with pytest.raises(StoreUnavailable) as raised:
        send(recorded, broker, nowhere)
    assert "hidden-word" not in str(raised.value)
    assert stored(broker) == []


def test_a_send_whose_outcome_cannot_be_stored_is_not_called_failed(
    producer: Database,
) -> None:
    recorded = committed(producer)
    backends = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'producer' AND pid <> pg_backend_pid()"
    told = Answering(Outcome.SENT, lambda: producer.run(backends))
    sent = send(recorded, told, producer.connect)  # type: ignore[arg-type]
    assert (sent.state, sent.settled) == (SendState.SENT, False)
    assert stub(producer)["attempt_token"] == recorded.token, "its recovery is by deadline"


def test_a_settle_that_the_database_refuses_is_no_failed_send(
    producer: Database, broker: RedisStreams
) -> None:
    # As with the grants of the version before, which lack a column: the message is out, and must not be sent again by hand.
    recorded = committed(producer)
    producer.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE insufficient_privilege; END'"
    )
    producer.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON message_stub FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        sent = send(recorded, broker, producer.connect)
    finally:
        producer.run("DROP FUNCTION refuse CASCADE")
    assert (sent.state, sent.settled, stored(broker)) == (SendState.SENT, False, [ID])


def test_many_are_recorded_and_sent_in_batches(producer: Database, broker: RedisStreams) -> None:
    names = [f"m{number:04}" for number in range(1200)]
    connection = producer.connect()
    recorded = record_many(
        connection, [NewMessage(TOPIC, n, n.encode()) for n in names], policy=POLICY
    )
    connection.commit()
    connection.close()
    ends = send_many(recorded, broker, producer.connect)
    assert [end.key.message_id for end in ends] == names
    assert all(end.settled and end.state == SendState.SENT for end in ends)
    assert stored(broker) == names
    assert producer.one("SELECT count(*) FROM send_attempt WHERE outcome = 'sent'")["count"] == 1200


def test_a_batch_with_an_id_twice_writes_nothing(producer: Database) -> None:
    connection = producer.connect()
    with pytest.raises(ContractBroken, match="twice"):
        record_many(connection, [NewMessage(TOPIC, "a", b""), NewMessage(TOPIC, "a", b"")])
    connection.commit()
    connection.close()
    assert producer.run("SELECT 1 FROM message_stub") == []


@pytest.mark.parametrize(
    "values",
    [
        {"message_id": ""},
        {"message_id": "a\x00"},
        {"message_id": "x" * 1025},
        {"message_id": "\ud800"},
        {"topic": ""},
        {"content": "text"},
        {"content": b"x" * (4 * 1024 * 1024 + 1)},
        {"headers": {"a": 1}},
        {"headers": {"a": "\x00"}},
        {"headers": {"backstop-groups": "[]"}},
        {"message_id": " \t"},
        {"topic": " "},
        {"ordering_key": ""},
        {"ordering_key": "x" * 1025},
        {"tag": ""},
        {"deliver_at": datetime(2026, 1, 1)},
    ],
    ids=str,
)
def test_values_that_are_not_allowed_are_refused_before_anything_is_written(
    producer: Database, values: dict[str, Any]
) -> None:
    connection = producer.connect()
    given = {"topic": TOPIC, "content": b"", "message_id": ID, **values}
    with pytest.raises(ContractBroken) as raised:
        record(connection, given.pop("topic"), given.pop("content"), **given)
    connection.commit()
    connection.close()
    assert producer.run("SELECT 1 FROM message_stub") == []
    assert all((raised.value.what, raised.value.unaffected, raised.value.next_step))


def test_an_attempt_that_could_end_before_its_send_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        SendPolicy(attempt_timeout=timedelta(seconds=30), max_send_duration=timedelta(seconds=30))
    with pytest.raises(ConfigurationError):
        SendPolicy(first_check=timedelta(seconds=1))


class Silent(PlainConnection):
    """A connection of a driver that does not tell whether a transaction is open."""

    info = None  # type: ignore[assignment]


class Positional(PlainConnection):
    """A connection of a driver that takes positional parameters only, as pg8000 does."""

    def cursor(self, *given: Any, **named: Any) -> Any:
        cursor = super().cursor(*given, **named)
        return _PositionalCursor(cursor)


class _PositionalCursor:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: str, parameters: Any) -> None:
        assert isinstance(parameters, tuple)
        self._cursor.execute(statement, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.parametrize("driver", ["positional", "dictionary cursors"])
def test_any_driver_will_do(
    producer: Database, broker: RedisStreams, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("positional_driver")
    module.paramstyle = "format"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "positional_driver", module)
    monkeypatch.setattr(Positional, "__module__", "positional_driver")
    options: dict[str, Any] = {
        "positional": {"connection_factory": Positional},
        "dictionary cursors": {"cursor_factory": RealDictCursor},
    }[driver]
    connection = producer.connect(**options)
    recorded = record(connection, TOPIC, b"x", message_id=ID, policy=POLICY)
    connection.commit()
    connection.close()
    assert send(recorded, broker, lambda: producer.connect(**options)).settled
    assert stub(producer)["sent_at"] is not None


def test_a_server_killed_in_the_publish_is_never_called_sent(
    producer: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Valkey(tmp_path_factory.mktemp("doomed")) as server, open_broker(server.url()) as streams:
        streams.create_topic(TOPIC, 1)
        recorded = committed(producer)
        server.kill()
        assert send(recorded, streams, producer.connect).state in (
            SendState.REFUSED,
            SendState.UNKNOWN,
        )
        assert stub(producer)["sent_at"] is None


def test_a_forked_child_opens_a_connection_of_its_own(producer: Database) -> None:
    """It would commit in the midst of its parent's transaction."""
    store = KeptConnection(producer.connect, "producer database")
    (mine,) = store.run("SELECT pg_backend_pid() AS pid", {})
    read, write = os.pipe()
    if not os.fork():
        try:
            (its,) = store.run("SELECT pg_backend_pid() AS pid", {})
            store.close()
            os.write(write, str(its["pid"]).encode())
        finally:
            os._exit(0)
    os.wait()
    os.close(write)
    assert int(os.read(read, 20)) != mine["pid"]
    os.close(read)
    assert store.run("SELECT pg_backend_pid() AS pid", {}) == [mine], "the parent's goes on"
    store.close()
