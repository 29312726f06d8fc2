"""A part of a judgement is staged once, however often its task runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.model.records import EARLIEST, LATEST
from backstop.reconcile.quarantine import BROKEN_STAGED, quarantine_logs
from backstop.reconcile.row_key import row_key
from backstop.reconcile.stage import connect_staging, copy_stubs, copy_verdicts, take_part
from backstop.runs.run import open_run
from backstop.sql.connection import PostgresConnection
from backstop.verdicts.evaluate import table
from backstop.verdicts.frames import micros
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, build_template, system

ODD = ["m-1", "", 'a "b", c', "line\nend", "back\\slash", "emoji-\U0001f69a", "\\N"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        with system(postgres, valkey) as running:
            yield running


def rows_of(ids: list[str]) -> pa.Table:
    one = {
        "shard": "shop_a",
        "topic": "orders",
        "old_status": "pending",
        "new_status": "pending",
        "send_count": 1,
    }
    return table(
        BROKEN_STAGED,
        [
            {
                **one,
                "deliveries": 2,
                "message_id": name,
                "next_look_at": 1_000_000 if name else None,
            }
            for name in ids
        ],
    )


def test_a_task_is_at_the_server_that_can_be_written_to_and_its_silence_is_noticed(
    world: System, tmp_path: Path
) -> None:
    """A control database with two hosts: the first one is the standby since a failover."""
    with Postgres(tmp_path / "standby") as standby:
        first, second = (parse_dsn(url) for url in (standby.admin_dsn(), world.urls["control"]))
        with closing(psycopg2.connect(standby.admin_dsn())) as admin, admin.cursor() as cursor:
            admin.autocommit = True
            cursor.execute(f"CREATE DATABASE {second['dbname']}")
            cursor.execute(f"ALTER ROLE {second['user']} PASSWORD %s", (second["password"],))
            cursor.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            cursor.execute("SELECT pg_reload_conf()")
        both = {name: f"{first[name]},{second[name]}" for name in ("host", "port")}
        dsn = make_dsn(**second | both)
        with closing(psycopg2.connect(dsn)) as anywhere, anywhere.cursor() as cursor:
            cursor.execute("SHOW port")
            assert cursor.fetchone() == (first["port"],)
        with closing(connect_staging(dsn)) as own, own.cursor() as cursor:
            cursor.execute("SHOW port")
            assert cursor.fetchone() == (second["port"],)
            cursor.execute("SHOW tcp_keepalives_idle")
            assert cursor.fetchone() == ("30",)


def test_no_limit_of_the_server_for_whole_transactions_ends_a_scan_a_staging_or_a_promotion(
    world: System, tmp_path: Path
) -> None:
    with Postgres(tmp_path / "of_18", version="18") as server:  # the limit is there from 17 on
        with closing(psycopg2.connect(server.admin_dsn())) as admin, admin.cursor() as cursor:
            admin.autocommit = True
            cursor.execute("ALTER DATABASE postgres SET transaction_timeout = '30s'")
        connections = Connections(resolver=lambda _: server.admin_dsn())
        for opened in (connect(world.settings, connections), connect_staging(server.admin_dsn())):
            with closing(opened), opened.cursor() as cursor:
                cursor.execute("SHOW transaction_timeout")
                assert cursor.fetchone() == ("0",)
        with closing(PostgresConnection("shard shop_a", server.admin_dsn())) as connection:
            assert connection.rows("SHOW transaction_timeout") == [("0",)]


def test_two_runs_that_meet_the_same_broken_rows_lock_them_in_one_order(world: System) -> None:
    """In the order that each met them, one of the two was ended as a deadlock, and its judgement was lost."""
    keys = sorted(row_key("billing", "orders", name) for name in "ab")
    rows = sorted(
        (
            {
                "consumer_group": "billing",
                "topic": "orders",
                "message_id": name,
                "log_broken": "no_time",
            }
            for name in "ab"
        ),
        key=lambda row: row_key("billing", "orders", row["message_id"]),
        reverse=True,
    )
    control, other = world.control(), world.control()
    run = open_run(control, "reconcile", "broken rows", world.settings)
    quarantine_logs(rows, world.settings, control, run)
    lock = "SELECT 1 FROM quarantine WHERE row_key = %s FOR UPDATE NOWAIT"
    with closing(control), closing(other), other.cursor() as cursor:
        cursor.execute(lock, (keys[0],))
        second = threading.Thread(
            target=quarantine_logs, args=(rows, world.settings, control, run), daemon=True
        )
        second.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%INTO quarantine%%'"
        while world.rows("control", waits) != [(1,)]:
            assert second.is_alive(), "it did not wait for the first"
        cursor.execute(lock, (keys[1],))
        other.rollback()
        second.join(120)


def test_a_part_is_written_by_one_try_and_again_only_after_that_one_failed(world: System) -> None:
    control = world.control()
    run_id = open_run(control, "reconcile", "*", world.settings).run_id
    tried: list[bool] = []

    def try_it(rolls_back: bool) -> None:
        with closing(connect_staging(world.urls["control"])) as own, own.cursor() as cursor:
            tried.append(take_part(cursor, run_id, 1, 7))
            if tried[-1]:
                copy_stubs(cursor, run_id, 1, rows_of(ODD))
            own.rollback() if rolls_back else own.commit()

    with closing(connect_staging(world.urls["control"])) as first, first.cursor() as cursor:
        assert take_part(cursor, run_id, 1, 7)
        second = threading.Thread(target=try_it, args=(False,))
        second.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'backstop stage'"
        while world.rows("control", waits) != [(1,)]:
            assert second.is_alive(), "it did not wait for the first"
        first.rollback()
    second.join(120)
    try_it(False)
    assert tried == [True, False]
    found = world.rows(
        "control",
        "SELECT message_id, extract(epoch FROM next_look_at)::int FROM staged_stub ORDER BY 1",
    )
    assert sorted(found) == sorted((name, 1 if name else None) for name in ODD)
    control.close()


def test_what_is_copied_is_what_was_judged_whatever_the_values(world: System) -> None:
    """Nulls, instants before 2000 and at the ends of the calendar, and text of any kind."""
    kinds = {
        "shard": "string",
        "topic": "string",
        "message_id": "string",
        "consumer_group": "string",
        "verdict": "string",
        "reason": "string",
        "eligible": "boolean",
        "send_count": "int",
        "case_kind": "string",
        "next_look_at": "bigint",
        "evidence": "string",
    }
    first = {
        "shard": "shop_a",
        "topic": "orders",
        "consumer_group": "billing",
        "verdict": "LOST",
        "reason": "",
    }
    instants = [
        None,
        -1,
        0,
        micros(EARLIEST),
        micros(LATEST),
        946_684_799_999_999,
        1_800_000_000_123_456,
    ]
    rows = [
        {
            **first,
            "message_id": name,
            "eligible": bool(number % 2),
            "send_count": (2**31 - 1) * (number % 2),
            "next_look_at": at,
            "case_kind": None if number % 3 else name,
            "evidence": json.dumps({"id": name}),
        }
        for number, (name, at) in enumerate(zip(ODD, instants, strict=True))
    ]
    control = world.control()
    run_id = open_run(control, "reconcile", "[]", world.settings).run_id
    with closing(connect_staging(world.urls["control"])) as own, own, own.cursor() as cursor:
        copy_verdicts(cursor, run_id, 3, table(kinds, rows))
    names = "shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, case_kind,"
    found = world.rows(
        "control",
        f"SELECT {names} (extract(epoch FROM next_look_at) * 1000000)::bigint, evidence::text FROM staged_verdict"
        " WHERE run_id = %s AND stage = 3",
        run_id,
    )
    given = [
        (*(row[name] for name in kinds if name != "evidence"), json.loads(str(row["evidence"])))
        for row in rows
    ]
    assert sorted(str((*row[:-1], json.loads(row[-1]))) for row in found) == sorted(map(str, given))
    control.close()
