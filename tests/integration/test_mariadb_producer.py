"""Stubs in MariaDB as their producer writes them, with the roles that are shipped, and what retention and the audit do there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pymysql
import pytest

from backstop.brokers.protocol import Receipt
from backstop.client import (
    KeptConnection,
    NewMessage,
    Recorded,
    SendPolicy,
    SendState,
    record,
    record_many,
    send,
    send_many,
)
from backstop.client import publish as publishing
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.model.errors import ContractBroken, StoreFailed, StoreUnavailable
from backstop.model.records import Key, Message, Outcome, Position
from backstop.schema.migrate import current, grant, head, migrate
from backstop.sql.mysql import MysqlConnection
from backstop.stores import locked_rows
from backstop.stores.mariadb import change_stubs
from backstop.stores.mariadb.check import _durability
from backstop.stores.mariadb.stubs import MariaStubs
from backstop.stores.open import open_stub_audit, open_stub_purge, open_stub_store
from backstop.stores.protocol import Claim, Handed, Scope, Settlement, StubOutcome
from backstop.stores.purge import FIRST_STUB
from maria_world import MariaDatabase, MariaStubWorld, maria_database, maria_server
from mariadb import MariaDB, connect_to
from store_world import NOW, reopen, token
from system import settings_dict

__all__ = ["maria_server"]
POLICY = SendPolicy(timedelta(seconds=30), timedelta(seconds=20), timedelta(seconds=5))
TOPIC, ID = "orders", "order-1:placed"
KEY = Key(TOPIC, ID)
ODD = [
    "a",
    "a ",
    "A",
    "á",
    "per%cent%(x)s",
    "it's",
    "中' OR 1=1 -- ",
    '{"name":"中"}',
    "back\\slash",
    "emoji-🚚",
    "line\nbreak",
    "z" * 1024,
]
LOGIN = "d0-it"


@pytest.fixture(scope="module")
def database(maria_server: MariaDB) -> Iterator[MariaDatabase]:
    with maria_database(maria_server, "producer") as made:
        yield made


@pytest.fixture
def producer(database: MariaDatabase) -> MariaDatabase:
    for table in ("message_stub", "business_order"):
        database.run(f"DELETE FROM {table}")
    return database


@pytest.fixture
def world(producer: MariaDatabase) -> MariaStubWorld:
    return MariaStubWorld.of(producer)


def committed(database: MariaDatabase, message_id: str = ID, **values: Any) -> Recorded:
    """A stub with its business row, committed together."""
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO business_order VALUES (%s)", (message_id[:255],))
        recorded = record(
            connection,
            TOPIC,
            message_id=message_id,
            **{"content": b"{}", "policy": POLICY, **values},
        )
        connection.commit()
    return recorded


class Answering:
    """A broker that answers as told, and remembers what reached it; `before` happens inside the publish."""

    def __init__(self, outcome: Outcome, before: Any = None) -> None:
        self.outcome, self.before, self.published = outcome, before, list[Message]()

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        self.published += messages
        if self.before:
            self.before()
        at = Position(2, 40, "é") if self.outcome is Outcome.SENT else None
        return [Receipt(self.outcome, at, "b-1", "as told \x00 é") for _ in messages]


def test_the_stub_and_the_business_change_are_both_there_or_neither(
    producer: MariaDatabase,
) -> None:
    with closing(producer.connect()) as connection:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO business_order VALUES ('1')")
        record(connection, TOPIC, b"x", message_id=ID)
        assert producer.run("SELECT 1 FROM message_stub") == [], "record must not commit"
        connection.rollback()
        assert producer.run("SELECT 1 FROM message_stub") == []
        record(connection, TOPIC, b"x", message_id=ID)
        connection.commit()
    assert producer.one("SELECT status FROM message_stub")["status"] == "pending"


def test_record_writes_every_column_and_hands_out_the_first_number(world: MariaStubWorld) -> None:
    recorded = committed(
        world.database,
        content=b"\x00\xff'",
        content_type="application/json",
        headers={"trace": "é'🚚"},
        tag="paid ",
        ordering_key="order-1",
        sequence=7,
        message_key="k",
    )
    row = world.stub(ID)
    assert (row["send_count"], row["refusals"], row["attempt_token"]) == (1, 0, recorded.token)
    assert row["next_check_at"] - row["created_at"] == timedelta(seconds=30)
    assert row["attempt_deadline"] - row["attempted_at"] == timedelta(seconds=20)
    assert row["attempted_at"] == row["created_at"] == row["updated_at"]
    assert abs(datetime.now(UTC) - row["created_at"]) < timedelta(minutes=1)
    assert (row["tag"], row["ordering_key"], row["sequence"], row["message_key"]) == (
        "paid ",
        "order-1",
        7,
        "k",
    )
    assert (row["content"], row["content_type"]) == (b"\x00\xff'", "application/json")
    with MariaStubs("shop_a", world.database.dsn) as stubs:
        assert stubs.contents([KEY]) == {KEY: recorded.message}


def test_what_backstop_is_to_send_has_no_number_and_waits_for_its_delivery(
    world: MariaStubWorld,
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    recorded = committed(world.database, send=False, deliver_at=at)
    row = world.stub(ID)
    assert (row["send_count"], row["attempt_token"], row["attempted_at"]) == (0, None, None)
    assert (row["deliver_at"], row["next_check_at"]) == (at, at + timedelta(seconds=30))
    broker = Answering(Outcome.SENT)
    with pytest.raises(ContractBroken):
        send(recorded, broker, world.database.connect)  # type: ignore[arg-type]
    assert broker.published == []


@pytest.mark.parametrize(("content", "says"), [(b"{}", "the same"), (b"!", "another")])
def test_an_id_that_was_recorded_before_is_refused_and_nothing_of_the_transaction_stays(
    producer: MariaDatabase, content: bytes, says: str
) -> None:
    committed(producer)
    with closing(producer.connect()) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM message_stub")  # the transaction's snapshot
            cursor.execute("INSERT INTO business_order VALUES ('2')")
        new = [NewMessage(TOPIC, name, content) for name in ("a", ID, "z")]
        with pytest.raises(ContractBroken, match=f"recorded before, with {says} content"):
            record_many(connection, new)
        connection.rollback()
    assert len(producer.run("SELECT 1 FROM message_stub")) == 1
    assert len(producer.run("SELECT 1 FROM business_order")) == 1


def test_of_two_that_record_one_id_at_once_the_second_hears_of_the_first(
    producer: MariaDatabase,
) -> None:
    with closing(producer.connect()) as first, closing(producer.connect()) as second:
        with second.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM message_stub")  # its snapshot is older
        record(first, TOPIC, b"{}", message_id=ID)
        first.commit()
        with pytest.raises(ContractBroken, match="the same content"):
            record(second, TOPIC, b"{}", message_id=ID)


def test_autocommit_and_values_that_no_column_holds_are_refused(producer: MariaDatabase) -> None:
    with closing(producer.connect(autocommit=True)) as connection:
        with pytest.raises(ContractBroken, match="autocommit"):
            record(connection, TOPIC, b"x", message_id=ID)
        connection.begin()
        record(connection, TOPIC, b"x", message_id=ID)
        connection.rollback()
        connection.begin()
        for wrong in ({"sequence": 2**63}, {"ordering_key": "k" * 1025}):
            with pytest.raises(ContractBroken):
                record(connection, TOPIC, b"x", message_id=ID, **wrong)  # type: ignore[arg-type]
        connection.rollback()
    assert producer.run("SELECT 1 FROM message_stub") == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"charset": "latin1"},
        {"charset": "gbk"},
        {"init_command": "SET sql_mode = '', time_zone = '+09:00'"},
    ],
    ids=[
        "as it is",
        "another character set",
        "one with a backslash in it",
        "not strict, in another zone",
    ],
)
def test_any_id_is_recorded_sent_and_settled_whole(
    world: MariaStubWorld, options: dict[str, Any]
) -> None:
    def connect() -> Any:
        return world.database.connect(**options)

    new = [NewMessage(TOPIC, name, name.encode(), tag=name, headers={"x": name}) for name in ODD]
    with closing(connect()) as connection:
        recorded = record_many(connection, new, policy=POLICY)
        connection.commit()
    broker = Answering(Outcome.SENT)
    ends = send_many(recorded, broker, connect, broker_name="main")  # type: ignore[arg-type]
    assert [(end.state, end.settled) for end in ends] == [(SendState.SENT, True)] * len(ODD)
    assert [message.message_id for message in broker.published] == ODD
    keys = [Key(TOPIC, name) for name in ODD]
    with MariaStubs("shop_a", world.database.dsn) as stubs:
        contents, attempts, found = stubs.contents(keys), stubs.attempts(keys), stubs.stubs(keys)
        now = stubs.clock()
    for key, one in zip(keys, recorded, strict=True):
        assert contents[key] == one.message
        (attempt,) = attempts[key]
        assert (attempt.send_number, attempt.outcome, attempt.error) == (
            1,
            "sent",
            "as told \ufffd é",
        )
        assert (attempt.queue_id, attempt.queue_offset, attempt.queue_epoch) == (2, 40, "é")
        stub = found[key]
        assert (stub.broker, stub.queue_epoch, stub.attempt_token) == ("main", "é", None)
        assert abs(now - stub.created_at) < timedelta(minutes=1)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_end_of_a_send_is_settled_once(world: MariaStubWorld, outcome: Outcome) -> None:
    recorded = committed(world.database)
    (end,) = [send(recorded, Answering(outcome), world.database.connect)]  # type: ignore[arg-type]
    assert (end.state, end.settled) == (SendState(outcome.value), True)
    row, (attempt,) = world.stub(ID), world.attempts()
    assert row["refusals"] == int(outcome is Outcome.REFUSED)
    assert (row["sent_at"] is not None) == (outcome is Outcome.SENT)
    assert (row["attempt_token"], row["attempt_requested_by"]) == (None, None)
    assert (attempt["outcome"], attempt["started_at"]) == (outcome.value, row["attempted_at"])
    again = Answering(outcome)
    ended = send(recorded, again, world.database.connect)  # type: ignore[arg-type]
    assert (ended.state, again.published) == (SendState.LEFT, [])
    assert (world.stub(ID), world.attempts()) == (row, [attempt])


def test_nothing_is_sent_before_the_commit_nor_after_a_rollback(producer: MariaDatabase) -> None:
    broker = Answering(Outcome.SENT)
    with closing(producer.connect()) as connection:
        kept = KeptConnection(lambda: connection, "producer database")
        with kept.short_transaction():
            pass  # it is open now
        recorded = record(connection, TOPIC, b"x", message_id=ID)
        for connect in (producer.connect, kept):
            with pytest.raises(ContractBroken, match="not committed"):
                send(recorded, broker, connect)  # type: ignore[arg-type]
        connection.rollback()
        with pytest.raises(ContractBroken, match="not committed"):
            send(recorded, broker, producer.connect)  # type: ignore[arg-type]
    assert broker.published == []


def test_a_late_sender_publishes_nothing_and_one_that_was_overtaken_settles_nothing(
    world: MariaStubWorld,
) -> None:
    late = committed(world.database, "late")
    world.run("", "UPDATE message_stub SET attempt_deadline = UTC_TIMESTAMP(6) + INTERVAL 4 SECOND")
    broker = Answering(Outcome.SENT)
    assert send(late, broker, world.database.connect).state is SendState.LEFT  # type: ignore[arg-type]
    assert broker.published == []
    overtaken = committed(world.database, "overtaken")

    def recover() -> None:
        world.run("", "UPDATE message_stub SET attempt_deadline = UTC_TIMESTAMP(6)")
        with MariaStubs("shop_a", world.database.dsn) as stubs:
            assert len(stubs.recover(9)) == 2

    end = send(overtaken, Answering(Outcome.SENT, recover), world.database.connect)  # type: ignore[arg-type]
    assert (end.state, end.settled) == (SendState.SENT, False)
    assert {row["outcome"] for row in world.attempts()} == {"unknown"}


def test_many_are_recorded_and_sent_in_batches(
    world: MariaStubWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "BATCH", 400)
    names = [f"m-{number:04}" for number in range(1100)]
    with closing(world.database.connect()) as connection:
        recorded = record_many(connection, [NewMessage(TOPIC, name, b"x") for name in names[::-1]])
        connection.commit()
    ends = send_many(recorded, Answering(Outcome.SENT), world.database.connect)  # type: ignore[arg-type]
    assert [end.key.message_id for end in ends] == names[::-1] and all(end.settled for end in ends)
    assert len(world.attempts()) == 1100


def test_without_the_database_nothing_is_published(world: MariaStubWorld) -> None:
    recorded, broker = committed(world.database), Answering(Outcome.SENT)
    gone = world.database.dsn.replace(str(world.server.port), "1")
    with pytest.raises(StoreUnavailable):
        send(recorded, broker, lambda: connect_to(gone, connect_timeout=1))  # type: ignore[arg-type]
    assert broker.published == []


def login(database: MariaDatabase, role: str) -> str:
    """The URL of a login that has this role, and nothing else."""
    grant(database.dsn, "producer")
    for statement in (
        f"CREATE OR REPLACE USER it@'127.0.0.1' IDENTIFIED BY '{LOGIN}'",
        f"GRANT {role} TO it@'127.0.0.1'",
        f"SET DEFAULT ROLE {role} FOR it@'127.0.0.1'",
    ):
        database.run(statement)
    return f"mysql://it:{LOGIN}@127.0.0.1:{database.server.port}/{database.name}"


def test_the_application_records_and_settles_with_its_role_and_decides_nothing(
    world: MariaStubWorld,
) -> None:
    url = login(world.database, "backstop_app")
    with closing(connect_to(url)) as connection:
        recorded = record(connection, TOPIC, b"x", message_id=ID)
        connection.commit()
        with pytest.raises(ContractBroken, match="recorded before"):
            record(connection, TOPIC, b"x", message_id=ID)
        connection.rollback()
        for wrong in ("UPDATE message_stub SET status = 'confirmed'", "DELETE FROM message_stub"):
            with pytest.raises(pymysql.MySQLError), connection.cursor() as cursor:
                cursor.execute(wrong)
    assert send(recorded, Answering(Outcome.SENT), lambda: connect_to(url)).settled  # type: ignore[arg-type]


def test_a_row_that_a_trigger_refuses_costs_itself_and_not_its_shard(world: MariaStubWorld) -> None:
    for name in ("m-1", "m-2"):
        world.put_stub(message_id=name, send_count=1)
    world.database.run(
        "CREATE TRIGGER refuses BEFORE UPDATE ON message_stub FOR EACH ROW"
        " IF NEW.message_id = 'm-1' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    )
    claims = [
        Claim(Key(TOPIC, name), 2, token(), ["billing"], "request 7", 60, 90, 5, 20, True)
        for name in ("m-1", "m-2")
    ]
    try:
        with MariaStubs("shop_a", world.database.dsn) as stubs:
            with pytest.raises(pymysql.MySQLError, match="not this one"):
                stubs.claim(claims)
            assert stubs.claim(claims[1:]).keys() == {claims[1].key}
    finally:
        world.database.run("DROP TRIGGER refuses")  # other tests have the database, too


def test_a_stub_that_a_trigger_keeps_closed_is_named_and_the_others_are_reopened(
    world: MariaStubWorld,
) -> None:
    keys = [Key(TOPIC, name) for name in ("a", "b", "odd")]
    for key in keys:
        world.put_stub(message_id=key.message_id, status="confirmed")
    world.database.run(
        "CREATE TRIGGER keeps BEFORE UPDATE ON message_stub FOR EACH ROW"
        " IF NEW.message_id = 'odd' THEN SET NEW.status = OLD.status; END IF"
    )
    refused: list[tuple[Key, StoreFailed]] = []
    try:
        with MariaStubs("shop_a", world.database.dsn) as stubs:
            assert sum(apply_apart(keys, stubs.reopen, refused)) == 2
            closed = [key for key, one in stubs.stubs(keys).items() if one.status == "confirmed"]
    finally:
        world.database.run("DROP TRIGGER keeps")
    assert [key for key, _ in refused] == closed == keys[2:]


@pytest.mark.parametrize("change", ["claim", "settle", "promote", "recover"])
def test_rows_that_another_transaction_holds_cost_themselves_and_not_their_shard(
    world: MariaStubWorld, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(locked_rows, "LOCK_TIMEOUT", timedelta(seconds=1))
    names, mine = ("m-1", "m-2", "m-3"), token()
    attempt: dict[str, Any] = {}
    if change in ("settle", "recover"):
        over = NOW - timedelta(days=9999)
        attempt = {"attempt_token": mine, "attempt_deadline": over, "attempted_at": NOW}
    for name in names:
        world.put_stub(message_id=name, send_count=1, **attempt)
    keys = [Key(TOPIC, name) for name in names]

    def apply(stubs: MariaStubs, some: Sequence[Key]) -> int:
        match change:
            case "claim":
                return len(
                    stubs.claim(
                        [
                            Claim(one, 2, mine, ["billing"], "it", 60, 90, 5, 20, True)
                            for one in some
                        ]
                    )
                )
            case "settle":
                ends = [Settlement(one, 1, mine, Outcome.SENT, Position(0, 1, "e")) for one in some]
                return len(stubs.settle(ends))
            case "promote":
                outcomes = [StubOutcome(one, "pending", "confirmed", 1, None) for one in some]
                return stubs.promote(outcomes, datetime.now(UTC))
            case _:
                return len(stubs.recover_of(some, 0.0))

    refused: list[tuple[Key, StoreFailed]] = []
    with (
        closing(world.database.connect()) as theirs,
        theirs.cursor() as cursor,
        MariaStubs("shop_a", world.database.dsn) as stubs,
    ):
        cursor.execute("BEGIN")
        cursor.execute(
            "SELECT 1 FROM message_stub WHERE topic = %s AND message_id = 'm-2' FOR UPDATE",
            (TOPIC,),
        )
        assert apply_apart(keys, partial(apply, stubs), refused) == [2]
        assert [key for key, _ in refused] == [keys[1]]
        assert "holds 1 row of shard shop_a: m-2 of orders" in refused[0][1].what
        theirs.rollback()
        assert apply(stubs, keys[1:2]) == 1


@pytest.mark.parametrize("why", ["no text", "locked"])
def test_attempts_that_cannot_be_recovered_keep_none_behind_them_from_it(
    world: MariaStubWorld, why: str
) -> None:
    first = NOW - timedelta(days=9999)
    deadlines = {"m-0": first, "m-1": first, "m-2": first, "m-3": first + timedelta(seconds=1)}
    for name, at in deadlines.items():
        its = {"attempt_token": token(), "attempt_deadline": at, "attempted_at": at}
        world.put_stub(message_id=name, send_count=1, **its)
    of_one = "WHERE topic = %s AND message_id = %s"
    with (
        closing(world.database.connect()) as theirs,
        theirs.cursor() as cursor,
        MariaStubs("shop_a", world.database.dsn) as stubs,
    ):
        cursor.execute("BEGIN")
        for name in ("m-0", "m-1", "m-2"):
            if why == "locked":
                cursor.execute(f"SELECT 1 FROM message_stub {of_one} FOR UPDATE", (TOPIC, name))
            else:
                odd = (
                    f"UPDATE message_stub SET message_id = CONCAT(UNHEX('FF'), message_id) {of_one}"
                )
                world.database.run(odd, (TOPIC, name))
        assert stubs.recover(2) == [Key(TOPIC, "m-3")]
        assert stubs.recover(2) == []
        theirs.rollback()
    assert [row["message_id"] for row in world.attempts()] == ["m-3"]


def test_an_attempt_whose_deadline_is_a_date_of_zeros_is_recovered(world: MariaStubWorld) -> None:
    """A server that is not strict keeps what another program writes."""
    world.put_stub(send_count=1, attempt_token=token(), attempt_deadline=NOW, attempted_at=NOW)
    with closing(world.database.connect()) as theirs, theirs.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("UPDATE message_stub SET attempt_deadline = '0000-00-00'")
        theirs.commit()
    with MariaStubs("shop_a", world.database.dsn) as stubs:
        assert stubs.recover(9) == [Key(TOPIC, "m-1")]
    assert world.stub("m-1")["attempted_at"] == NOW


@pytest.mark.parametrize(("format", "good"), [("ROW", True), ("MIXED", True), ("STATEMENT", False)])
def test_check_names_a_binary_log_in_which_the_duties_change_nothing(
    format: str, good: bool
) -> None:
    found = _durability("shard shop_a", {"log_bin": "ON", "binlog_format": format})
    assert [one.good for one in found if one.subject.endswith("binary log")] == [good]


def test_the_duties_and_people_do_all_of_theirs_with_their_own_roles(
    world: MariaStubWorld,
) -> None:
    for name in ("m-1", "m-2", "late", "over"):
        world.put_stub(message_id=name, send_count=1)
    world.put_stub(message_id="gone")
    past = {"attempt_deadline": NOW - timedelta(days=9999), "attempted_at": NOW}
    world.put_stub(message_id="late-2", send_count=1, attempt_token=token(), **past)
    m1, m2 = Key(TOPIC, "m-1"), Key(TOPIC, "m-2")
    claim = Claim(m1, 2, token(), ["billing"], "request 7", 60, 90, 5, 20, True)
    with MariaStubs("shop_a", login(world.database, "backstop_duty")) as stubs:
        bad = {finding.subject for finding in stubs.check() if not finding.good}
        assert bad == {"shard shop_a: durability"}, "as the tests' server is set"
        assert stubs.recover(10) == [Key(TOPIC, "late-2")]
        assert stubs.claim([claim]).keys() == {m1}
        assert stubs.settle([Settlement(m1, 2, claim.token, Outcome.SENT, Position(0, 1, "e"))])
        judged = StubOutcome(Key(TOPIC, "over"), "pending", "confirmed", 1, None)
        assert stubs.promote([judged], datetime.now(UTC)) == 1
        assert stubs.replace_content(m2, 1, b"edited")
        at = datetime.now(UTC)
        assert stubs.raise_numbers([Handed(m2, 3, ["billing"], "request 9", at)]) == {m2}
        assert reopen(stubs, [TOPIC], NOW - timedelta(days=9999)) == 1
    with MariaStubs("shop_a", login(world.database, "backstop_person")) as stubs:
        assert stubs.void(m1) and stubs.raise_max_sends(m2, 9)
        assert stubs.replace_content(Key(TOPIC, "late"), 1, b"edited")
        with pytest.raises(StoreUnavailable, match="refused"):
            stubs.claim([claim._replace(key=m2, send_number=4)])
        said = {finding.subject: finding for finding in stubs.check()}
        assert said["shard shop_a: privileges"].good, "it is not advised to become the duties'"
    login(world.database, "backstop_duty")
    world.database.run("REVOKE DELETE ON message_stub FROM backstop_duty")
    with MariaStubs("shop_a", login_as_it_is(world.database)) as stubs:
        says = {finding.subject: finding.says for finding in stubs.check() if not finding.good}
    assert "DELETE on message_stub" in says["shard shop_a: privileges"]


def login_as_it_is(database: MariaDatabase) -> str:
    return f"mysql://it:{LOGIN}@127.0.0.1:{database.server.port}/{database.name}"


@pytest.mark.parametrize("hold", ["hold_claims", "hold_settlements", "hold_promoted"])
def test_what_a_change_found_nobody_changes_before_it_is_written(
    world: MariaStubWorld, hold: str
) -> None:
    """Each by itself: what is recovered before it locks the same rows in the whole change."""
    mine = token()
    attempt: dict[str, Any] = {}
    if hold == "hold_settlements":
        attempt = {"attempt_token": mine, "attempt_deadline": NOW, "attempted_at": NOW}
    world.put_stub(send_count=1, **attempt)
    rows = {
        "hold_claims": {"send_number": 2, "max_sends": 5, "max_refusals": 5, "only_when_due": 1},
        "hold_settlements": {"send_number": 1, "token": mine},
        "hold_promoted": {"old_status": "pending", "new_status": "confirmed", "send_count": 1},
    }
    values = {"as_of": NOW.replace(tzinfo=None), "own_as_of": NOW.replace(tzinfo=None)}

    def work(cursor: Any) -> bool:
        (held,) = change_stubs._hold(cursor, hold, {Key(TOPIC, "m-1"): rows[hold]}, values)
        assert held["keys"] == {Key(TOPIC, "m-1")}
        with closing(world.database.connect()) as other, other.cursor() as theirs:
            theirs.execute("SET innodb_lock_wait_timeout = 0")
            with pytest.raises(pymysql.MySQLError) as caught:
                theirs.execute("UPDATE message_stub SET send_count = 9")
        return bool(caught.value.args[0] == 1205)

    connection = MysqlConnection("shard shop_a", world.database.dsn)
    assert connection.change(work)
    connection.close()


def test_retention_takes_what_is_over_and_an_erasure_empties_it(world: MariaStubWorld) -> None:
    settings = settings_of()
    old, new = NOW - timedelta(days=9000), datetime.now(UTC)
    for number, status in enumerate(("confirmed", "voided", "no_taker", "pending", "exhausted")):
        world.put_stub(
            message_id=status,
            status=status,
            updated_at=old + timedelta(seconds=number),
            created_at=old,
            ordering_key="k",
            message_key="m",
            send_count=1,
        )
        world.put_attempt(message_id=status, error="it said much")
    world.put_stub(message_id="new", status="confirmed", updated_at=new)
    with closing(open_stub_purge(settings, connections_of(world.database), "shop_a")) as purge:
        key = Key(TOPIC, "voided")
        assert purge.standing(key) == ("voided", False)
        erased = purge.erase(key)
        assert erased is not None and (erased.keeps_ordering_key, erased.attempts) == (True, 1)
        row = world.stub("voided")
        assert (row["content"], row["headers"], row["message_key"]) == (b"", "{}", None)
        assert row["ordering_key"] == "k" and len(row["erased_hash"]) == 32
        assert purge.erase(Key(TOPIC, "pending")) is None
        first = purge.old_stubs(TOPIC, 3600, 3600, FIRST_STUB, 2)
        assert [stub.status for stub in first] == ["confirmed", "voided"]
        rest = purge.old_stubs(TOPIC, 3600, 3600, (first[-1].moved, first[-1].key.message_id), 2)
        assert [stub.status for stub in rest] == ["no_taker"]
        world.run("", "UPDATE message_stub SET updated_at = %s WHERE message_id = 'voided'", (new,))
        assert purge.purge_stubs([*first, *rest]) == 2
    left = {row["message_id"] for row in world.run("", "SELECT message_id FROM message_stub")}
    assert left == {"voided", "pending", "exhausted", "new"}
    assert {row["message_id"] for row in world.attempts()} == {"voided", "pending", "exhausted"}


def test_the_audit_finds_what_breaks_an_invariant(world: MariaStubWorld) -> None:
    settings, since = settings_of(), datetime.now(UTC)
    world.put_stub(message_id="beyond", send_count=1)
    world.put_attempt(message_id="beyond", send_number=2)
    past = {"attempt_deadline": NOW - timedelta(days=9999), "attempted_at": NOW}
    world.put_stub(message_id="endless", send_count=1, attempt_token=token(), **past)
    ends = {"confirmed": "confirmed", "gone": "voided", "stuck": "exhausted"}
    for name, status in ends.items():
        world.put_stub(message_id=name, status=status, updated_at=NOW, content=b"")
    with closing(open_stub_audit(settings, connections_of(world.database), "shop_a")) as audit:
        day = timedelta(days=1)
        beyond = audit.numbers_beyond(NOW - 2 * day, NOW, 9)
        assert beyond == [Key(TOPIC, "beyond")]
        assert audit.never_ended(since, 9) == [Key(TOPIC, "endless")]
        looked = set(audit.never_looked_at(since, NOW + 99 * day, 9))
        assert looked == {Key(TOPIC, "beyond"), Key(TOPIC, "endless")}
        assert audit.exhausted(Key("", ""), 9) == [Key(TOPIC, "stuck")]
        over = audit.overdue({TOPIC: NOW, "other": NOW}, Key("", ""), 9)
        assert over == [Key(TOPIC, "beyond")]
        assert audit.overdue({TOPIC: NOW}, Key(TOPIC, "beyond"), 9) == []
        (voided,) = audit.voided_between(TOPIC, NOW - day, NOW + day, FIRST_STUB, 9)
        assert voided[0] == Key(TOPIC, "gone")
        behind = (voided[1], "gone")
        assert audit.voided_between(TOPIC, NOW - day, NOW + day, behind, 9) == []
        keys = [Key(TOPIC, name) for name in ("gone", "stuck")]
        assert audit.not_voided(keys) == [Key(TOPIC, "stuck")]
        assert audit.not_erased([*keys, Key(TOPIC, "beyond")]) == [Key(TOPIC, "beyond")]


@pytest.mark.parametrize("what", ["exhausted", "overdue", "voided", "late"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_walk_passes_an_id_that_is_no_text_once(
    world: MariaStubWorld, what: str, size: int
) -> None:
    """Shown as hexadecimal it lies elsewhere, and here also beside a text that is shown alike."""
    ids = [b"1\0", b"\\x3100", b"a\0\0", b"b", b"\xff"]
    day, past = timedelta(days=1), NOW - timedelta(days=9999)
    begun: dict[str, Any] = {}
    if what == "late":
        begun = {"send_count": 1, "attempt_deadline": past, "attempted_at": past}
    for number, one in enumerate(ids):
        its = {**begun, "attempt_token": token()} if begun else {}
        status = what if what in ("exhausted", "voided") else "pending"
        world.put_stub(message_id=f"m-{number}", status=status, updated_at=NOW, content=b"", **its)
        values = (one, f"m-{number}".encode())
        world.database.run("UPDATE message_stub SET message_id = %s WHERE message_id = %s", values)
    walked: list[Key] = []
    moved = FIRST_STUB
    with (
        closing(open_stub_audit(settings_of(), connections_of(world.database), "shop_a")) as audit,
        MariaStubs("shop_a", world.database.dsn) as stubs,
    ):
        while len(walked) < 2 * len(ids):
            last = walked[-1] if walked else Key("", "")
            if what == "voided":
                found = audit.voided_between(TOPIC, NOW - day, NOW + day, moved, size)
                page = [key for key, _ in found]
                moved = (found[-1][1], found[-1][0].message_id) if found else moved
            elif what == "overdue":
                page = audit.overdue({TOPIC: NOW, "other": NOW}, last, size)
            else:
                page = (
                    audit.exhausted(last, size) if what == "exhausted" else stubs.late(last, size)
                )
            if not page:
                break
            walked += page
    shown = ["\\x3100", "\\x3100", "\\x610000", "b", "\\xff"]
    assert walked == [Key(TOPIC, one) for one in shown]


def test_retention_passes_an_id_that_is_no_text_once(world: MariaStubWorld) -> None:
    old = NOW - timedelta(days=9000)
    for one in (b"1\0", b"b", b"\xff"):
        world.put_stub(message_id="m", status="confirmed", updated_at=old, created_at=old)
        world.database.run("UPDATE message_stub SET message_id = %s WHERE message_id = 'm'", (one,))
    walked, after = [], FIRST_STUB
    with closing(open_stub_purge(settings_of(), connections_of(world.database), "shop_a")) as purge:
        while len(walked) < 6 and (page := purge.old_stubs(TOPIC, 1, 1, after, 1)):
            walked += [stub.key.message_id for stub in page]
            after = (page[-1].moved, page[-1].key.message_id)
    assert walked == ["\\x3100", "b", "\\xff"]


def test_a_migration_is_safe_to_run_twice_and_after_one_that_was_cut_off(
    maria_server: MariaDB,
) -> None:
    with maria_database(maria_server, "producer") as database:
        assert current(database.dsn, "producer") == head("mariadb_producer")
        assert migrate(database.dsn, "producer") == []
        database.run("DROP TABLE backstop_producer_version")
        database.run("DROP TABLE send_attempt")  # it ended between two of its statements
        assert migrate(database.dsn, "producer") == ["0001"]
        assert database.run("SELECT * FROM send_attempt") == []


def test_what_duties_open_by_the_settings_is_in_mariadb(world: MariaStubWorld) -> None:
    world.put_stub()
    with open_stub_store(settings_of(), connections_of(world.database), "shop_a") as stubs:
        assert isinstance(stubs, MariaStubs) and stubs.count_due(NOW, Scope(), 9) == 1


def settings_of() -> Settings:
    producers = {"shop_a": {"kind": "mariadb", "connection": "shop_a"}}
    return Settings.model_validate(settings_dict(producers=producers))


def connections_of(database: MariaDatabase) -> Connections:
    return Connections(resolver={"shop_a": database.dsn}.get)
