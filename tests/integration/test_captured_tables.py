"""Tables whose rows go when they are sent: a trigger keeps what was promised, and the relay's progress says what was sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml

from backstop.cli.app import run_app
from backstop.config.mapped import StubMapping
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.stores.mapped.capture import capture_sql
from backstop.stores.mapped.postgresql import PostgresTable
from backstop.stores.open import open_mapped_stubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import DEBEZIUM, Library, Mapped, make_mapped, settings_of
from system import build_template, settings_dict, system

SENT_AND_GONE = """
    BEGIN; INSERT INTO outboxevent VALUES ('{id}', 'Order', 'o-1', 'OrderPlaced', '{{}}');
    DELETE FROM outboxevent WHERE id = '{id}'; {end}"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        with closing(psycopg2.connect(server.admin_dsn())) as admin, admin.cursor() as cursor:
            admin.autocommit = True
            cursor.execute("ALTER SYSTEM SET wal_level = logical")
        server.stop()
        server.start()
        build_template(server)
        yield server


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as server:
        yield server


def by_deletion() -> Library:
    producer = {**DEBEZIUM.producer, "slot": None, "deleted_when_sent": True}
    return dataclasses.replace(DEBEZIUM, producer=producer)


@contextmanager
def captured(postgres: Postgres, valkey: Valkey, library: Library) -> Iterator[Mapped]:
    changes = settings_of(library, consumer={"kept": None})
    changes["producers"]["shop"]["kind"] = "captured"
    with system(postgres, valkey, **changes) as running:
        shop = make_mapped(postgres, running, library)
        mapping = StubMapping.model_validate(library.producer)
        shop.run(capture_sql(mapping, shop.database).replace("%", "%%"))
        shop.run(capture_sql(mapping, shop.database).replace("%", "%%"))  # safe to run twice
        yield shop


