"""The guard in MariaDB where that server is not as PostgreSQL is: what ends a transaction, what a session changes, what is a key."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pymysql
import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.client import (
    Consumer,
    Ended,
    Holding,
    KeptConnection,
    ProcessOnce,
    Row,
    leased,
    row_lock,
)
from backstop.leases import books, guard, mariadb, parking, queue_owner
from backstop.leases.lease import Acquired, Arrival, Busy, Conflict, Done
from backstop.leases.row_lock import record_done, record_failure
from backstop.model.errors import ConfigurationError, ContractBroken
from backstop.model.records import EARLIEST, Message, Position
from backstop.stores.mariadb.books import MariaBooks
from client_world import GROUP, TOPIC, broker, valkey  # noqa: F401
from guard_world import A, B
from maria_world import MariaDatabase, connect_to, maria, maria_consumer, maria_server  # noqa: F401

MESSAGE = Message(TOPIC, "m-1", b"{}")
MODES = [
    "",
    "ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE,NO_BACKSLASH_ESCAPES,REAL_AS_FLOAT",
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ONLY_FULL_GROUP_BY,PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION",
    "SIMULTANEOUS_ASSIGNMENT,EMPTY_STRING_IS_NULL,TIME_ROUND_FRACTIONAL",
]


@pytest.fixture
def once(maria: MariaDatabase) -> Iterator[ProcessOnce]:
    worker = ProcessOnce(maria.connect, GROUP)
    yield worker
    worker.close()


def effect(connection: Any, message: Message, fence: int = 0) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, %s)",
            (message.topic, message.message_id, GROUP, fence),
        )


def effects(maria: MariaDatabase) -> int:
    return int(maria.one("SELECT COUNT(*) AS n FROM effect")["n"])


def log(maria: MariaDatabase) -> dict[str, Any]:
    return maria.one("SELECT state, attempts, last_error FROM consumer_log")


def test_the_effect_and_the_end_are_one_commit_and_a_second_copy_is_done(
    once: ProcessOnce, maria: MariaDatabase
) -> None:
    handle = once.around(lambda connection, message, work: effect(connection, message))
    assert handle(MESSAGE) is Ended.PROCESSED
    assert handle(MESSAGE) == Done()
    assert (effects(maria), log(maria)["state"]) == (1, "CONSUMED")


def test_a_failure_rolls_back_and_is_kept(once: ProcessOnce, maria: MariaDatabase) -> None:
    def fail(connection: Any, message: Message, work: Any) -> None:
        effect(connection, message)
        raise KeyError("Betrag 🚚")

    assert once.around(fail)(MESSAGE) is Ended.FAILED
    assert effects(maria) == 0
    found = log(maria)
    assert (found["state"], found["last_error"]) == ("FAILED", "KeyError: 'Betrag 🚚'")


@pytest.fixture
def brink(maria: MariaDatabase) -> Iterator[MariaDatabase]:
    """A table in which two transactions meet."""
    maria.run("CREATE TABLE brink (id integer PRIMARY KEY, changed integer NOT NULL)")
    maria.run("INSERT INTO brink SELECT seq, 0 FROM seq_1_to_200")
    yield maria
    maria.run("DROP TABLE brink")


def deadlocked(maria: MariaDatabase, connection: Any) -> None:
    """Makes the server end the connection's transaction: the other one has changed more rows."""
    with connection.cursor() as cursor, closing(maria.connect()) as other:
        cursor.execute("UPDATE brink SET changed = 1 WHERE id = 1")
        with other.cursor() as theirs:
            theirs.execute("UPDATE brink SET changed = 2 WHERE id > 1")
            waiting = threading.Thread(
                target=theirs.execute, args=("UPDATE brink SET changed = 2 WHERE id = 1",)
            )
            waiting.start()
            with pytest.raises(pymysql.err.OperationalError) as caught:
                cursor.execute("UPDATE brink SET changed = 1 WHERE id = 2")
            assert caught.value.args[0] == 1213
            waiting.join()
        other.rollback()


