"""A duty's run on a real control database: one at a time for a scope, taken over when dead, and fenced after that."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from backstop.airflow.control_room import log_errors
from backstop.cli import context
from backstop.cli.app import run_app
from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.evidence.sources import Sources, guarded
from backstop.model.errors import (
    AuditFailed,
    BackstopError,
    BrokerUnavailable,
    ConfigurationError,
    RunLost,
    RunRefused,
    StoreUnavailable,
)
from backstop.model.records import Counts
from backstop.runs.duty import Check, Duty, Step, Work, walk_duty
from backstop.runs.run import (
    Run,
    beat,
    begin_stage,
    close_run,
    find,
    finish_stage,
    hold,
    keep_alive,
    open_run,
)
from backstop.schema.revisions import head
from backstop.spark.watch_parent import EXIT_CODE
from backstop.sql.named import load as load_sql
from backstop_lab.servers.postgres import Postgres
from quick_postgres import new_database

PROJECT = Path(__file__).resolve().parents[2]
SHORT = timedelta(milliseconds=300)
LONG = timedelta(minutes=2)
CONTENT = "IBAN " + 4 * "3704 "  # a traceback quotes the source, too


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load(PROJECT / "backstop.yaml")


@pytest.fixture
def open_connection(
    postgres: Postgres,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[], Any]]:
    """Opens connections to a control database of this test's own."""
    name = f"control_{abs(hash(request.node.name)) % 10**8}"
    url = new_database(postgres, name, "control")
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", url)
    opened: list[Any] = []

    def open_one() -> Any:
        opened.append(connect(settings, Connections()))
        return opened[-1]

    yield open_one
    for conn in opened:
        conn.close()


@pytest.fixture
def conn(open_connection: Callable[[], Any]) -> Any:
    return open_connection()


def rows(conn: Any, query: str) -> list[tuple[Any, ...]]:
    with conn, conn.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def silent_for(conn: Any, run: Run) -> float:
    return float(
        rows(
            conn,
            f"SELECT extract(epoch FROM clock_timestamp() - heartbeat_at) FROM duty_lease WHERE run_id = {run.run_id}",
        )[0][0]
    )


def test_a_run_knows_the_control_databases_clock_and_is_stored_with_its_versions(
    conn: Any, settings: Settings
) -> None:
    before = rows(conn, "SELECT clock_timestamp()")[0][0]
    run = open_run(conn, "reconcile", "*", settings)
    after = rows(conn, "SELECT clock_timestamp()")[0][0]
    assert before <= run.as_of <= after
    assert run.as_of.tzinfo is not None
    stored = rows(
        conn, "SELECT run_id, token::text, as_of, state, policy_version, dry_run FROM run"
    )
    assert stored == [(run.run_id, run.token, run.as_of, "running", settings.version, False)]