def insert(shop: Mapped, *, rolled_back: bool = False) -> str:
    """A row that is deleted in the transaction that inserts it."""
    shop.numbers += 1
    message_id = shop.library.id_of(shop.numbers)
    with closing(psycopg2.connect(shop.owner)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        end = "ROLLBACK" if rolled_back else "COMMIT"
        cursor.execute(SENT_AND_GONE.format(id=message_id, end=end))
    return message_id


@contextmanager
def session(shop: Mapped) -> Iterator[psycopg2.extensions.cursor]:
    """A connection that the application keeps."""
    with closing(psycopg2.connect(shop.owner)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        yield cursor


ONE_OF_THEIRS = "INSERT INTO outboxevent VALUES (gen_random_uuid(), 'Order', 'a', 't', NULL)"


def relay(shop: Mapped) -> None:
    """The relay has sent all that is committed by now."""
    shop.run("SELECT pg_replication_slot_advance('backstop_test', pg_current_wal_insert_lsn())")


def test_a_captured_row_is_sent_once_the_relays_slot_is_past_it(
    postgres: Postgres, valkey: Valkey
) -> None:
    with captured(postgres, valkey, DEBEZIUM) as shop:
        shop.run("SELECT pg_create_logical_replication_slot('backstop_test', 'pgoutput')")
        done, lost = shop.receive(insert(shop)), insert(shop)
        rolled_back = insert(shop, rolled_back=True)
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        waits = ("BACKLOGGED", "ahead_of_group")
        assert shop.judge(done, lost) == {done: ("CONFIRMED", "consumed"), lost: waits}
        shop.prove(done)
        assert shop.judge(lost, rolled_back) == {lost: waits}, "its relay may be down"

        relay(shop)
        under_way = insert(shop)
        assert shop.judge(lost) == {lost: waits}, "sent just now"
        shop.look()
        assert shop.judge(lost) == {lost: waits}
        shop.a_minute_later()
        assert shop.judge(lost, under_way) == {lost: ("LOST", "passed_over"), under_way: waits}
        states = "SELECT message_id, state FROM mapped_stub ORDER BY 1"
        assert shop.system.rows("control", states) == [
            (done, "sent"),
            (lost, "sent"),
            (under_way, "unsent"),
        ]
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            findings = {finding.subject: finding for finding in stubs.check()}
        assert findings["shard shop: trigger"].good and findings["shard shop: privileges"].good
        assert not findings["shard shop: slot backstop_test"].good, "no relay reads it now"
        shop.run("SELECT pg_drop_replication_slot('backstop_test')")
        with pytest.raises(AssertionError, match="no logical replication slot"):
            shop.look()


def test_a_row_that_its_relay_deletes_was_sent_when_it_is_gone(
    postgres: Postgres, valkey: Valkey
) -> None:
    with captured(postgres, valkey, by_deletion()) as shop:
        done, lost, under_way = (shop.promise() for _ in range(3))
        shop.run("DELETE FROM outboxevent WHERE id IN (%(a)s, %(b)s)", a=done, b=lost)
        shop.receive(done)
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(lost, under_way) == {
            lost: ("LOST", "passed_over"),
            under_way: ("BACKLOGGED", "ahead_of_group"),
        }


@pytest.mark.parametrize(
    ("kind", "value", "forms"),
    [
        ("bytea", r"'\x00ff'", "bytea_output = escape"),
        ("timestamptz", "'2026-01-02 03:04:05+00'", "TimeZone = 'Asia/Tokyo'"),
        ("date", "'2026-01-02'", "DateStyle = 'SQL, DMY'"),
        ("interval", "'1 day 2 hours'", "IntervalStyle = iso_8601"),
        ("double precision", "0.1::real::double precision", "extra_float_digits = -10"),
    ],
)
def test_an_id_is_kept_as_looks_read_it_whatever_the_applications_session_says(
    postgres: Postgres, valkey: Valkey, kind: str, value: str, forms: str
) -> None:
    with captured(postgres, valkey, by_deletion()) as shop:
        shop.run(f"ALTER TABLE outboxevent ALTER id TYPE {kind} USING NULL")
        with session(shop) as application:
            application.execute(f"SET {forms}")
            application.execute(
                f"INSERT INTO outboxevent VALUES ({value}, 'Order', 'a', 't', NULL)"
            )
        for of_login in ("", f"ALTER ROLE {shop.database} SET {forms}"):
            shop.run(of_login or "SELECT")
            shop.look()
            ((message_id, state),) = shop.system.rows(
                "control", "SELECT message_id, state FROM mapped_stub"
            )
            assert state == "unsent", "its row is still there"
            with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
                (by_key,) = stubs.stub_table([Key("orders", message_id)]).to_pylist()
            assert not by_key["settled"]


def test_the_trigger_never_refuses_what_the_application_writes(
    postgres: Postgres, valkey: Valkey
) -> None:
    with captured(postgres, valkey, by_deletion()) as shop:
        with session(shop) as pooled:
            pooled.execute(ONE_OF_THEIRS)
            shop.run("DELETE FROM backstop_capture.captured_row")
            shop.run("ALTER TABLE outboxevent ALTER id TYPE char(40)")
            pooled.execute(ONE_OF_THEIRS)
            kept = "SELECT length(message_id), topic FROM backstop_capture.captured_row"
            assert shop.run(kept) == [(36, "Order")], "as the look reads it, without the padding"
            shop.run("DELETE FROM backstop_capture.captured_row; TRUNCATE outboxevent")
        shop.run("ALTER TABLE outboxevent DROP CONSTRAINT outboxevent_pkey, ALTER id TYPE text")
        shop.run("ALTER TABLE outboxevent ALTER id DROP NOT NULL, ALTER aggregatetype TYPE text")
        shop.run("ALTER TABLE outboxevent ALTER aggregatetype DROP NOT NULL")
        rows = "INSERT INTO outboxevent VALUES (%(id)s, %(topic)s, 'a', 't', NULL)"
        for message_id, topic in (
            (None, None),
            ("x" * 9000, "Order"),
            ("m", "Order"),
            ("m", "Order"),
        ):
            shop.run(rows, id=message_id, topic=topic)
        # A service that may write its own table alone.
        role = f"{shop.database}_app"
        shop.run(f"CREATE ROLE {role}; GRANT INSERT ON outboxevent TO {role}")
        shop.run(
            f"SET ROLE {role}; INSERT INTO outboxevent VALUES ('app', 'Order', 'a', 't', NULL)"
        )
        found = shop.run("SELECT count(*) FROM backstop_capture.captured_row")
        assert found == [(5,)]
        shop.look()
        states = shop.system.rows("control", "SELECT message_id, state FROM mapped_stub ORDER BY 1")
        assert states == [("app", "unsent"), ("m", "not_unique")]
        assert shop.system.rows("control", "SELECT left_out FROM mapped_look") == [(1,)]


def test_migrate_prints_the_triggers_for_a_dba(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = settings_of(DEBEZIUM)
    changes["producers"]["shop"]["kind"] = "captured"
    (tmp_path / "backstop.yaml").write_text(yaml.safe_dump(settings_dict(**changes)))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgresql://look:secret@127.0.0.1/shop")
    assert run_app(["migrate", "--capture"]) == 0
    text = capsys.readouterr().out
    assert 'CREATE TRIGGER backstop_capture AFTER INSERT ON "outboxevent"' in text
    assert (
        'GRANT SELECT ON backstop_capture.captured_row TO "look"' in text and "secret" not in text
    )


THEIR_TYPE = """
CREATE TABLE ran_as (who text);
GRANT INSERT ON ran_as TO PUBLIC;
CREATE FUNCTION theirs(given {kind}) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.ran_as VALUES (current_user);
    RETURN 'theirs';
END
$$;
CREATE CAST ({kind} AS text) WITH FUNCTION theirs({kind}) AS IMPLICIT;
CREATE CAST ({kind} AS json) WITH FUNCTION as_json({kind}) AS IMPLICIT;
"""
THEIR_KINDS = {
    "composite": ("CREATE TYPE kind AS (part text)", "ROW('m-1')::kind", "(m-1)"),
    "enum": ("CREATE TYPE kind AS ENUM ('m-1')", "'m-1'::kind", "m-1"),
    "range": ("CREATE TYPE kind AS RANGE (subtype = int4)", "kind(1, 5)", "[1,5)"),
}


@pytest.mark.parametrize("kind", THEIR_KINDS)
def test_the_owner_of_a_captured_table_runs_no_code_with_the_rights_of_who_made_the_trigger(
    postgres: Postgres, valkey: Valkey, kind: str
) -> None:
    """The application owns its table, and may make types with casts, and operators and functions of the names that ours uses."""
    made, value, text = THEIR_KINDS[kind]
    with captured(postgres, valkey, by_deletion()) as shop, session(shop) as pooled:
        role = f"{shop.database}_owner"
        shop.run(f"CREATE ROLE {role}; CREATE SCHEMA theirs AUTHORIZATION {role}")
        shop.run(
            f"ALTER TABLE outboxevent OWNER TO {role}; GRANT CREATE ON SCHEMA public TO {role}"
        )
        as_owner = f"SET ROLE {role}; SET search_path = theirs, public, pg_catalog;"
        shop.run(
            f"{as_owner} {made}; CREATE FUNCTION as_json(kind) RETURNS json LANGUAGE sql RETURN '1'::json;"
            + THEIR_TYPE.format(kind="kind", schema="theirs")
        )
        shop.run(
            f"{as_owner} CREATE FUNCTION concat(kind) RETURNS text LANGUAGE sql AS 'SELECT theirs($1)';"
            " CREATE FUNCTION pg_typeof(kind) RETURNS regtype LANGUAGE sql AS"
            " $$ SELECT theirs($1); SELECT 'text'::regtype $$;"
            " CREATE FUNCTION less(oid, oid) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
            " CREATE OPERATOR < (LEFTARG = oid, RIGHTARG = oid, FUNCTION = less)"
        )
        pooled.execute(f"SET ROLE {role}; SET search_path = theirs, public, pg_catalog")
        pooled.execute(ONE_OF_THEIRS)
        shop.run("TRUNCATE outboxevent, backstop_capture.captured_row")
        # After the trigger was made; the DBA's script would refuse it.
        shop.run(
            f"{as_owner} ALTER TABLE outboxevent DROP CONSTRAINT outboxevent_pkey, DROP COLUMN id;"
            " ALTER TABLE outboxevent ADD id kind, ALTER aggregatetype TYPE kind USING NULL,"
            " ALTER aggregatetype DROP NOT NULL"
        )
        shop.run(f"{as_owner} INSERT INTO outboxevent VALUES ({value}, 'a', 't', NULL, {value})")
        pooled.execute(f"INSERT INTO outboxevent VALUES ({value}, 'a', 't', NULL, NULL)")
        kept = "SELECT topic, message_id FROM backstop_capture.captured_row ORDER BY captured_at"
        assert shop.run(kept) == [(text, text), (text, None)]
        assert shop.run("SELECT who FROM theirs.ran_as") == []

        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            findings = {finding.subject: finding for finding in stubs.check()}
        types = findings["shard shop: types"]
        assert not types.good and types.says == "aggregatetype is theirs.kind, id is theirs.kind"
        mapping = StubMapping.model_validate(by_deletion().producer)
        with pytest.raises(psycopg2.errors.RaiseException) as refused:
            shop.run(capture_sql(mapping, shop.database).replace("%", "%%"))
        assert "aggregatetype is theirs.kind, id is theirs.kind" in str(refused.value)
        missing = mapping.model_copy(update={"message_id": "no_id"})
        with pytest.raises(psycopg2.errors.RaiseException, match="no_id is not there"):
            shop.run(capture_sql(missing, shop.database).replace("%", "%%"))
        # A look reads ids as text, as Backstop's login, which may not change a thing.
        shop.run("GRANT USAGE ON SCHEMA theirs TO PUBLIC")
        with pytest.raises(AssertionError, match="read-only transaction"):
            shop.look()
        table = PostgresTable("shard shop", shop.system.connections.url("shop"))
        with closing(table), pytest.raises(StoreUnavailable, match="read-only transaction"):
            table.rows_of_keys(mapping, [Key("orders", "m-1")])
        assert shop.run("SELECT who FROM theirs.ran_as") == []