def end_by_deadlock(maria: MariaDatabase, connection: Any) -> None:
    deadlocked(maria, connection)


def end_by_ddl(maria: MariaDatabase, connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS made_by_a_handler (a integer)")


def end_by_commit(maria: MariaDatabase, connection: Any) -> None:
    connection.commit()


def end_by_rollback(maria: MariaDatabase, connection: Any) -> None:
    connection.rollback()


ENDS = [end_by_deadlock, end_by_ddl, end_by_commit, end_by_rollback]


@pytest.mark.parametrize("way", ["transactional", "row_lock"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_handler_whose_transaction_ended_under_it_is_not_done(
    once: ProcessOnce, brink: MariaDatabase, end: Callable[..., None], way: str
) -> None:
    """Without the mark, `complete` would commit what the handler wrote after a deadlock that it caught, and nothing before it."""

    def handle(connection: Any, message: Message, work: Any) -> Row:
        effect(connection, Message(TOPIC, "before", b""))
        end(brink, connection)
        effect(connection, Message(TOPIC, "after", b""))
        return Row.APPLIED

    handler = once.around(row_lock(handle) if way == "row_lock" else handle)  # type: ignore[arg-type]
    assert handler(MESSAGE) is Ended.FAILED
    found = log(brink)
    assert found["state"] == "FAILED" and "transaction ended while it ran" in found["last_error"]
    assert brink.run("SELECT 1 FROM effect WHERE message_id = 'after'") == []


def test_a_deadlock_of_the_guard_itself_is_tried_again(brink: MariaDatabase) -> None:
    kept = KeptConnection(brink.connect, "consumer database")
    tries = []

    def work(connection: Any) -> str:
        tries.append(1)
        if len(tries) == 1:
            deadlocked(brink, connection)
            # The driver's error, as the guard's own statement would have raised it.
            raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")
        return "done"

    assert kept.retried(work) == "done" and len(tries) == 2
    kept.close()


def test_a_connection_in_autocommit_is_refused_before_anything_is_written(
    maria: MariaDatabase,
) -> None:
    once = ProcessOnce(lambda: maria.connect(autocommit=True), GROUP)
    with pytest.raises(ContractBroken, match="autocommit"):
        once.around(leased(lambda message, work: None))(MESSAGE)
    assert maria.run("SELECT 1 FROM consumer_log") == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("zone", ["+00:00", "+13:00", "-12:00"])
def test_no_mode_and_no_zone_of_the_session_changes_an_answer(
    maria: MariaDatabase, mode: str, zone: str
) -> None:
    def connect() -> Any:
        return maria.connect(
            init_command=f"SET sql_mode = '{mode}', time_zone = '{zone}', innodb_lock_wait_timeout = 3"
        )

    first, second = ProcessOnce(connect, GROUP), ProcessOnce(maria.connect, GROUP)
    odd = Message(TOPIC, 'it\'s \\ "odd" 🚚 ', b"{}")
    with first.holding(odd, position=Position(1, 2, "e'\\")) as held:
        assert isinstance(held, Holding)
        with second.holding(odd) as busy:
            assert isinstance(busy, Busy)
    with second.holding(odd) as done:
        assert done == Done()
    (found,) = maria.log_of(GROUP, TOPIC, odd.message_id)
    assert (found["state"], found["duplicates_stopped"], found["queue_epoch"]) == (
        "CONSUMED",
        2,
        "e'\\",
    )
    now = maria.one("SELECT UTC_TIMESTAMP(6) AS now")["now"]
    assert timedelta(0) <= now - found["consumed_at"] < timedelta(minutes=1)
    maria.end_lease(GROUP, TOPIC, odd.message_id, 1.0)
    failing = Message(TOPIC, "fails", b"{}")
    with pytest.raises(KeyError), first.holding(failing):
        raise KeyError('"\\%s')
    with first.holding(failing) as again:
        assert isinstance(again, Holding) and again.work.attempts == 2
    first.close()
    second.close()


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3", "ascii", "gbk"])
def test_ids_are_kept_whole_whatever_the_connection_can_write(
    maria: MariaDatabase, charset: str
) -> None:
    once = ProcessOnce(lambda: maria.connect(charset=charset), GROUP, owner_host="wörker-🚚")
    message = Message(TOPIC, "schlüssel/鍵' OR 1=1 -- /🚚", b"{}")
    with pytest.raises(ValueError), once.holding(message):
        raise ValueError("größer als 🚚")
    (found,) = maria.log_of(GROUP, TOPIC, message.message_id)
    assert (found["state"], found["last_error"]) == ("FAILED", "ValueError: größer als 🚚")
    assert found["owner_host"] == "wörker-🚚"
    once.close()


def test_a_dictionary_cursor_of_the_application_changes_nothing(maria: MariaDatabase) -> None:
    once = ProcessOnce(lambda: maria.connect(cursorclass=pymysql.cursors.DictCursor), GROUP)
    handle = once.around(lambda connection, message, work: effect(connection, message))
    assert [handle(MESSAGE), handle(MESSAGE)] == [Ended.PROCESSED, Done()]
    once.close()


ALIKE = ["a", "A", "ä", "a ", "a  ", "a\t", "ａ", "a\u0301", "á", "ß", "ss", "\u200ba", "İ", "i"]


def test_ids_that_a_collation_takes_for_one_another_are_messages_of_their_own(
    maria: MariaDatabase,
) -> None:
    with closing(maria.connect()) as connection:
        arrivals = [Arrival(TOPIC, name) for name in ALIKE]
        begun = guard.begin_many(connection, GROUP, arrivals)
        leases = [answer for answer in begun if isinstance(answer, Acquired)]
        assert len(leases) == len(ALIKE)
        guard.complete(connection, leases[0])
        connection.commit()
        states = {name: maria.log_of(GROUP, TOPIC, name)[0]["state"] for name in ALIKE}
        assert states == {"a": "CONSUMED"} | dict.fromkeys(ALIKE[1:], "CONSUMING")


@pytest.mark.parametrize(
    ("group", "topic", "message_id"),
    [(GROUP, TOPIC, "i" * 1025), (GROUP, "ä" * 128, "m"), ("g" * 256, TOPIC, "m")],
)
def test_a_key_that_does_not_fit_is_refused_and_never_cut(
    maria: MariaDatabase, group: str, topic: str, message_id: str
) -> None:
    """A server that is not strict would keep the beginning of it: another message's key."""
    with (
        closing(maria.connect(init_command="SET sql_mode = ''")) as connection,
        pytest.raises(ContractBroken, match="a log holds"),
    ):
        guard.begin(connection, group, topic, message_id)
    assert maria.run("SELECT 1 FROM consumer_log") == []


def test_a_place_whose_epoch_does_not_fit_is_no_place(maria: MariaDatabase) -> None:
    with closing(maria.connect()) as connection:
        position = Position(1, 2, "e" * 1025)
        assert isinstance(guard.begin(connection, GROUP, TOPIC, "m", position=position), Acquired)
        connection.commit()
    found = maria.one("SELECT queue_id, queue_offset, queue_epoch FROM consumer_log")
    assert found == {"queue_id": None, "queue_offset": None, "queue_epoch": None}


def relax(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is for 11.6.2 and later also here, where the setting is off unless a session turns it on."""
    relaxed = {
        name: text.replace("/*M!110602", "/*M!101108") for name, text in mariadb._SQL.items()
    }
    monkeypatch.setattr(mariadb, "_SQL", relaxed)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("strict", [False, True], ids=["", "snapshot_isolation"])
def test_a_handler_that_read_before_its_lease_was_renewed_completes(
    maria: MariaDatabase, monkeypatch: pytest.MonkeyPatch, isolation: str, strict: bool
) -> None:
    """From 11.6.2 on a server refuses to lock a row that changed since the transaction's snapshot, unless it is told otherwise."""
    if strict:
        relax(monkeypatch)
    command = f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}"
    setting = f"SET SESSION innodb_snapshot_isolation = {int(strict)}"

    def connect() -> Any:
        connection = maria.connect(init_command=command)
        with connection.cursor() as cursor:
            cursor.execute(setting)
        connection.rollback()
        return connection

    with closing(connect()) as work, closing(maria.connect()) as keeper:
        lease = guard.begin(work, GROUP, TOPIC, "m-1")
        assert isinstance(lease, Acquired)
        work.commit()
        guard.open_work(work)
        with work.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM effect")
        guard.renew(keeper, lease)
        keeper.commit()
        effect(work, MESSAGE)
        guard.close_work(work)
        guard.complete(work, lease)
        work.commit()
    assert (effects(maria), log(maria)["state"]) == (1, "CONSUMED")


def test_two_batches_in_opposite_orders_wait_for_one_another_and_end(maria: MariaDatabase) -> None:
    names = [f"m-{number:03}" for number in range(100)]
    gate, granted, errors = threading.Barrier(4), [], []

    def begin(seed: int) -> None:
        order = names if seed % 2 else names[::-1]
        with closing(maria.connect()) as connection:
            gate.wait()
            try:
                answers = guard.begin_many(connection, GROUP, [Arrival(TOPIC, n) for n in order])
                connection.commit()
            except Exception as error:
                errors.append(error)
                raise
            granted.extend(one.message_id for one in answers if isinstance(one, Acquired))

    threads = [threading.Thread(target=begin, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and sorted(granted) == names


def test_begin_locks_what_it_names_and_nothing_else(maria: MariaDatabase) -> None:
    """Neither a gap nor another message of the topic, of few rows as of many."""
    with closing(maria.connect()) as one, closing(maria.connect()) as other:
        for connection in (one, other):
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        named, between = [Arrival(TOPIC, name) for name in "aceg"], Arrival(TOPIC, "d")
        guard.begin_many(one, GROUP, named)
        (lease,) = guard.begin_many(other, GROUP, [between])
        one.commit()
        again = guard.begin_many(one, GROUP, named)
        assert [type(answer) for answer in again] == [Busy] * 4
        one.commit()
        other.commit()
        assert isinstance(lease, Acquired)
        guard.complete(other, lease)
        for arrival in named:
            maria.end_lease(GROUP, TOPIC, arrival.message_id, 1.0)
        taken = guard.begin_many(one, GROUP, named)
        assert [type(answer) for answer in taken] == [Acquired] * 4
        one.commit()
        other.commit()


def test_a_lock_that_another_worker_has_is_busy_and_no_failure(
    once: ProcessOnce, maria: MariaDatabase
) -> None:
    maria.run("INSERT INTO effect VALUES ('row', 'row', 'row', 0)")

    def handle(connection: Any, message: Message, work: Any) -> Row:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM effect WHERE topic = 'row' FOR UPDATE NOWAIT")
        return Row.APPLIED

    with closing(maria.connect()) as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM effect WHERE topic = 'row' FOR UPDATE")
        assert isinstance(once.around(row_lock(handle))(MESSAGE), Busy)
    assert maria.run("SELECT 1 FROM consumer_log") == []


def test_books_are_replaced_and_those_of_members_long_gone_are_forgotten(
    maria: MariaDatabase,
) -> None:
    def write(member: str, life: str, **more: Any) -> None:
        with closing(maria.connect()) as connection:
            books.write(connection, GROUP, member, life, {"received": 1, "done": 1}, 0, **more)
            connection.commit()

    write("gone", "x")
    maria.run("UPDATE consumer_books SET written_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY")
    write("ann", "first")
    (before,) = maria.run("SELECT * FROM consumer_books")
    write("ann", "first", has_ended=True)
    (after,) = maria.run("SELECT * FROM consumer_books")
    assert (after["started_at"], after["has_ended"]) == (before["started_at"], 1)
    write("ann", "second")
    (other,) = maria.run("SELECT * FROM consumer_books")
    assert other["started_at"] > before["started_at"] and other["life"] == "second"


def test_a_date_of_zeros_in_the_books_of_one_member_hides_no_others(maria: MariaDatabase) -> None:
    with closing(maria.connect()) as connection:
        for member in ("ann", "bob"):
            books.write(connection, GROUP, member, "x", {"received": 1, "done": 1}, 0)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
            cursor.execute("UPDATE consumer_books SET started_at = 0 WHERE member = 'ann'")
        connection.commit()
    with closing(MariaBooks("billing_db", maria.dsn)) as kept:
        found = {one.member: one.started_at for one in kept.books([GROUP])}
    assert found.keys() == {"ann", "bob"} and found["ann"] == EARLIEST


def test_the_life_of_the_server_is_another_after_the_table_was_made_again(
    maria: MariaDatabase,
) -> None:
    with closing(maria.connect()) as connection:
        life = queue_owner.server_life(connection)
        assert queue_owner.server_life(connection) == life and maria.server.port
    assert str(maria.server.port) in life


@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: queue_owner.declare(connection, GROUP, TOPIC, [0]),
        lambda connection: parking.say_back(connection, GROUP, "member"),
    ],
    ids=["owned queues", "parked keys"],
)
def test_what_is_not_there_yet_is_refused_before_anything_is_executed(
    maria: MariaDatabase, ask: Callable[[Any], None]
) -> None:
    with closing(maria.connect()) as connection, pytest.raises(ConfigurationError) as caught:
        ask(connection)
    assert "PostgreSQL alone" in caught.value.what and "mariadb" in caught.value.next_step


def test_a_least_privileged_worker_does_its_work_and_nothing_else(maria: MariaDatabase) -> None:
    from backstop.schema.migrate import grant

    grant(maria.dsn, "consumer")
    for statement in (
        "CREATE OR REPLACE USER worker@'127.0.0.1' IDENTIFIED BY 'w0rker'",
        "GRANT backstop_consumer TO worker@'127.0.0.1'",
        f"GRANT SELECT, INSERT ON {maria.name}.effect TO worker@'127.0.0.1'",
        "SET DEFAULT ROLE backstop_consumer FOR worker@'127.0.0.1'",
    ):
        maria.run(statement)

    def connect() -> Any:
        return connect_to(maria.dsn, user="worker", password="w0rker")

    once = ProcessOnce(connect, GROUP)
    handle = once.around(lambda connection, message, work: effect(connection, message))
    assert [handle(MESSAGE), handle(MESSAGE)] == [Ended.PROCESSED, Done()]
    with pytest.raises(KeyError), once.holding(Message(TOPIC, "fails", b"{}")):
        raise KeyError
    once.close()
    with closing(connect()) as connection:
        books.write(connection, GROUP, "worker", "life", {"received": 2}, 0)
        assert queue_owner.server_life(connection)
        connection.commit()
        for refused in ("DELETE FROM consumer_log", "SELECT * FROM consumer_log_floor"):
            with connection.cursor() as cursor, pytest.raises(pymysql.MySQLError) as caught:
                cursor.execute(refused)
            assert caught.value.args[0] in (1142, 1143)
    assert effects(maria) == 1


def test_a_consumer_does_what_its_broker_has_and_writes_its_books(
    maria: MariaDatabase, broker: RedisStreams
) -> None:
    """Ordered consumers, which it must not work beside, are in PostgreSQL alone: there is nobody to ask for."""
    ids = ["m-1", "m-2", "m-1"]
    receipts = broker.publish([Message(TOPIC, name, b"{}") for name in ids])
    assert all(receipt.position for receipt in receipts)
    subscription = broker.subscribe(GROUP, [TOPIC], "w1")
    consumer = Consumer(
        subscription, maria.connect, GROUP, lambda c, m, w: effect(c, m), member="w1"
    )
    with closing(subscription), closing(consumer):
        counts = consumer.run_once()
        consumer._ledger.write(0, has_ended=True)
    assert (counts, effects(maria)) == ({"processed": 2, "done": 1}, 2)
    assert sum(position.pending for position in broker.progress(TOPIC, GROUP)) == 0
    assert json.loads(maria.one("SELECT counts FROM consumer_books")["counts"])["received"] == 3


@pytest.mark.parametrize("record", [record_done, record_failure])
@pytest.mark.parametrize("strict", [False, True], ids=["", "snapshot_isolation"])
def test_an_end_without_a_lease_is_recorded_although_the_log_changed_after_the_handler_read(
    maria: MariaDatabase, monkeypatch: pytest.MonkeyPatch, record: Any, strict: bool
) -> None:
    """As above, where another worker's failure is what changed the row."""
    if strict:
        relax(monkeypatch)
    arrival, given = Arrival(TOPIC, "m-1"), () if record is record_done else ("third",)
    with closing(maria.connect()) as work, closing(maria.connect()) as other:
        assert record_failure(other, GROUP, arrival, "first")
        other.commit()
        with work.cursor() as cursor:
            cursor.execute(f"SET SESSION innodb_snapshot_isolation = {int(strict)}")
            cursor.execute("SELECT COUNT(*) FROM effect")
        assert record_failure(other, GROUP, arrival, "second")
        other.commit()
        assert record(work, GROUP, arrival, *given)
        work.commit()
    expected = ("CONSUMED", 3) if record is record_done else ("FAILED", 3)
    assert (log(maria)["state"], log(maria)["attempts"]) == expected


@pytest.mark.parametrize("strict", [False, True], ids=["", "snapshot_isolation"])
def test_a_lease_is_taken_over_and_a_copy_is_counted_in_a_transaction_that_read_before(
    maria: MariaDatabase, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """Whoever calls the guard in a transaction of its own may have read in it."""
    if strict:
        relax(monkeypatch)
    with closing(maria.connect()) as work, closing(maria.connect()) as other:
        for name in ("m-1", "m-2", "m-3"):
            assert record_failure(other, GROUP, Arrival(TOPIC, name, A), "first")
        other.commit()
        with work.cursor() as cursor:
            cursor.execute(f"SET SESSION innodb_snapshot_isolation = {int(strict)}")
            cursor.execute("SELECT COUNT(*) FROM effect")
        assert record_failure(other, GROUP, Arrival(TOPIC, "m-1", A), "second")
        assert record_done(other, GROUP, Arrival(TOPIC, "m-2", A))
        assert record_done(other, GROUP, Arrival(TOPIC, "m-3", A))
        other.commit()
        arrivals = [Arrival(TOPIC, "m-1", A), Arrival(TOPIC, "m-2", A), Arrival(TOPIC, "m-3", B)]
        kinds = [type(one) for one in guard.begin_many(work, GROUP, arrivals)]
        work.commit()
    assert kinds == [Acquired, Done, Conflict]


@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_that_turned_autocommit_on_fails_and_changes_nothing_for_the_next_one(
    once: ProcessOnce, maria: MariaDatabase, raises: bool
) -> None:
    def turn_on(connection: Any, message: Message, work: Any) -> None:
        connection.commit()
        connection.autocommit(True)
        if raises:
            raise ValueError("after it")

    def fail(connection: Any, message: Message, work: Any) -> None:
        effect(connection, message)
        raise ValueError("not yet")

    assert once.around(turn_on)(Message(TOPIC, "m-0", b"{}")) is Ended.FAILED
    assert raises or "autocommit" in log(maria)["last_error"]
    assert once.around(fail)(MESSAGE) is Ended.FAILED
    assert effects(maria) == 0
    handle = once.around(lambda connection, message, work: effect(connection, message))
    assert handle(MESSAGE) is Ended.PROCESSED
    assert effects(maria) == 1
    found = maria.run("SELECT message_id, state FROM consumer_log ORDER BY message_id")
    assert [(row["message_id"], row["state"]) for row in found] == [
        ("m-0", "FAILED"),
        (MESSAGE.message_id, "CONSUMED"),
    ]
