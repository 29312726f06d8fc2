"""What is prepared meets a changed table, another path or role, a failed transaction or a session that forgot it: it does what the
same statement does that is planned each time, and nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import connection as PlainConnection

from backstop.client.keep_connection import KeptConnection
from backstop.client.lease_store import InDatabase
from backstop.client.process import Ended, process_under_row_lock
from backstop.client.ways import Row, Work, row_lock
from backstop.leases.lease import RETRY_AFTER, Arrival
from backstop.model.errors import LeaseLost
from backstop.model.records import Message
from backstop.schema.revisions import whole
from backstop.sql.connection import read_url
from backstop.sql.prepared import USES, plans_of
from client_world import EFFECT, GROUP, TOPIC, Database, consumer, postgres  # noqa: F401
from pooler import Pooler
from prepared_world import MANY, begin, done, end, named, prepared_there, work, worker

UNKNOWN = psycopg2.errors.InvalidSqlStatementName
TOLD_ONCE = """
CREATE SEQUENCE tries;
CREATE FUNCTION tells() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('tries') = 1 THEN
        RAISE 'no such statement' USING ERRCODE = '26000';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER tells BEFORE INSERT OR UPDATE ON consumer_log FOR EACH ROW {when} EXECUTE FUNCTION tells()
"""


@pytest.fixture
def store(consumer: Database) -> Iterator[InDatabase]:
    worker_of_one = worker(consumer.connect)
    yield worker_of_one
    worker_of_one.close()


@pytest.fixture
def own(postgres: Any) -> Iterator[Database]:
    """A database whose tables a test may change."""
    postgres.create_database("own")
    database = Database(postgres.admin_dsn("own"))
    for statement in (whole("consumer"), EFFECT):
        database.run(statement)
    yield database
    Database(postgres.admin_dsn("consumer")).run("DROP DATABASE own WITH (FORCE)")


@contextmanager
def changed(database: Database, to: str, back: str) -> Iterator[None]:
    database.run(to)
    try:
        yield
    finally:
        database.run(back)


def test_a_table_that_is_changed_under_a_living_connection_costs_no_message(own: Database) -> None:
    """Outside a transaction a statement whose columns got other types is planned once more, in the same call."""
    store = worker(own.connect)
    changes = {
        "begun": "SELECT 1",
        "a column more": "ALTER TABLE consumer_log ADD COLUMN more text NOT NULL DEFAULT 'x'",
        "another type of what a grant returns": "ALTER TABLE consumer_log ALTER COLUMN attempts TYPE bigint",
        "a rule more": "ALTER TABLE consumer_log ADD CHECK (attempts < 100)",
        "a table in its place": "ALTER TABLE consumer_log RENAME TO was;"
        " CREATE TABLE consumer_log (LIKE was INCLUDING ALL); INSERT INTO consumer_log SELECT * FROM was; DROP TABLE was",
        "statistics": "ANALYZE consumer_log",
    }
    expected: list[str] = []
    for number, (change, statement) in enumerate(changes.items()):
        own.run(statement)
        ids = named(f"{number}-")
        work(store, *ids)
        expected += ids
        assert done(own) == expected, change
        assert len(prepared_there(store)) == 2, change
    store.close()


def test_an_end_whose_columns_got_other_types_is_rolled_back_with_the_work_and_done_the_next_time(
    own: Database,
) -> None:
    """In a transaction nothing is tried again: what the handler did before it is undone with it."""
    kept = KeptConnection(own.connect, "consumer database")

    @row_lock
    def handler(connection: Any, message: Message, work: Work) -> Row:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO effect VALUES (%s, %s, %s, 1)", (TOPIC, message.message_id, GROUP)
            )
        return Row.APPLIED

    def ended(message_id: str) -> Any:
        given = Message(TOPIC, message_id, b""), Arrival(TOPIC, message_id)
        return process_under_row_lock(
            kept,
            handler,
            GROUP,
            *given,
            Work(0, 1, threading.Event(), threading.Event()),
            RETRY_AFTER,
            "host",
        )[0]

    assert {ended(message_id) for message_id in named("a")} == {Ended.PROCESSED}
    own.run("ALTER TABLE consumer_log ALTER COLUMN fence TYPE numeric")
    assert ended("b") is Ended.FAILED
    assert done(own) == named("a")
    assert {ended(message_id) for message_id in ("b", *named("c"))} == {Ended.PROCESSED}
    assert done(own) == [*named("a"), "b", *named("c")]
    assert own.one("SELECT attempts FROM consumer_log WHERE message_id = 'b'") == {"attempts": 2}
    kept.close()


def test_a_search_path_leads_a_prepared_statement_where_it_leads_any(
    store: InDatabase,
    consumer: Database,
) -> None:
    there = (
        "CREATE SCHEMA tenant; CREATE TABLE tenant.consumer_log (LIKE consumer_log INCLUDING ALL)"
    )
    with changed(consumer, there, "DROP SCHEMA tenant CASCADE"):
        work(store, *named("a"))
        lease = begin(store, "lost")
        with pytest.raises(LeaseLost):
            end(store, lease, "SET LOCAL search_path TO tenant, public")
        assert done(consumer) == named("a")
        store.store.run("SELECT set_config('search_path', 'tenant, public', false)", {})
        work(store, *named("b"))
        logs = "SELECT count(*) AS count FROM {}.consumer_log WHERE state = 'CONSUMED'"
        assert consumer.one(logs.format("tenant")) == {"count": MANY}
        assert consumer.one(logs.format("public")) == {"count": MANY}
        store.store.run("SELECT set_config('search_path', 'public', false)", {})
        end(store, lease)
    assert consumer.one("SELECT count(*) AS count FROM effect") == {"count": 2 * MANY + 1}


@pytest.mark.parametrize(
    ("rights", "raised"),
    [
        ("GRANT INSERT ON effect TO guest", psycopg2.errors.InsufficientPrivilege),
        ("GRANT ALL ON effect, consumer_log TO guest", LeaseLost),
    ],
    ids=["no rights", "rows that a policy hides"],
)
def test_the_role_of_the_moment_decides_what_a_prepared_statement_may(
    store: InDatabase,
    consumer: Database,
    rights: str,
    raised: type[Exception],
) -> None:
    guest = f"CREATE ROLE guest; ALTER TABLE consumer_log ENABLE ROW LEVEL SECURITY; {rights}"
    gone = (
        "ALTER TABLE consumer_log DISABLE ROW LEVEL SECURITY; DROP OWNED BY guest; DROP ROLE guest"
    )
    with changed(consumer, guest, gone):
        work(store, *named("a"))
        lease = begin(store, "b")
        with pytest.raises(raised):
            end(store, lease, "SET LOCAL ROLE guest")
        assert done(consumer) == named("a")
        end(store, lease)
    assert done(consumer) == [*named("a"), "b"]


@pytest.mark.parametrize("before", [USES, MANY], ids=["would be prepared", "is prepared"])
def test_a_transaction_that_failed_in_its_handler_is_not_ended_by_a_prepared_statement(
    store: InDatabase,
    consumer: Database,
    before: int,
) -> None:
    work(store, *named("a", before))
    lease = begin(store, "b")
    with (
        pytest.raises(psycopg2.errors.InFailedSqlTransaction),
        store.completing(lease) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("INSERT INTO effect VALUES (%s, 'b', %s, 1)", (TOPIC, GROUP))
        with pytest.raises(psycopg2.errors.DivisionByZero):
            cursor.execute("SELECT 1 / 0")
    assert done(consumer) == named("a", before)
    end(store, lease)
    work(store, *named("c"))
    assert done(consumer) == [*named("a", before), "b", *named("c")]
    assert len(prepared_there(store)) == 2


@pytest.mark.parametrize("what", ["DEALLOCATE ALL", "DISCARD ALL", "DISCARD PLANS"])
def test_what_is_discarded_between_two_transactions_is_executed_all_the_same(
    store: InDatabase,
    consumer: Database,
    what: str,
) -> None:
    work(store, *named("a"))
    with store.store.one_statement() as connection, connection.cursor() as cursor:
        cursor.execute(what)
    work(
        store, "b"
    )  # the grant finds out, outside a transaction, that nothing is prepared any more
    work(store, *named("c"))
    assert done(consumer) == [*named("a"), "b", *named("c")]
    assert len(prepared_there(store)) == (2 if what == "DISCARD PLANS" else 0)


def test_a_handler_that_discards_its_session_s_statements_costs_one_message_a_try(
    store: InDatabase,
    consumer: Database,
) -> None:
    """That transaction cannot end; the lease stands, and what follows is planned each time."""
    work(store, *named("a"))
    lease = begin(store, "b")
    with pytest.raises(UNKNOWN):
        end(store, lease, "DEALLOCATE ALL")
    assert done(consumer) == named("a"), "what could not end is rolled back"
    store.fail(lease, "could not end")
    work(store, "b", *named("c"))
    assert done(consumer) == [*named("a"), "b", *named("c")]
    assert prepared_there(store) == {}


def test_a_statement_outside_a_transaction_is_undone_before_it_is_executed_again(
    store: InDatabase,
    consumer: Database,
) -> None:
    """A trigger fails as a missing statement does, after the row was found: the second execution finds nothing of the first."""
    work(store, *named("a"))
    tells = TOLD_ONCE.format(when="WHEN (new.state = 'CONSUMING')")
    with changed(consumer, tells, "DROP FUNCTION tells CASCADE; DROP SEQUENCE tries"):
        lease = begin(store, "b")
        assert (lease.attempts, consumer.one("SELECT last_value FROM tries")) == (
            1,
            {"last_value": 2},
        )
    end(store, lease)
    assert done(consumer) == [*named("a"), "b"]


def test_a_statement_in_a_transaction_is_never_executed_again(
    store: InDatabase,
    consumer: Database,
) -> None:
    work(store, *named("a"))
    lease = begin(store, "b")
    tells = TOLD_ONCE.format(when="WHEN (new.state = 'CONSUMED')")
    with changed(consumer, tells, "DROP FUNCTION tells CASCADE; DROP SEQUENCE tries"):
        with pytest.raises(UNKNOWN):
            end(store, lease)
        assert consumer.one("SELECT last_value FROM tries") == {"last_value": 1}
        assert done(consumer) == named("a")
        end(store, lease)
    assert done(consumer) == [*named("a"), "b"]


def test_a_pooler_that_passes_itself_off_as_the_server_costs_one_message_a_try(
    consumer: Database,
) -> None:
    """It shares sessions and forwards the server's number of one. Somebody else takes that session between a grant and its end."""
    server = read_url(consumer.dsn)
    assert server is not None
    with Pooler(server["host"], int(server["port"]), shared=True, forwards=True) as pooler:
        url = f"postgresql://{server['user']}:{server['password']}@127.0.0.1:{pooler.port}/consumer"
        store = worker(lambda: psycopg2.connect(url))
        work(store, *named("a"))
        lease = begin(store, "b")
        other = psycopg2.connect(url)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1")
        with pytest.raises(UNKNOWN):
            end(store, lease)
        other.rollback()
        assert done(consumer) == named("a")
        end(store, lease)
        work(store, *named("c"))
        store.close()
        other.close()
    assert done(consumer) == [*named("a"), "b", *named("c")]


class Lent(PlainConnection):
    """A connection that its `close` gives back to a pool of the application's."""

    def close(self) -> None:
        self.rollback()


def test_a_session_that_comes_from_a_pool_again_knows_its_statements_and_prepares_nothing_for_others(
    consumer: Database,
) -> None:
    lent: Any = consumer.connect(connection_factory=Lent)
    seen: list[dict[str, Any]] = []
    for prefix in ("a", "b"):
        store = worker(lambda: lent)
        work(store, *named(prefix))
        seen.append(prepared_there(store))
        store.close()
        assert plans_of(lent) is None
    first, second = seen
    assert len(first) == 2 and all(second[name] > first[name] for name in first)
    assert done(consumer) == [*named("a"), *named("b")]
    PlainConnection.close(lent)
