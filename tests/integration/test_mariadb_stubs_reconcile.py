"""Producers in MariaDB: each delivery gets the verdict that it gets where the stubs are in PostgreSQL, and a lost one is sent again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.control.connection import connect
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreUnavailable
from backstop.model.records import SEND_HEADER, Key
from backstop.reconcile.run_once import run_once
from backstop.resend.run_once import run_duty as resend
from backstop.restore.consumer import restore_consumer
from backstop.restore.producer import restore_producer
from backstop.runs.run import Run
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from broken_checks import broken_checks
from maria_stubs import moved
from maria_world import MariaDatabase, maria_server
from mariadb import MariaDB
from scan_world import fill, in_parts, staged
from system import System, system

__all__ = ["in_parts", "maria_server"]
POLICY = {"unknown_horizon": "9m"}


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers, policy=POLICY) as running:
        yield running


@pytest.mark.parametrize("seed", [1, 5])
def test_every_verdict_is_what_it_is_with_stubs_in_postgresql(
    world: System, maria_server: MariaDB, spark: Any, in_parts: None, seed: int
) -> None:
    fill(world, seed)
    with moved(world, maria_server, POLICY) as (there, _):
        (in_postgresql, broken), counts = staged(world, spark)
        (in_mariadb, broken_there), counts_there = staged(there, spark)
    assert in_mariadb == in_postgresql and broken_there == broken
    assert len(in_mariadb[0]) > 20 and len(in_mariadb[1]) > 20, "a world that shows little"
    # How many logs a scan may find is asked of statistics, which the server may have taken meanwhile.
    assert {**counts_there, "scan_estimate": 0} == {**counts, "scan_estimate": 0}


def test_a_lost_message_is_sent_again_once_and_then_confirmed(
    world: System, maria_server: MariaDB, spark: Any
) -> None:
    """The whole way, over databases in MariaDB: judged, promoted, taken, published, settled, confirmed."""
    for shard in ("shop_a", "shop_b"):
        world.sent(f"done-{shard}", shard=shard)
    world.consume("billing")
    world.consume("shipping")
    world.sent("lost", shard="shop_b")
    world.stub("never", shard="shop_a", send_count=0)
    world.pass_over("billing")
    world.consume("shipping")

    with moved(world, maria_server, POLICY) as (there, databases):
        # What a program of somebody else's wrote: a NUL that fills up a fixed length, and bytes that are no text.
        for odd in ("610000", "ff01"):
            databases["shop_a"].run(
                f"INSERT INTO message_stub (topic, message_id, content, next_check_at, created_at, updated_at) SELECT topic, x'{odd}',"
                " '', next_check_at, created_at, updated_at FROM message_stub WHERE message_id = 'never'"
            )

        def stubs() -> dict[str, tuple[str, int]]:
            return {
                row["message_id"]: (row["status"], row["send_count"])
                for database in databases.values()
                for row in database.run(
                    "SELECT * FROM message_stub WHERE message_id NOT IN (x'610000', x'ff01')"
                )
            }

        def reconcile() -> None:
            run_once(
                there.settings,
                there.connections,
                lambda: spark,
                lambda *_: None,
                dead_after=timedelta(0),
            )

        reconcile()
        assert stubs() == {
            "done-shop_a": ("confirmed", 1),
            "done-shop_b": ("confirmed", 1),
            "lost": ("pending", 1),
            "never": ("pending", 0),
        }
        assert world.rows("control", "SELECT message_id, reason FROM quarantine ORDER BY 1") == [
            ("\\x610000", "not_utf8"),
            ("\\xff01", "not_utf8"),
        ]
        judged = world.rows("control", "SELECT DISTINCT message_id FROM verdict ORDER BY 1")
        assert judged == [("lost",), ("never",)]
        asked = "SELECT message_id, send_number, groups FROM resend_request ORDER BY message_id"
        assert world.rows("control", asked) == [("lost", 2, ["billing"]), ("never", 1, None)]
        counts = resend(there.settings, there.connections, dead_after=timedelta(0))
        assert counts["published"] == 2, counts
        assert resend(there.settings, there.connections, dead_after=timedelta(0)) == {}
        assert stubs()["lost"] == ("pending", 2) and stubs()["never"] == ("pending", 1)
        (attempt,) = databases["shop_b"].run("SELECT * FROM send_attempt WHERE send_number = 2")
        assert (attempt["outcome"], attempt["groups"]) == ("sent", '["billing"]')
        copies = {
            (one.message_id, one.headers[SEND_HEADER])
            for one in world.consume("billing")
            if SEND_HEADER in one.headers
        }
        assert copies == {("lost", "2"), ("never", "1")}
        world.pass_over("shipping")
        world.log(Key("orders", "never"), "shipping")
        for database in databases.values():
            database.run("UPDATE message_stub SET next_check_at = UTC_TIMESTAMP(6)")
        world.rows("control", "UPDATE run SET as_of = as_of - interval '9 minutes'")
        reconcile()
        assert {status for status, _ in stubs().values()} == {"confirmed"}
        # No run can judge the odd ones, nor send them: people are asked about them.
        assert world.rows(
            "control",
            "SELECT c.kind, c.consumer_group, c.evidence -> 'set_aside', array_agg(m.message_id ORDER BY 1)"
            " FROM case_file c JOIN case_member m USING (case_id) GROUP BY c.case_id ORDER BY 2",
        ) == [
            ("unknown", group, {"not_utf8": 2}, ["\\x610000", "\\xff01"])
            for group in ("billing", "shipping")
        ]


def test_one_of_an_ordering_key_that_was_never_created_hides_no_other_of_it(
    world: System, maria_server: MariaDB
) -> None:
    for message_id in ("first", "second"):
        world.stub(message_id, ordering_key="k")
    with (
        moved(world, maria_server, POLICY) as (there, databases),
        closing(databases["shop_a"].connect()) as connection,
        connection.cursor() as cursor,
        Sources(there.settings, there.connections) as sources,
    ):
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(
            "UPDATE message_stub SET created_at = '0000-00-00' WHERE message_id = 'second'"
        )
        connection.commit()
        first, second = Key("orders", "first"), Key("orders", "second")
        found = sources.shard("shop_a").neighbours([first, second])
        assert (found[first].open_before, found[first].sent_after) == ("second", None)
        assert (found[second].open_before, found[second].sent_after) == (None, "first")


NO_GROUPS = ("5", '"billing"', '{"a": 1}', "[1, null]", '["\\ud800", "\\u0000"]', "[", "[" * 9_000)
"""In a column of groups: JSON that is no list of text, a text that no database holds, no JSON, JSON that is nested too deep."""
ODD = {
    "negative": "send_count = -1, refusals = -2",
    "never created": "created_at = '0000-00-00'",
    "due since never": "next_check_at = '0000-00-00'",
    "given up, never created": "status = 'exhausted', created_at = '0000-00-00'",
    "padded state": "status = 'pending  '",
}


def put_odd(database: MariaDatabase) -> None:
    """Due stubs in tables that another program may have made: the same columns, and no rules that hold them."""
    copied = "topic, content, next_check_at, created_at, first_seen_at, attempted_at, attempt_deadline, updated_at"
    stub = (
        f"INSERT INTO message_stub (message_id, send_count, {copied}) SELECT %s, 1, {copied} FROM message_stub"
        " WHERE message_id = 'lost'"
    )
    word = "CHARACTER SET ascii COLLATE ascii_bin"
    for table, columns in (
        (
            "message_stub",
            "MODIFY send_count integer NOT NULL, MODIFY refusals integer NOT NULL DEFAULT 0, MODIFY first_groups longtext,"
            f" MODIFY status varchar(16) {word} NOT NULL DEFAULT 'pending', DROP CONSTRAINT message_stub_refusals",
        ),
        ("send_attempt", "MODIFY `groups` longtext"),
    ):
        database.run(f"ALTER TABLE {table} {columns}")
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for name, change in ODD.items():
            cursor.execute(stub, (name.encode(),))
            cursor.execute(
                f"UPDATE message_stub SET {change} WHERE message_id = %s", (name.encode(),)
            )
        for place, groups in enumerate(NO_GROUPS):
            name = f"groups {place}".encode()
            cursor.execute(stub, (name,))
            cursor.execute(
                "UPDATE message_stub SET first_groups = %s WHERE message_id = %s", (groups, name)
            )
            cursor.execute(
                "INSERT INTO send_attempt (topic, message_id, send_number, `groups`, requested_by, started_at, finished_at,"
                " outcome) SELECT topic, message_id, 1, %s, 'test', created_at, created_at, 'sent' FROM message_stub"
                " WHERE message_id = %s",
                (groups, name),
            )
        # A key that is no text, and is shown as the text that is another's.
        for key in (b"\xff", b"\\xff"):
            cursor.execute(stub, (key,))
        cursor.execute("UPDATE message_stub SET send_count = 2 WHERE message_id = %s", (b"\xff",))
        connection.commit()


def test_odd_rows_of_another_program_stop_no_repair_and_break_no_check(
    world: System, maria_server: MariaDB, spark: Any, tmp_path: Path
) -> None:
    """Each is set aside or judged by what can be read of it; what is lost beside them is asked for, what is done is confirmed."""
    world.sent("lost")
    late = world.sent("done late", status="exhausted")
    for group in ("billing", "shipping"):
        world.pass_over(group)
        world.log(late, group)
    broken: dict[str, Any] = {}

    def audit(run: Run, suites: Sequence[str]) -> None:
        for suite in suites:
            broken.update(
                broken_checks(
                    suite, world.urls["control"], run.run_id, tmp_path, repair_topics=["orders"]
                )
            )

    with moved(world, maria_server, POLICY) as (there, databases):
        put_odd(databases["shop_a"])
        run_once(there.settings, there.connections, lambda: spark, audit)
        found = databases["shop_a"].one(
            "SELECT status FROM message_stub WHERE message_id = 'done late'"
        )
    assert found == {"status": "confirmed"}
    assert broken == {}
    asked = dict(world.rows("control", "SELECT message_id, send_number FROM resend_request"))
    assert asked["lost"] == 2
    set_aside = dict(world.rows("control", "SELECT message_id, reason FROM quarantine"))
    assert set_aside == {
        "negative": "more_refusals_than_sends",
        "never created": "no_time",
        "padded state": "unknown_status",
        "\\xff": "not_utf8",
    }
    judged = {row[0] for row in world.rows("control", "SELECT DISTINCT message_id FROM verdict")}
    assert {"\\xff", "due since never", *(f"groups {n}" for n in range(len(NO_GROUPS)))} <= judged


def test_a_shard_that_is_away_keeps_its_own_messages_open_and_nobody_elses(
    world: System, maria_server: MariaDB, spark: Any
) -> None:
    for shard in ("shop_a", "shop_b"):
        world.sent(f"done-{shard}", shard=shard)
    world.consume("billing")
    world.consume("shipping")
    with moved(world, maria_server, POLICY) as (there, databases):
        there.urls["shop_b"] = "mysql://nobody:s3cret-never-shown@127.0.0.1:1/gone"
        with pytest.raises(StoreUnavailable) as caught:
            run_once(there.settings, there.connections, lambda: spark, lambda *_: None)
        assert "shop_b" in str(caught.value) and "s3cret" not in str(caught.value)
        found = {
            shard: database.one("SELECT status FROM message_stub")["status"]
            for shard, database in databases.items()
        }
    assert found == {"shop_a": "confirmed", "shop_b": "pending"}


def test_a_restored_database_gets_back_numbers_and_contents_and_says_what_waits(
    world: System, maria_server: MariaDB
) -> None:
    for message_id in ("edited", "gone", "sending"):
        world.stub(message_id, shard="shop_a", send_count=1)
    world.rows(
        "control",
        """
        INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why, carried_out, emptied_at)
        VALUES ('shop_a', 'orders', 'edited', 3, 'better', 'ann', 'w', true, NULL),
            ('shop_a', 'orders', 'gone', 2, '', 'ann', 'w', true, now());
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, reopened_at)
        SELECT 'shop_a', 'orders', m, 2, 'lost', 'reconcile', 'open', now() FROM unnest('{edited,sending}'::text[]) AS m;
        INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'ann', 'restored')""",
    )
    since = datetime.now(UTC) - timedelta(hours=1)
    with (
        moved(world, maria_server, POLICY) as (there, databases),
        closing(connect(there.settings, there.connections)) as control,
    ):
        database = databases["shop_a"]
        database.run(
            "UPDATE message_stub SET attempt_token = UUID(), attempt_deadline = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR"
            " WHERE message_id = 'sending'"
        )
        counts = restore_producer(there.settings, there.connections, control, "shop_a", since)
        assert (counts["raised"], counts["not_raised"], counts["edited"]) == (1, 1, 1)
        assert counts["content_gone"] == 1
        found = {
            row["message_id"]: (
                bytes(row["content"]),
                row["content_version"],
                row["send_count"],
                row["status"],
            )
            for row in database.run("SELECT * FROM message_stub")
        }
        assert found["edited"] == (b"better", 3, 2, "pending")
        assert found["gone"][1:] == (1, 1, "exhausted")
        assert found["sending"][1:] == (1, 1, "pending")
        database.run("UPDATE message_stub SET attempt_deadline = UTC_TIMESTAMP(6)")
        counts = restore_producer(there.settings, there.connections, control, "shop_a", since)
        assert counts["raised"] == 1 and "not_raised" not in counts
        # A consumer's database was restored too: what a person must decide stays so.
        counts = restore_consumer(there.settings, there.connections, control, "billing_db", since)
        assert (counts["reopened"], counts.get("not_held")) == (1, None)
        found = database.run("SELECT status FROM message_stub WHERE message_id = 'gone'")
        assert found == [{"status": "exhausted"}]
    asked = "SELECT message_id, state FROM resend_request ORDER BY message_id"
    assert world.rows("control", asked) == [("edited", "unknown"), ("sending", "unknown")]