def test_a_second_run_of_one_scope_is_refused_while_the_holder_lives(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    first = open_run(conn, "reconcile", "*", settings)
    other = open_connection()
    with pytest.raises(RunRefused) as refused:
        open_run(other, "reconcile", "*", settings, dead_after=LONG)
    assert f"run {first.run_id}" in refused.value.what
    assert refused.value.exit_code == 4
    assert rows(conn, "SELECT count(*) FROM run") == [(1,)]
    assert open_run(other, "resend", "*", settings).run_id != first.run_id
    assert open_run(other, "reconcile", "orders", settings).run_id != first.run_id


def test_of_many_runs_that_begin_at_once_exactly_one_gets_the_duty(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    connections = [open_connection() for _ in range(8)]
    start, got = threading.Barrier(8), []

    def try_one(own: Any) -> None:
        start.wait()
        try:
            got.append(open_run(own, "reconcile", "*", settings))
        except RunRefused:
            got.append(None)

    threads = [threading.Thread(target=try_one, args=(own,)) for own in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len([run for run in got if run is not None]) == 1
    assert rows(conn, "SELECT count(*) FROM run") == [(1,)]
    assert rows(conn, "SELECT count(*) FROM duty_lease") == [(1,)]


def test_a_dead_run_is_taken_over_and_its_later_writes_raise_run_lost(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    dead = open_run(conn, "reconcile", "*", settings)
    wait_for(lambda: silent_for(conn, dead) > SHORT.total_seconds())
    other = open_connection()
    heir = open_run(other, "reconcile", "*", settings, dead_after=SHORT)
    assert rows(
        other, f"SELECT state, finished_at IS NOT NULL FROM run WHERE run_id = {dead.run_id}"
    ) == [("abandoned", True)]
    for late in (
        lambda: beat(conn, dead),
        lambda: begin_stage(conn, dead),
        lambda: find(conn, dead.run_id, dead.token),
        lambda: close_run(conn, dead, "done", Counts(judged=1)),
    ):
        with pytest.raises(RunLost):
            late()
    with pytest.raises(RunLost), conn, conn.cursor() as cursor:
        hold(cursor, dead)
        cursor.execute(
            "INSERT INTO pause (topic, paused_by, why) VALUES ('late', 'zombie', 'too late')"
        )
    assert rows(conn, "SELECT * FROM pause") == []
    assert rows(conn, f"SELECT counts, stage FROM run WHERE run_id = {dead.run_id}") == [({}, 0)]
    close_run(other, heir, "done", Counts(judged=2))
    assert rows(conn, f"SELECT state, counts FROM run WHERE run_id = {heir.run_id}") == [
        ("done", {"judged": 2})
    ]


def test_a_lost_run_that_ends_as_failed_leaves_what_its_heir_wrote(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    dead = open_run(conn, "reconcile", "*", settings)
    heir = open_run(open_connection(), "reconcile", "*", settings, dead_after=timedelta(0))
    close_run(conn, dead, "failed", Counts(), error="late")
    state = rows(conn, f"SELECT state, error FROM run WHERE run_id = {dead.run_id}")[0]
    assert state[0] == "abandoned"
    assert f"run {heir.run_id}" in state[1]
    assert rows(conn, "SELECT run_id FROM duty_lease") == [(heir.run_id,)]


def test_a_take_over_waits_until_a_transaction_that_holds_the_run_has_ended(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    dead = open_run(conn, "reconcile", "*", settings)
    other, watcher, heirs = open_connection(), open_connection(), []
    cursor = conn.cursor()
    hold(cursor, dead)
    taking = threading.Thread(
        target=lambda: heirs.append(
            open_run(other, "reconcile", "*", settings, dead_after=timedelta(0))
        )
    )
    taking.start()
    wait_for(lambda: rows(watcher, "SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)])
    cursor.execute("INSERT INTO pause (topic, paused_by, why) VALUES ('orders', 'run', 'in time')")
    assert heirs == []
    conn.commit()
    taking.join(timeout=60)
    assert len(heirs) == 1
    assert rows(watcher, "SELECT topic FROM pause") == [("orders",)]


def test_workers_of_one_run_hold_it_at_once_and_do_not_stop_its_heartbeat(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "resend", "*", settings)
    first, second, third = open_connection(), open_connection(), open_connection()
    with third, third.cursor() as cursor:
        cursor.execute("SET lock_timeout = '500ms'")
    heartbeat = "SELECT heartbeat_at FROM duty_lease"
    before = rows(third, heartbeat)
    with first.cursor() as one, second.cursor() as two:
        hold(one, run)
        hold(two, run)
        beat(third, run)
    assert rows(third, heartbeat) > before
    first.rollback()
    second.rollback()


def test_keep_alive_beats_so_that_a_living_run_is_never_taken_over(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    other = open_connection()
    with keep_alive(open_connection, run, every=timedelta(milliseconds=50)) as lost:
        for _ in range(3):  # silent for longer than a living run may be, until its next heartbeat
            aged = (
                "UPDATE duty_lease SET heartbeat_at = heartbeat_at - interval '1 hour' RETURNING 1"
            )
            assert rows(other, aged) == [(1,)]
            wait_for(lambda: silent_for(other, run) < LONG.total_seconds())
            with pytest.raises(RunRefused):
                open_run(other, "reconcile", "*", settings, dead_after=LONG)
        assert not lost.is_set()
    close_run(conn, run, "done", Counts())


def test_keep_alive_tells_a_run_that_it_was_taken_over(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    with keep_alive(open_connection, run, every=timedelta(milliseconds=200)) as lost:
        open_run(open_connection(), "reconcile", "*", settings, dead_after=timedelta(0))
        assert lost.wait(60)


def test_keep_alive_goes_on_after_the_control_database_was_away(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    failures = [StoreUnavailable("away.", unaffected="all.", next_step="wait.")] * 2
    served = []

    def sometimes() -> Any:
        if failures:
            raise failures.pop()
        served.append(open_connection())
        return served[-1]

    with keep_alive(sometimes, run, every=timedelta(milliseconds=30)) as lost:
        wait_for(lambda: bool(served))
        rows(conn, f"SELECT pg_terminate_backend({served[0].info.backend_pid})")
        wait_for(lambda: len(served) > 1)
        wait_for(lambda: silent_for(conn, run) < 0.2)
        assert not lost.is_set()


PHASE = "SELECT phase, phase_done, phase_of FROM run"


def test_the_heartbeat_writes_the_phase_its_progress_and_since_when(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    since = "SELECT phase_at FROM run"
    with keep_alive(open_connection, run, every=timedelta(milliseconds=30)):
        run.phase.begin("read")
        wait_for(lambda: rows(conn, PHASE) == [("read", None, None)])
        began = rows(conn, since)
        run.phase.advance(3, 8)
        wait_for(lambda: rows(conn, PHASE) == [("read", 3, 8)])
        assert rows(conn, since) == began, "it is the same phase"
        run.phase.measure = lambda: (5, 9)
        wait_for(lambda: rows(conn, PHASE) == [("read", 5, 9)])

        def fails() -> None:
            raise OSError("Spark is gone")

        run.phase.measure = fails
        run.phase.begin("judge")
        wait_for(lambda: rows(conn, PHASE) == [("judge", None, None)])
        assert rows(conn, since) > began


def test_a_phase_is_written_at_once_and_not_with_the_next_heartbeat_only(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    with keep_alive(open_connection, run, every=timedelta(hours=1)):
        run.phase.begin("read")
        wait_for(lambda: rows(conn, PHASE) == [("read", None, None)])


def test_a_short_run_needs_no_connection_to_be_kept_alive(conn: Any, settings: Settings) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    opened: list[Any] = []
    with keep_alive(lambda: opened.append(1), run, every=timedelta(hours=1)):
        run.phase.begin("read")
    assert opened == [] and rows(conn, PHASE) == [(None, None, None)]


def test_a_lost_write_of_the_phase_breaks_no_run_and_is_made_up_for(
    conn: Any, open_connection: Callable[[], Any], settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    served: list[Any] = []

    def breaks_once() -> Any:
        served.append(open_connection())
        if len(served) == 1:
            rows(
                open_connection(),
                f"SELECT pg_terminate_backend({served[0].info.backend_pid}, 10000)",
            )
        return served[-1]

    with keep_alive(breaks_once, run, every=timedelta(milliseconds=30)) as lost:
        run.phase.begin("read")
        wait_for(lambda: rows(conn, PHASE) == [("read", None, None)])
        assert len(served) > 1 and not lost.is_set()
    close_run(conn, run, "done", Counts())


def test_a_killed_run_leaves_its_phase_as_it_was_and_a_stale_process_changes_none(
    conn: Any, settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    run.phase.begin("judge")
    beat(conn, run)
    other = open_run(conn, "reconcile", "*", settings, dead_after=timedelta(0))
    run.phase.begin("promote")
    with pytest.raises(RunLost):
        beat(conn, run)
    assert rows(conn, "SELECT state, phase FROM run ORDER BY run_id") == [
        ("abandoned", "judge"),
        ("running", None),
    ]
    close_run(conn, other, "done", Counts())


def test_each_step_and_check_of_a_duty_is_a_phase(
    open_connection: Callable[[], Any], settings: Settings
) -> None:
    seen: list[str | None] = []

    def note(run: Run) -> None:
        phase = run.phase.unwritten()
        seen.append(phase and phase.name)

    def count(work: Work[None]) -> int:
        note(work.run)
        return 1

    def step(work: Work[None]) -> None:
        note(work.run)

    duty = Duty("sweep", (Step("sweep", step), Check("leases_after")), unaffected="u", due=count)
    walk_duty(duty, settings, Connections(), None, check=lambda run, _: note(run))
    assert seen == ["count what is due", "sweep", "check leases_after"]


def test_checks_that_follow_one_another_run_together_and_stop_the_steps_after_them(
    open_connection: Callable[[], Any], settings: Settings
) -> None:
    done: list[Any] = []

    def step(name: str) -> Step[None]:
        return Step(name, lambda work: done.append(name))

    def check(run: Run, suites: Sequence[str]) -> None:
        phase = run.phase.unwritten()
        done.append((tuple(suites), phase and phase.name))
        if "d" in suites:
            raise AuditFailed("d does not hold", unaffected="u", next_step="n")

    steps = (
        step("judge"),
        Check("a", in_dry_run=True),
        Check("b", in_dry_run=True),
        step("promote"),
        Check("c"),
        Check("d", goes_on="always"),
        Check("e"),
        step("last"),
    )
    duty = Duty("sweep", steps, unaffected="u")
    with pytest.raises(AuditFailed, match="d does not hold"):
        walk_duty(duty, settings, Connections(), None, check=check)
    assert done == [
        "judge",
        (("a", "b"), "check a, b"),
        "promote",
        (("c",), "check c"),
        (("d",), "check d"),
        (("e",), "check e"),
        "last",
    ]
    done.clear()
    walk_duty(duty, settings, Connections(), None, check=check, dry_run=True)
    assert done == ["judge", (("a", "b"), "check a, b"), "promote", "last"]


def test_a_copy_of_a_run_in_an_executor_has_a_phase_of_its_own(
    conn: Any, settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    run.phase.begin("judge")
    copy = pickle.loads(pickle.dumps(run))
    assert copy == run and copy.phase.unwritten() is None


def test_closing_a_run_frees_its_scope_and_adds_up_what_its_tasks_counted(
    conn: Any, settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "*", settings)
    assert begin_stage(conn, run) == 1
    assert begin_stage(conn, run) == 2
    with conn, conn.cursor() as cursor:
        finish_stage(cursor, run, 2)
    close_run(conn, run, "incomplete", Counts(judged=3), {"judge": 1.5}, "shop_b did not answer")
    assert rows(conn, "SELECT state, counts, phases, error, stage FROM run") == [
        ("incomplete", {"judged": 3}, {"judge": 1.5}, "shop_b did not answer", 2)
    ]
    assert rows(conn, "SELECT * FROM duty_lease") == []
    assert open_run(conn, "reconcile", "*", settings).run_id > run.run_id
    with pytest.raises(RunLost):
        close_run(conn, run, "done", Counts())


@pytest.mark.parametrize(("said", "shown"), [("\x00", "\\x00"), ("\ud800", "\\ud800")])
def test_whatever_a_broker_said_is_stored_and_the_run_is_closed(
    conn: Any, settings: Settings, said: str, shown: str
) -> None:
    """A remark of RocketMQ and an error of Jolokia are JSON, which can hold what PostgreSQL refuses."""
    with Sources(settings, Connections()) as sources:
        for number, error in enumerate(
            (ValueError(said), BrokerUnavailable(f"It said {said}", unaffected="k", next_step="n"))
        ):
            try:
                with guarded("broker main", BrokerUnavailable):
                    raise error
            except BrokerUnavailable as failure:
                sources.missed(f"broker {number}", failure)
        missed = dict(sources.unreachable)
    run = open_run(conn, "triage", "*", settings)
    with conn, conn.cursor() as cursor:
        for subject, detail in missed.items():
            cursor.execute(
                load_sql("backstop.reconcile", "queries.sql")["stage_read"],
                {
                    "run_id": run.run_id,
                    "stage": 1,
                    "subject": subject,
                    "rows_read": 0,
                    "complete": False,
                    "detail": detail,
                    "lineage": None,
                    "topics": None,
                    "read_at": None,
                },
            )
    assert rows(conn, "SELECT subject, detail FROM staged_read ORDER BY 1") == [
        ("broker 0", f"Broker main failed: ValueError: {shown}."),
        ("broker 1", f"It said {shown}"),
    ]
    close_run(conn, run, "incomplete", Counts(), error=f"It said {said}")
    for end in (
        ValueError(said),
        BrokerUnavailable(f"It said {said}", unaffected=said, next_step=said),
    ):
        run = open_run(conn, "triage", "*", settings)
        close_run(conn, run, "failed", Counts(), error=end)
    assert rows(conn, "SELECT state, error FROM run ORDER BY run_id") == [
        ("incomplete", f"It said {shown}"),
        ("failed", shown),
        ("failed", f"It said {shown} {shown} {shown}"),
    ]
    assert rows(conn, "SELECT * FROM duty_lease") == []


def test_a_spark_job_finds_the_run_it_was_given_only_with_its_token(
    conn: Any, settings: Settings
) -> None:
    run = open_run(conn, "reconcile", "orders", settings, dry_run=True)
    assert find(conn, run.run_id, run.token) == run
    with pytest.raises(RunLost):
        find(conn, run.run_id, "00000000-0000-0000-0000-000000000000")
    close_run(conn, run, "done", Counts())
    with pytest.raises(RunLost):
        find(conn, run.run_id, run.token)


def test_a_control_database_that_is_away_is_said_in_three_parts_without_its_password(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (
        "postgresql://me:s3cr3t-word@127.0.0.1:1/control",
        "postgresql://me:s3cr3t-word@[::1:x/control",
    ):
        monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", url)
        with pytest.raises(Exception) as away:
            connect(settings, Connections(), connect_timeout=2)
        assert type(away.value).__name__ in ("StoreUnavailable", "ConfigurationError")
        assert "s3cr3t-word" not in str(away.value)
        assert "backstop_control" in str(away.value)


DRIVER = """
    import os, sys, threading
    from backstop.spark.watch_parent import watch_parent
    watch_parent(2)
    open(sys.argv[1], "w").write(str(os.getpid()))
    threading.Event().wait()
"""
MIDDLE = """
    import subprocess, sys
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""
TASK = """
    import subprocess, sys
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2], sys.argv[3]])
"""


@pytest.mark.parametrize("generation", [0, 1])
def test_a_driver_ends_itself_when_its_parent_or_the_task_above_it_is_killed(
    generation: int, tmp_path: Path
) -> None:
    """Task -> middle (as Java under spark-submit) -> driver; killing either of the two above ends the driver."""
    marker = tmp_path / "driver"
    code = [textwrap.dedent(text) for text in (TASK, MIDDLE, DRIVER)]
    task = subprocess.Popen(
        [sys.executable, "-c", code[0], code[1], code[2], str(marker)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "include")},
    )
    try:
        wait_for(lambda: marker.exists() and marker.read_text() != "")
        driver = int(marker.read_text())
        middle = int(Path(f"/proc/{driver}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill([task.pid, middle][generation], 9)
        wait_for(lambda: not is_running(driver))
    finally:
        task.kill()
        task.wait()
    assert EXIT_CODE == 70


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_is_not_opened_on_an_older_schema_and_goes_on_with_a_newer_one(
    open_connection: Callable[[], Any], settings: Settings
) -> None:
    connection = open_connection()

    def at(revision: str) -> None:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS backstop_control_version (version_num varchar(32))"
            )
            cursor.execute("DELETE FROM backstop_control_version")
            cursor.execute("INSERT INTO backstop_control_version VALUES (%s)", (revision,))

    at(f"{int(head('control')) - 1:04}")
    with pytest.raises(ConfigurationError, match=r"this program needs \d{4}") as refused:
        open_run(connection, "reconcile", "*", settings)
    assert "backstop migrate" in refused.value.next_step
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM duty_lease)")
        assert cursor.fetchone() == (0,)
    for revision in (head("control"), f"{int(head('control')) + 1:04}"):
        at(revision)
        close_run(connection, open_run(connection, "reconcile", "*", settings), "done", Counts())


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_database_quotes_of_contents_is_in_no_run_no_log_and_no_terminal(
    conn: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: Any, wrapped: bool
) -> None:
    """A refused row stands whole in the DETAIL of the server's error; whoever logs an error logs its causes, too."""
    run = open_run(conn, "triage", "*", settings)

    def fail() -> None:
        try:
            with conn, conn.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO case_note (case_id, written_by, note) VALUES (NULL, 'ann', %s)",
                    [CONTENT],
                )
        except psycopg2.Error as error:
            assert CONTENT in str(error)
            if not wrapped:
                raise
            try:
                raise ValueError("while that was handled")
            except ValueError as other:
                raise StoreUnavailable("It failed.", unaffected="k", next_step="n") from other

    def logged(error: BaseException) -> str:
        return "".join(traceback.format_exception(error))

    try:
        fail()
    except (StoreUnavailable, psycopg2.Error) as error:
        assert CONTENT in logged(error), "this is what would be logged"
        close_run(conn, run, "failed", Counts(), error=error)
        assert CONTENT not in logged(error)
    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT error FROM run")
        ((kept,),) = cursor.fetchall()
    assert CONTENT not in kept and ("null value in column" in kept) is not wrapped
    with pytest.raises((StoreUnavailable, psycopg2.Error)) as caught:
        log_errors(fail)()
    assert CONTENT not in logged(caught.value)

    def app(_: str) -> Callable[..., None]:
        return lambda *_, **__: fail()

    monkeypatch.setattr("backstop.cli.app.make_app", app)
    context.chosen = context.Chosen(debug=True)
    monkeypatch.setattr(context, "Chosen", lambda: context.chosen)
    assert run_app(["check"]) in (1, 3)
    shown = capfd.readouterr()
    assert "Traceback" in shown.err and CONTENT not in shown.out + shown.err


def test_the_password_of_a_refused_login_is_in_no_cause(
    postgres: Postgres, settings: Settings
) -> None:
    for url in (
        f"postgresql://backstop:S3cret-Pw@127.0.0.1:{postgres.port}/postgres",
        "postgresql://x:S3cret-Pw@h:port/db",
    ):
        with pytest.raises(BackstopError) as caught:
            connect(settings, Connections(resolver=lambda _, url=url: url))
        told, error = "", caught.value
        chain: list[BaseException | None] = [error]
        while chain:
            if (one := chain.pop()) is not None:
                told += f"{one!r} {one} {one.__notes__ if hasattr(one, '__notes__') else ''}"
                chain += [one.__cause__, one.__context__]
        assert "S3cret" not in told + "".join(traceback.format_exception(error))
