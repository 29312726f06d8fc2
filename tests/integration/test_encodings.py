"""Databases of other programs that are not UTF-8: no id of ours, and no row of theirs, ends the reading of the others."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from typing import Any

import psycopg2
import pytest

from backstop.brokers.protocol import Received
from backstop.client.finished import FinishedOffsets
from backstop.client.process import Ended
from backstop.client.process_once import ProcessOnce
from backstop.client.ways import Work
from backstop.config.mapped import LogMapping, StubMapping
from backstop.leases import queue_owner
from backstop.model.records import Key, Message, Position
from backstop.schema.revisions import whole
from backstop.stores.mapped.postgresql import PostgresTable
from backstop.stores.postgresql.leases import PostgresLeases
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.purge import PostgresLogPurge
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Scope
from backstop.stores.purge import FIRST_LOG
from backstop_lab.servers.postgres import Postgres

PLAIN, CAFE, TOKYO = (
    Key("orders", "plain"),
    Key("orders", "caf\u00e9"),
    Key("orders", "\u6771\u4eac"),
)
MOJIBAKE = Key("orders", "caf\u00c3\u00a9")
"""What the UTF-8 of CAFE reads as in LATIN1."""


THERE = {
    "LATIN1": [PLAIN, CAFE, MOJIBAKE],
    "SQL_ASCII": [PLAIN, CAFE, TOKYO],
    # Characters that Python's codec of the name does not have, and PostgreSQL's encoding does.
    "EUC_JP": [PLAIN, TOKYO, Key("orders", "\u2460 \u9ad9\uff5e")],
    # Python has no codec of the name.
    "EUC_TW": [PLAIN, TOKYO],
}
"""By encoding of a database, the ids of its rows."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], str]]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        found = {}
        admin = psycopg2.connect(server.admin_dsn())
        admin.autocommit = True
        for encoding in THERE:
            for role in ("producer", "consumer"):
                name = f"{role}_{encoding.lower()}"
                with admin.cursor() as cursor:
                    cursor.execute(
                        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
                    )
                found[encoding, role] = server.admin_dsn(name)
                put(found[encoding, role], whole(role))
        admin.close()
        for (encoding, role), url in found.items():
            for key in THERE[encoding]:
                put(url, INSERT[role].format(id=key.message_id))
        # A row of a program that writes LATIN1 into a database that holds any bytes.
        for role in ("producer", "consumer"):
            put(
                found["SQL_ASCII", role],
                INSERT[role].format(id="caf\u00e9").encode("latin-1"),
                "SQL_ASCII",
            )
        yield found


INSERT = {
    "producer": "INSERT INTO message_stub (topic, message_id, tag, content, next_check_at)"
    " VALUES ('orders', '{id}', '{id}', '', now() - interval '1 hour')",
    "consumer": "INSERT INTO consumer_log (consumer_group, topic, message_id, state, last_error)"
    " VALUES ('billing', 'orders', '{id}', 'CONSUMING', '{id}')",
}


def put(url: str, statement: str | bytes, client_encoding: str = "UTF8") -> None:
    connection = psycopg2.connect(url, client_encoding=client_encoding)
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()


