"""What the client executes again and again is prepared on connections of its own, and only where its session is its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from backstop.client.keep_connection import KeptConnection
from backstop.client.lease_store import InDatabase
from backstop.client.publish import send
from backstop.client.stub_writer import record
from backstop.leases import guard, parking
from backstop.leases.lease import LEASE, RETRY_AFTER, Acquired, Arrival
from backstop.model.errors import StoreUnavailable
from backstop.sql import prepared
from backstop.sql.connection import read_url
from backstop.sql.named import load
from backstop.sql.prepared import USES, plans_of
from backstop.sql.run import of_one, rows
from client_world import (  # noqa: F401
    GROUP,
    TOPIC,
    Database,
    broker,
    consumer,
    postgres,
    producer,
    valkey,
)
from pooler import Pooler
from prepared_world import MANY, done, named, prepared_there, work, worker

PREPARED = "SELECT count(*) FROM pg_prepared_statements"


@pytest.fixture
def store(consumer: Database) -> Iterator[InDatabase]:
    worker_of_one = worker(consumer.connect)
    yield worker_of_one
    worker_of_one.close()


def test_a_worker_prepares_what_comes_often_and_does_the_same_by_it(
    store: InDatabase,
    consumer: Database,
) -> None:
    work(store, *named("few", USES))
    assert prepared_there(store) == {}, "what comes seldom is planned each time"
    work(store, *named("many"))
    assert len(prepared_there(store)) == 2, "the grant and the end"
    assert done(consumer) == sorted([*named("few", USES), *named("many")])
    (again,) = store.begin([Arrival(TOPIC, "many000")])
    assert not isinstance(again, Acquired)


def test_a_batch_is_planned_each_time(store: InDatabase) -> None:
    for batch in range(MANY):
        store.begin([Arrival(TOPIC, f"{batch}-{number}") for number in range(3)])
    assert prepared_there(store) == {}


def test_a_plan_is_made_again_when_its_statement_has_come_twice_as_often(
    store: InDatabase,
    consumer: Database,
) -> None:
    """The first plan is made for an empty table, where reading all of it is the cheapest."""
    work(store, *named("a", USES + 1))
    before = prepared_there(store)
    work(store, *named("b", 2 * USES))
    after = prepared_there(store)
    assert len(before) == 2 and all(after[name] > before[name] for name in before)
    assert len(done(consumer)) == 3 * USES + 1


def test_a_plan_ends_after_a_minute_and_another_is_made_once_its_statement_comes_often_again(
    store: InDatabase,
    consumer: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes seldom costs one round trip, as if nothing were ever prepared."""
    monkeypatch.setattr(prepared, "PLAN_SECONDS", -1.0)
    work(store, *named("a", USES + 1))
    before = prepared_there(store)
    work(store, *named("seldom", USES))
    assert len(before) == 2 and prepared_there(store) == before
    work(store, "often")
    after = prepared_there(store)
    assert all(after[name] > before[name] for name in before)
    assert len(done(consumer)) == 2 * (USES + 1)


def test_an_end_reads_its_own_rows_when_its_table_has_grown_under_its_plan(
    store: InDatabase,
    consumer: Database,
) -> None:
    """Counted by the session itself in the transaction of a lease and its end, by the statements that it prepared."""
    consumer.run("TRUNCATE consumer_log")  # the first plan is made for a table without pages
    work(store, *named("a", 400))
    assert len(prepared_there(store)) == 2
    store.store.run("SELECT pg_stat_force_next_flush() AS flushed", {})
    arrival = Arrival(TOPIC, "b")
    with store.store.transaction() as connection:
        granted = guard.grant_many(
            connection,
            GROUP,
            [arrival],
            lease_seconds=LEASE.total_seconds(),
            owner_host="host",
        )
        lease = granted[arrival.key]
        assert isinstance(lease, Acquired)
        guard.complete(connection, lease)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'consumer_log'"
            )
            (read,) = cursor.fetchone()
    assert 0 < read < 20, "of some 400 rows"


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "kept"])
def test_nothing_is_prepared_behind_a_pooler(consumer: Database, shared: bool) -> None:
    """Two workers by turns: behind one that shares, each transaction may be in the other's session."""
    server = read_url(consumer.dsn)
    assert server is not None
    with Pooler(server["host"], int(server["port"]), shared=shared) as pooler:
        url = f"postgresql://{server['user']}:{server['password']}@127.0.0.1:{pooler.port}/consumer"
        workers = [worker(lambda: psycopg2.connect(url)) for _ in range(2)]
        for one, other in zip(named("one"), named("other"), strict=True):
            work(workers[0], one)
            work(workers[1], other)
        assert [prepared_there(one) for one in workers] == [{}, {}]
        for one_worker in workers:
            one_worker.close()
    assert done(consumer) == sorted([*named("one"), *named("other")])


