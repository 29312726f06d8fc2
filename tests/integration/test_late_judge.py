"""An attempt of a judge that begins, or ends, late: what was checked is what is promoted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from backstop.checks.run import given_by, run_suites
from backstop.checks.suites import OF_A_STAGE, SUITES, checks_of, suite_of
from backstop.model.errors import AuditFailed, RunLost
from backstop.reconcile.promote import promote
from backstop.runs.run import Run, begin_stage, close_run, finish_stage, hold, open_run
from backstop.schema.migrate import migrate
from backstop.schema.revisions import revisions, version_table
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from backstop_lab.shop.wait_for import wait_for
from system import System, system

JUDGED = ("stub_contract", "log_contract", "verdicts")


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


@pytest.fixture
def conn(world: System) -> Iterator[Any]:
    with closing(world.control()) as connection:
        yield connection


def opened(world: System, conn: Any, scope: str = "*", **options: Any) -> Run:
    return open_run(conn, "reconcile", scope, world.settings, **options)


def stage(
    world: System, run: Run, number: int, *messages: str, verdict: str = "LOST", count: bool = True
) -> None:
    """What an attempt of the judge stages of these messages: lost for billing, confirmed for shipping."""
    for message_id in messages:
        world.rows(
            "control",
            "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count, deliveries)"
            " VALUES (%s, %s, 'shop_a', 'orders', %s, 'pending', 'pending', 1, 2)",
            run.run_id,
            number,
            message_id,
        )
        world.rows(
            "control",
            "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,"
            " send_count, evidence) VALUES (%s, %s, 'shop_a', 'orders', %s, 'billing', %s, 'passed_over', true, 1,"
            """ '{"refusals": 0, "budget": 5}')""",
            run.run_id,
            number,
            message_id,
            verdict,
        )
    if count:
        for group, found, eligible in (("billing", verdict, 1), ("shipping", "CONFIRMED", 0)):
            world.rows(
                "control",
                "INSERT INTO staged_count VALUES (%s, %s, 'orders', %s, %s, %s, %s, 0)",
                run.run_id,
                number,
                group,
                found,
                len(messages),
                eligible * len(messages),
            )
        world.rows(
            "control",
            "INSERT INTO staged_read (run_id, stage, subject, rows_read, complete) VALUES (%s, %s, 'shard shop_a', %s, true)",
            run.run_id,
            number,
            len(messages),
        )


def whole(conn: Any, run: Run, number: int) -> None:
    with conn, conn.cursor() as cursor:
        hold(cursor, run)
        finish_stage(cursor, run, number)


def check(world: System, run: Run, docs: Path, *suites: str) -> None:
    """As the tasks of a DAG do."""
    run_suites(
        suites or JUDGED,
        world.urls["control"],
        run.run_id,
        None,
        docs,
        **given_by(world.settings),
    )


def promoted(world: System) -> list[tuple[Any, ...]]:
    return world.rows("control", "SELECT message_id FROM verdict ORDER BY 1")


@pytest.mark.parametrize("begins", ["before the check", "after the check"])
def test_what_a_late_attempt_stages_is_not_promoted_in_place_of_what_was_checked(
    world: System, conn: Any, tmp_path: Path, begins: str
) -> None:
    """Airflow gave the first try of `judge` up while its host was frozen, and the second staged everything."""
    run = opened(world, conn)
    number = begin_stage(conn, run)
    world.sent("checked")
    stage(world, run, number, "checked")
    whole(conn, run, number)
    late = begin_stage(conn, run) if begins == "before the check" else None
    if late is not None:
        stage(world, run, late, "late", verdict="GONE", count=False)
    check(world, run, tmp_path)
    if late is None:
        with pytest.raises(RunLost, match="comes too late"):
            begin_stage(conn, run)
    else:
        stage(world, run, late, "later", verdict="GONE", count=False)
        with pytest.raises(RunLost, match="comes too late"):
            whole(conn, run, late)
    promote(world.settings, world.connections, conn, run)
    assert promoted(world) == [("checked",)]
    assert world.rows("control", "SELECT stage FROM run") == [(number,)]


def test_an_attempt_that_ends_after_a_later_one_counts_no_more(world: System, conn: Any) -> None:
    run = opened(world, conn)
    first, second = begin_stage(conn, run), begin_stage(conn, run)
    assert (first, second) == (1, 2)
    assert world.rows("control", "SELECT stage FROM run") == [(0,)], "none is whole yet"
    whole(conn, run, second)
    with pytest.raises(RunLost):
        whole(conn, run, first)
    third = begin_stage(conn, run)
    whole(conn, run, third)
    assert world.rows("control", "SELECT stage FROM run") == [(third,)]


def test_a_check_that_begins_while_an_attempt_ends_checks_that_attempt(
    world: System, conn: Any, tmp_path: Path
) -> None:
    run = opened(world, conn)
    for number, verdict in ((begin_stage(conn, run), "LOST"), (begin_stage(conn, run), "GONE")):
        stage(world, run, number, "m", verdict=verdict)
        if verdict == "LOST":
            whole(conn, run, number)
    with ThreadPoolExecutor(1) as thread:
        with conn, conn.cursor() as cursor:
            hold(cursor, run)
            finish_stage(cursor, run, 2)
            checked = thread.submit(check, world, run, tmp_path)
            wait_for_lock(world)
        with pytest.raises(AuditFailed, match="names_known"):
            checked.result()


def test_an_attempt_that_ends_while_a_check_begins_comes_too_late(world: System, conn: Any) -> None:
    run = opened(world, conn)
    whole(conn, run, begin_stage(conn, run))
    late = begin_stage(conn, run)
    with (
        ThreadPoolExecutor(1) as thread,
        closing(world.control()) as other,
        closing(world.control()) as judging,
    ):
        with other, other.cursor() as cursor:
            cursor.execute("UPDATE run SET stage_checked = true WHERE run_id = %s", (run.run_id,))
            ending = thread.submit(whole, judging, run, late)
            wait_for_lock(world)
        with pytest.raises(RunLost, match="comes too late"):
            ending.result()
    assert world.rows("control", "SELECT stage FROM run") == [(1,)]


def wait_for_lock(world: System) -> None:
    wait_for(
        "somebody waits for the run's row",
        lambda: (
            world.rows(
                "control",
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            == [(1,)]
        ),
        30,
    )


def test_a_stage_that_is_being_written_is_left_by_what_takes_old_ones_away(
    world: System, conn: Any
) -> None:
    judging = opened(world, conn, '["payments"]')
    for _ in range(2):
        stage(world, judging, begin_stage(conn, judging), "m")
    whole(conn, judging, 2)
    writing = begin_stage(conn, judging)
    stage(world, judging, writing, "m", count=False)
    other = opened(world, conn)
    promote(world.settings, world.connections, conn, other)
    for table in ("staged_stub", "staged_verdict"):
        left = world.rows("control", f"SELECT stage FROM {table} ORDER BY 1")
        assert left == [(2,), (writing,)], table
    # Of a run that ended it is kept as evidence for a day, like everything that was staged.
    close_run(conn, judging, "failed", {})
    world.rows("control", "UPDATE run SET finished_at = finished_at - interval '25 h'")
    promote(world.settings, world.connections, conn, other)
    assert world.rows("control", "SELECT * FROM staged_stub") == []


def test_a_failed_check_is_tried_again_on_the_same_stage_alone(
    world: System, conn: Any, tmp_path: Path
) -> None:
    run = opened(world, conn)
    number = begin_stage(conn, run)
    stage(world, run, number, "m", verdict="GONE")
    whole(conn, run, number)
    for _ in range(2):
        with pytest.raises(AuditFailed, match="names_known"):
            check(world, run, tmp_path)
    with pytest.raises(RunLost, match="comes too late"):
        begin_stage(conn, run)
    close_run(conn, run, "failed", {})
    # The next run judges again.
    assert begin_stage(conn, opened(world, conn)) == 1


def test_a_dry_run_stages_and_checks_like_any_other(
    world: System, conn: Any, tmp_path: Path
) -> None:
    run = opened(world, conn, dry_run=True)
    number = begin_stage(conn, run)
    stage(world, run, number, "m")
    whole(conn, run, number)
    check(world, run, tmp_path)
    with pytest.raises(RunLost, match="comes too late"):
        begin_stage(conn, run)


def test_a_run_that_an_earlier_version_had_open_goes_on(servers: tuple[Postgres, Valkey]) -> None:
    """Its judge had numbered its attempts by `stage`; one that it left half done does not count."""
    name = "control_before"
    servers[0].create_database(name)
    url = servers[0].admin_dsn(name)
    with closing(psycopg2.connect(url)) as old, old, old.cursor() as cursor:
        for revision, statements in revisions("control").items():
            if revision < "0054":
                cursor.execute(statements)
        cursor.execute(
            f"CREATE TABLE {version_table('control')} (version_num varchar(32) PRIMARY KEY)"
        )
        cursor.execute(f"INSERT INTO {version_table('control')} VALUES ('0053')")
        proofs = [
            # state of its run, answer, how its check ended, whether people still see it
            ("done", "nothing_lost", None, True),
            ("done", "lost", True, True),
            ("failed", "nothing_lost", False, False),
            ("failed", "nothing_lost", True, True),
            ("incomplete", "nothing_lost", None, False),
            ("incomplete", "incomplete", True, True),
            ("incomplete", "incomplete", None, True),
            ("abandoned", "nothing_lost", None, False),
            ("running", "nothing_lost", None, False),
        ]
        for state, answer, passed, _ in proofs:
            cursor.execute(
                "INSERT INTO run (duty, token, policy_version, code_version, state, finished_at, stage)"
                " VALUES ('prove', gen_random_uuid(), 'p', 'c', %s, CASE WHEN %s <> 'running' THEN now() END, 1)"
                " RETURNING run_id",
                (state, state),
            )
            (run_id,) = cursor.fetchone()
            cursor.execute(
                "INSERT INTO proof (run_id, topic, window_from, window_to, answer, sentence, stubs, owed_stubs, broken,"
                " deliveries, digest) VALUES (%s, 'orders', now() - interval '1 h', now(), %s, 's', '{}', 0, 0, 0, 'd')",
                (run_id, answer),
            )
            if passed is not None:
                cursor.execute(
                    "INSERT INTO data_check (run_id, suite, passed, expectations, failed) VALUES (%s, 'proof', %s, 1, '[]')",
                    (run_id, passed),
                )
        cursor.execute(
            "INSERT INTO duty_lease (duty, scope, token, run_id) SELECT duty, scope, token, run_id FROM run"
            " ORDER BY run_id DESC LIMIT 1 RETURNING run_id, token::text"
        )
        run_id, token = cursor.fetchone()
    assert migrate(url, "control")[0] == "0054"
    with closing(psycopg2.connect(url)) as conn:
        with conn, conn.cursor() as cursor:
            cursor.execute("SELECT published FROM proof ORDER BY run_id")
            assert [one for (one,) in cursor.fetchall()] == [shown for *_, shown in proofs]
            cursor.execute("SELECT as_of FROM run WHERE run_id = %s", (run_id,))
            (as_of,) = cursor.fetchone()
        run = Run(run_id, token, as_of, "prove", "*")
        assert begin_stage(conn, run) == 2
        assert begin_stage(conn, run) == 3
        whole(conn, run, 3)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_that_reads_staged_rows_before_they_are_promoted_keeps_their_stage(
    suite: str,
) -> None:
    texts = [str(check.sql or "") for check in checks_of(suite)]
    texts += [rows.sql for rows in suite_of(suite).rows.values()]
    reads = any("staged_" in text for text in texts)
    assert reads == (suite in OF_A_STAGE or suite == "requests"), (
        "requests looks at what was promoted"
    )


def test_a_check_of_something_else_leaves_the_stage_open(
    world: System, conn: Any, tmp_path: Path
) -> None:
    """Triage checks what was drained while it classifies."""
    run = open_run(conn, "triage", "*", world.settings)
    number = begin_stage(conn, run)
    check(world, run, tmp_path, "dead_letters_drained")
    whole(conn, run, number)
    assert begin_stage(conn, run) == number + 1