def scanned(stubs: PostgresStubs) -> list[tuple[Any, ...]]:
    with stubs.scan_due(datetime.now(UTC) + timedelta(minutes=1), Scope(), 1) as scan:
        tables = [
            table
            for part in scan.parts
            for table in stubs.read_part(part, lambda name, table: table)
        ]
    return [
        (row["message_id"], row["tag"], row["status"])
        for table in tables
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize("encoding", THERE)
def test_any_id_is_asked_for_and_answered_as_itself(
    urls: dict[tuple[str, str], str], encoding: str
) -> None:
    there = set(THERE[encoding])
    elsewhere = [key for keys in THERE.values() for key in keys if key not in there]
    asked = [*there, *elsewhere] if encoding != "SQL_ASCII" else [PLAIN, CAFE, TOKYO, MOJIBAKE]
    with (
        PostgresStubs("shop_a", urls[encoding, "producer"]) as stubs,
        PostgresLogs("db", urls[encoding, "consumer"]) as logs,
    ):
        tables = (stubs.stub_table(asked), logs.log_table("billing", asked))
        found = [
            {Key(row["topic"], row["message_id"]) for row in table.to_pylist()} for table in tables
        ]
        assert found == [there, there]
        assert set(stubs.stubs(asked)) == set(logs.logs("billing", asked)) == there
        assert stubs.attempt_table(asked).num_rows == 0


def test_a_row_that_is_not_utf_8_is_one_unreadable_row(urls: dict[tuple[str, str], str]) -> None:
    url = urls["SQL_ASCII", "producer"]
    with PostgresStubs("shop_a", url) as stubs:
        rows = scanned(stubs)
    readable = [(key.message_id, key.message_id, "pending") for key in (PLAIN, CAFE, TOKYO)]
    assert sorted(rows) == sorted([*readable, ("\\x636166e9", "\\x636166e9", "unreadable")])


def test_a_row_that_is_not_utf_8_keeps_no_attempt_from_being_recovered(
    urls: dict[tuple[str, str], str],
) -> None:
    url = urls["SQL_ASCII", "producer"]
    under_way = (
        "INSERT INTO message_stub (topic, message_id, content, send_count, next_check_at, attempted_at, attempt_token, attempt_deadline)"
        " VALUES ('recovered', '{id}', '', 1, now(), now(), gen_random_uuid(), now() - interval '1 minute' * {minutes})"
    )
    shown = Key("recovered", "\\x636166e9")

    def begin() -> None:
        put(url, "DELETE FROM message_stub WHERE topic = 'recovered'")
        put(url, under_way.format(id="caf\u00e9", minutes=2).encode("latin-1"), "SQL_ASCII")
        put(url, under_way.format(id=TOKYO.message_id, minutes=1))

    tokyo = Key("recovered", TOKYO.message_id)
    with PostgresStubs("shop_a", url) as stubs:
        begin()
        assert stubs.recover(1, 30.0) == [shown]
        assert stubs.recover(1, 30.0) == [tokyo]
        assert stubs.recover(1, 30.0) == []
        begin()
        assert stubs.late(Key("", ""), 9) == [tokyo]
        assert stubs.recover_of([tokyo], 30.0) == [tokyo]
    put(url, "DELETE FROM message_stub WHERE topic = 'recovered'")


def test_a_row_that_is_not_utf_8_hides_no_other_from_the_search_for_anomalies(
    urls: dict[tuple[str, str], str],
) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    with PostgresLogs("db", urls["SQL_ASCII", "consumer"]) as logs:
        found = logs.received_between("billing", now - day, now + day, 4)
    assert {Key(log.topic, log.message_id) for log in found} == {PLAIN, CAFE, TOKYO}


ENDED = (
    "INSERT INTO consumer_log (consumer_group, topic, message_id, state, attempts, owner_host, last_error,"
    " lease_expires_at, first_received_at, updated_at)"
    " VALUES ('sweeping', '{topic}', '{id}', 'CONSUMING', 3, '{host}', '{id}', now() - interval '1 hour',"
    " now() - interval '1 day', now() - interval '1 day')"
)
ODD = Key("orders", "odd host")


def test_a_row_that_is_not_utf_8_ends_no_sweep_no_purge_and_no_count(
    urls: dict[tuple[str, str], str],
) -> None:
    url = urls["SQL_ASCII", "consumer"]
    for key in (PLAIN, CAFE, TOKYO):
        put(url, ENDED.format(topic="orders", id=key.message_id, host="h"))
    for topic, message_id, host in (
        ("orders", "caf\u00e9", "h"),
        ("caf\u00e9", "of another topic", "h"),
        ("orders", ODD.message_id, "caf\u00e9"),
    ):
        text = ENDED.format(topic=topic, id=message_id, host=host)
        put(url, text.encode("latin-1"), "SQL_ASCII")
    readable = {PLAIN, CAFE, TOKYO, ODD}
    now, day = datetime.now(UTC), timedelta(days=1)
    with PostgresLogs("db", url) as logs:
        assert logs.count_received("sweeping", now - 2 * day, now) == {"orders": 5}
    with closing(PostgresLogPurge("db", url)) as purge:
        old, place = purge.old_logs("sweeping", {"orders": 60.0}, FIRST_LOG, 5)
        assert ({log.key for log in old}, place) == (readable, None)
        assert all(log.is_old for log in old)
    with PostgresLeases("db", url) as leases:
        seen, _ = leases.settle(["sweeping"], {}, 5, False, None)
        assert {Key(one.topic, one.message_id) for one in seen} == readable
        assert {one.owner_host for one in seen} == {"h", "\\x636166e9"}
        failing = leases.failing({("sweeping", "orders"): (3, 1e6)}, 5)
        assert {Key(one.topic, one.message_id) for one in failing} == readable
        _, taken = leases.settle(["sweeping"], {}, 1, False, lambda seen: seen)
        assert len(taken) == 1
        rest = leases.take_back(["sweeping"], 10)
        assert sum(one.leases for one in rest) == 5, "also those whose keys cannot be read"
        assert {one.topic for one in rest} == {"orders", "\\x636166e9"}
        endless, _ = leases.settle([], {"billing": 0.0}, 10, True, None)
        assert {Key(one.topic, one.message_id) for one in endless} >= {PLAIN, CAFE, TOKYO}
        assert leases.take_back(["sweeping"], 10) == []


def test_a_row_of_somebody_elses_that_is_not_utf_8_names_no_message(
    urls: dict[tuple[str, str], str],
) -> None:
    """By a name in place of its own it would be asked for, and would be found nowhere."""
    mapping = StubMapping(
        tables=["message_stub"],
        message_id="message_id",
        topics=["orders"],
        state="status",
        unsent=["pending"],
        created_at="created_at",
    )
    table = PostgresTable("shop", urls["SQL_ASCII", "producer"])
    with closing(table), TemporaryFile() as into:
        table.look(mapping, into)
        into.seek(0)
        found = [row[1] for row in csv.reader(into.read().decode().splitlines())]
    assert sorted(found) == sorted(["", *(key.message_id for key in (PLAIN, CAFE, TOKYO))])


@pytest.mark.parametrize("column", ["message_id", "topic"])
def test_a_log_of_somebody_elses_that_is_not_utf_8_may_be_of_any_message(
    urls: dict[tuple[str, str], str], column: str
) -> None:
    url = urls["SQL_ASCII", "consumer"]
    mapping = LogMapping(
        tables=["consumer_log"],
        message_id="message_id",
        topic="topic",
        group="consumer_group",
        state="state",
        done=["CONSUMED"],
    )
    row = INSERT["consumer"].replace("'billing'", f"'theirs, {column}'")
    with closing(PostgresTable("billing_db", url)) as table:
        put(url, row.format(id=CAFE.message_id))
        assert not table.has_nameless(mapping, f"theirs, {column}")
        odd = row.format(id="caf\u00e9")
        if column == "topic":
            odd = row.replace("'orders'", "'caf\u00e9'").format(id="plain")
        put(url, odd.encode("latin-1"), "SQL_ASCII")
        assert table.has_nameless(mapping, f"theirs, {column}")
        assert not table.has_nameless(mapping, "nobody's")


def test_a_text_that_is_not_utf_8_makes_its_own_row_invalid(
    urls: dict[tuple[str, str], str],
) -> None:
    consumer, producer = urls["SQL_ASCII", "consumer"], urls["SQL_ASCII", "producer"]
    put(
        consumer,
        INSERT["consumer"].replace("'{id}')", "'caf\u00e9')").format(id="odd").encode("latin-1"),
        "SQL_ASCII",
    )
    put(
        producer,
        INSERT["producer"]
        .replace("'{id}', ''", "'caf\u00e9', ''")
        .format(id="odd")
        .encode("latin-1"),
        "SQL_ASCII",
    )
    odd = Key("orders", "odd")
    with PostgresStubs("shop_a", producer) as stubs, PostgresLogs("db", consumer) as logs:
        found = logs.logs("billing", [PLAIN, odd, CAFE])
        assert {key: log.invalid for key, log in found.items()} == {
            PLAIN: None,
            odd: "text that is not UTF-8",
            CAFE: None,
        }
        assert set(stubs.stubs([PLAIN, odd, CAFE])) == {PLAIN, CAFE}
        assert {
            row["message_id"]: row["tag"] for row in stubs.stub_table([PLAIN, odd]).to_pylist()
        } == {
            "plain": "plain",
            "odd": "\\x636166e9",
        }


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_check_says_that_a_database_is_not_utf_8(
    urls: dict[tuple[str, str], str], encoding: str
) -> None:
    with (
        PostgresStubs("shop_a", urls[encoding, "producer"]) as stubs,
        PostgresLogs("db", urls[encoding, "consumer"]) as logs,
    ):
        for findings in (stubs.check(), logs.check()):
            (finding,) = [one for one in findings if one.subject.endswith("encoding")]
            assert not finding.good and encoding in finding.says and "UTF8" in finding.do


@pytest.mark.parametrize(
    ("encoding", "session"),
    [("LATIN1", None), ("SQL_ASCII", None), ("LATIN1", "UTF8"), ("EUC_JP", "UTF8")],
)
def test_a_handlers_error_in_other_characters_is_its_messages_failure(
    urls: dict[tuple[str, str], str], encoding: str, session: str | None
) -> None:
    """It would end the consumer, and come again first: for ever."""
    options = {} if session is None else {"client_encoding": session}
    once = ProcessOnce(lambda: psycopg2.connect(urls[encoding, "consumer"], **options), "erring")

    def refuse(connection: Any, message: Message, work: Work) -> None:
        raise ValueError("\u6771\u4eac \u20ac \x00")

    name = f"erring {session}"
    assert once.around(refuse)(Message("orders", name, b"")) is Ended.FAILED
    once.close()
    with (
        closing(psycopg2.connect(urls[encoding, "consumer"])) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT last_error FROM consumer_log WHERE message_id = %s", (name,))
        assert cursor.fetchone() == (r"ValueError: \u6771\u4eac \u20ac \ufffd",)


def test_a_list_of_what_is_finished_is_kept_by_a_database_that_holds_any_bytes(
    urls: dict[tuple[str, str], str],
) -> None:
    finished = FinishedOffsets()
    some = [
        Received(Message("orders", name, b""), Position(0, offset, "e"), name, 1)
        for offset, name in enumerate(("open", TOKYO.message_id), 1)
    ]
    for one in some:
        finished.fetched(one)
    finished.add(some[1])
    url = urls["SQL_ASCII", "consumer"]
    with closing(psycopg2.connect(url, client_encoding="UTF8")) as connection:
        queue_owner.declare(connection, "finishing", "orders", [0])
        (queue,) = queue_owner.take(connection, "finishing", "orders", "w1", [0], 1)
        assert queue_owner.release(connection, "w1", queue, finished.saved(("orders", 0)))
        kept = FinishedOffsets()
        kept.adopt(("orders", 0), queue_owner.finished(connection, queue))
        assert (kept.knows(some[0]), kept.knows(some[1])) == (False, True)