def test_a_connection_that_broke_leaves_no_plan_to_the_next(
    store: InDatabase,
    consumer: Database,
) -> None:
    work(store, *named("a"))
    (pid,) = store.store.run("SELECT pg_backend_pid() AS pid", {})
    consumer.run("SELECT pg_terminate_backend(%s, 10000)", (pid["pid"],))
    with pytest.raises(StoreUnavailable):
        store.begin([Arrival(TOPIC, "b")])
    work(store, "b", *named("c"))
    assert done(consumer) == sorted([*named("a"), "b", *named("c")])


def test_a_producer_prepares_its_look_and_its_end_and_nothing_on_the_application_s_connection(
    producer: Database,
    broker: Any,
) -> None:
    application = producer.connect()
    kept = KeptConnection(producer.connect, "producer database")
    for message_id in named("m"):
        with application:
            recorded = record(application, TOPIC, message_id.encode(), message_id=message_id)
        assert send(recorded, broker, kept).settled
    assert plans_of(application) is None
    with application, application.cursor() as cursor:
        cursor.execute(PREPARED)
        assert cursor.fetchone() == (0,)
    with kept.transaction() as connection, connection.cursor() as cursor:
        cursor.execute(PREPARED)
        assert cursor.fetchone() == (2,)
    ends = producer.run("SELECT DISTINCT outcome, send_number FROM send_attempt")
    assert ends == [{"outcome": "sent", "send_number": 1}]
    assert producer.one("SELECT count(*) AS count FROM send_attempt") == {"count": MANY}
    kept.close()
    application.close()


@pytest.mark.parametrize(
    ("statements", "database"),
    [
        (load("backstop.leases", "queries.sql"), "consumer"),
        (parking._SQL, "consumer"),
        (load("backstop.leases", "queue_owner.sql"), "consumer"),
        (load("backstop.leases", "books.sql"), "consumer"),
        (load("backstop.client", "queries.sql"), "producer"),
    ],
    ids=["leases", "parking", "queue_owner", "books", "client"],
)
def test_every_statement_of_the_client_can_be_prepared(
    statements: dict[str, str],
    database: str,
    postgres: Any,
) -> None:
    """Each parameter says its type: beside a value the server may guess it, in a plan it cannot."""
    connection = psycopg2.connect(postgres.admin_dsn(database))
    for statement in statements.values():
        with connection.cursor() as cursor:
            for text in {statement, of_one(statement)[0]}:
                prepared.Plans()._prepare(cursor, text, USES)
    connection.close()


def test_a_wrapper_without_a_weak_reference_is_used_as_it_is(consumer: Database) -> None:
    class Wrapper:
        __slots__ = ("Database", "_inner")

        def __init__(self, inner: Any) -> None:
            self._inner, self.Database = inner, psycopg2

        def cursor(self) -> Any:
            return self._inner.cursor()

    with psycopg2.connect(consumer.dsn) as inner:
        assert rows(Wrapper(inner), "SELECT %(one)s::integer AS one", {"one": 1}) == [{"one": 1}]  # type: ignore[arg-type]
    inner.close()


def test_a_lease_is_taken_over_and_lost_by_prepared_statements_too(
    consumer: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepared, "USES", 0)
    first, second = (
        InDatabase(
            consumer.connect,
            GROUP,
            lease=timedelta(seconds=30),
            retry_after=RETRY_AFTER,
            owner_host=host,
        )
        for host in ("first", "second")
    )
    (lost,) = first.begin([Arrival(TOPIC, "m")])
    assert isinstance(lost, Acquired)
    consumer.end_lease(GROUP, TOPIC, "m", 1.0)
    work(second, "m")
    with (
        pytest.raises(Exception, match="could not be completed"),
        first.completing(lost) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("INSERT INTO effect VALUES (%s, 'm', %s, 1)", (TOPIC, GROUP))
    assert done(consumer) == ["m"]
    first.close()
    second.close()
