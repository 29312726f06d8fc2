"""What a person's own login runs by command line, what it is told that it may not, and what its runs leave alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg2 import errors

from backstop.cli.app import run_app
from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.control.speaker import keep_policy
from backstop.model.errors import RunRefused
from backstop.runs.run import add_counts, beat, close_run, open_run
from backstop.runs.scope import name_of
from backstop.schema.migrate import grant
from control_world import ROLES, World, servers, world  # noqa: F401
from triage_world import dead

LOG = "SELECT login, action, subject FROM decision_log ORDER BY entry"
UNTOUCHED = ("run", "duty_lease", "sweep_look", "resend_batch", "proof", "erasure", "decision_log")


@pytest.fixture
def ann(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A connection of a person's own login; everything that reads connections is given hers."""
    for database, role in ROLES.items():
        grant(world.postgres.admin_dsn(database), role)
    password = world.postgres.create_role("ann")
    world.run("control", "GRANT backstop_person TO ann")
    world.control("TRUNCATE decision_log, decision_checkpoint")
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}",
            world.postgres.dsn("ann", password, database),
        )
    # As a duty's run keeps it.
    keep_policy(world.conn, world.settings)
    connection = connect(world.settings, Connections())
    yield connection
    connection.close()


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of a command, and everything that it said."""
    capfd.readouterr()
    code = run_app(list(arguments))
    said = capfd.readouterr()
    return code, said.out + said.err


def test_a_person_sees_what_duties_would_do_and_changes_nothing(
    world: World, ann: Any, capfd: Any
) -> None:
    world.stub("m")
    world.log("ended", "billing", state="CONSUMING")
    world.run(
        "consumer_billing", "UPDATE consumer_log SET lease_expires_at = now() - interval '1 hour'"
    )
    world.control("""
        INSERT INTO watch_finding (rule, severity, title, body, over_at)
        VALUES ('backlog_age', 'warning', 't', 'b', now() - interval '9 years')""")
    dead(world, "d", "poison")
    for arguments, said in (
        (("sweep", "--dry-run"), '"due":1'),
        (("retention", "--dry-run"), '"watch_finding":1'),
        (("triage", "--dry-run"), "would ask a person"),
        (("resend", "--dry-run"), "counts"),
    ):
        code, text = told(capfd, "run", *arguments, "--json")
        assert code == 0 and said in text.replace(": ", ":").replace("would:", "would "), (
            arguments,
            text,
        )
    assert world.control(
        "SELECT duty, scope, state, dry_run, opened_by FROM run WHERE opened_by = 'ann' ORDER BY run_id"
    ) == [(duty, "*", "done", True, "ann") for duty in ("sweep", "retention", "triage", "resend")]
    ((newest,),) = world.control("SELECT max(run_id) FROM run")
    assert "by the login ann, ended" in told(capfd, "runs", "show", str(newest))[1]
    for table in ("duty_lease", "sweep_look", "sweep_place", "resend_request", "decision_log"):
        assert world.control(f"SELECT * FROM {table}") == [], table
    assert world.control("SELECT count(*) FROM watch_finding") == [(1,)]


REFUSED = (
    (("run", "reconcile"), "backstop where"),
    (("run", "reconcile", "--dry-run"), "backstop where"),
    (("run", "reconcile", "--topic", "orders"), "backstop where"),
    (("run", "resend"), "--ids"),
    (("run", "resend", "--topic", "orders"), "--ids"),
    (("run", "sweep"), "--dry-run"),
    (("run", "sweep", "--group", "billing"), "--dry-run"),
    (("run", "triage"), "--dry-run"),
    (("run", "triage", "--topic", "orders"), "--dry-run"),
    (("run", "retention", "--now"), "--dry-run"),
    (("run", "audit"), "the scheduled duty"),
    (("run", "watch"), "the scheduled duty"),
    (("alerts", "deliver"), "the scheduled duty"),
    (("prove", "orders", "--from", "2026-11-01T00:00Z", "--to", "2026-11-02T00:00Z"), "DAG prove"),
    (("erase", "--topic", "orders", "--id", "gone", "--why", "w"), "--by ann"),
)


def test_what_the_duties_alone_may_do_is_refused_in_a_sentence_before_anything_is_touched(
    world: World, ann: Any, capfd: Any
) -> None:
    world.stub("m")
    world.stub("gone", status="voided")
    world.control("""
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, route)
        VALUES ('shop_a', 'orders', 'm', 1, 'r', 'reconcile', 'topic')""")
    before = world.control("SELECT xmin, * FROM resend_request")
    seen = {table: world.control(f"SELECT count(*) FROM {table}") for table in UNTOUCHED}
    for arguments, instead in REFUSED:
        code, said = told(capfd, *arguments)
        assert code == 2 and "The login ann does not" in said and instead in said, said
        assert "unexpected" not in said and "unaffected" in said
        assert {
            table: world.control(f"SELECT count(*) FROM {table}") for table in UNTOUCHED
        } == seen, arguments
    assert world.control("SELECT xmin, * FROM resend_request") == before


def test_a_privilege_that_is_missing_is_said_in_a_sentence(
    world: World, ann: Any, capfd: Any
) -> None:
    world.control("REVOKE SELECT ON case_file FROM backstop_person")
    code, said = told(capfd, "cases", "list")
    assert (
        code == 2
        and "This login may not do that: permission denied for table case_file." in said
        and "unexpected" not in said
    )


def test_a_dry_run_keeps_no_duty_waiting(world: World, ann: Any) -> None:
    for by, dry in ((ann, True), (world.conn, False)):
        open_run(by, "sweep", "*", world.settings, dry_run=dry)
    with pytest.raises(RunRefused, match=r"Another sweep \(dry run\) over everything"):
        open_run(world.conn, "sweep", "*", world.settings, dry_run=True)
    with pytest.raises(RunRefused, match="Another sweep over everything"):
        open_run(world.conn, "sweep", "*", world.settings)
    assert world.control("SELECT duty, dry_run, opened_by FROM run ORDER BY run_id") == [
        ("sweep", True, "ann"),
        ("sweep", False, world.control("SELECT session_user::text")[0][0]),
    ]
    # One that died is taken over by the next dry run, and abandoned by the next run of any kind.
    world.control("UPDATE duty_lease SET heartbeat_at = now() - interval '3 min'")
    world.control("UPDATE run SET heartbeat_at = now() - interval '3 min'")
    open_run(world.conn, "sweep", "*", world.settings)
    assert world.control("SELECT state FROM run ORDER BY run_id") == [
        ("abandoned",),
        ("abandoned",),
        ("running",),
    ]
    assert world.control("SELECT duty, scope FROM duty_lease") == [("sweep", "*")]


def test_by_sql_a_person_holds_no_lease_of_a_duty_and_none_into_the_future(
    world: World, ann: Any
) -> None:
    run = open_run(ann, "sweep", "*", world.settings, dry_run=True)
    with ann, ann.cursor() as cursor:
        cursor.execute("UPDATE duty_lease SET heartbeat_at = clock_timestamp() + interval '59 s'")
    assert world.control("SELECT heartbeat_at <= clock_timestamp() FROM duty_lease") == [(True,)]
    for statement in (
        "UPDATE duty_lease SET duty = 'sweep'",
        "UPDATE duty_lease SET scope = 'x'",
        "INSERT INTO duty_lease (duty, scope, token, run_id) SELECT duty, scope, token, run_id FROM run",
    ):
        with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(statement)
    # Its own it keeps, adds to and ends.
    beat(ann, run)
    add_counts(ann, run, {"due": 1})
    close_run(ann, run, "done", {})
    assert world.control("SELECT state, counts FROM run") == [("done", {"due": 1})]


@pytest.mark.parametrize("opener", ["duties", "bob"])
def test_a_run_of_some_topics_is_whose_login_opened_it(world: World, ann: Any, opener: str) -> None:
    run = open_run(world.conn, "resend", name_of(["orders"]), world.settings)
    if opener == "bob":
        world.control("UPDATE run SET opened_by = 'bob'")
    for statement in (
        "UPDATE duty_lease SET token = gen_random_uuid()",
        "UPDATE duty_lease SET heartbeat_at = '-infinity'",
        "DELETE FROM duty_lease",
        "UPDATE run SET state = 'done', finished_at = now()",
        "UPDATE run SET heartbeat_at = '-infinity'",
        "UPDATE run SET counts = '{\"sent\": 7}'",
        "UPDATE run SET error = 'x'",
        "UPDATE run SET only_ids = '{}'",
    ):
        with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(statement)
    beat(world.conn, run)
    close_run(world.conn, run, "done", {"sent": 1})
    assert world.control("SELECT state, counts, error FROM run") == [("done", {"sent": 1}, None)]
    # Nor when it has ended.
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute("UPDATE run SET counts = '{}'")


def test_no_run_of_a_person_breaks_what_everybody_reads(world: World, ann: Any, capfd: Any) -> None:
    run = open_run(ann, "sweep", "*", world.settings, dry_run=True)
    run.phase.begin("count what is due")
    beat(ann, run)
    assert world.control(
        "SELECT phase, phase_at BETWEEN started_at AND clock_timestamp() FROM run"
    ) == [("count what is due", True)]
    for column, value in (
        ("counts", "5"),
        ("counts", "[]"),
        ("counts", '{"due": "many"}'),
        ("counts", '{"due": 1e300}'),
        ("counts", '{"due": 0.5}'),
        ("phases", "5"),
        ("phases", '{"judge": [1]}'),
        ("phase", ""),
        ("phase", "x" * 101),
        ("phase_done", "-1"),
        ("phase_at", "infinity"),
    ):
        refused = (errors.InsufficientPrivilege, errors.CheckViolation)
        with pytest.raises(refused), ann, ann.cursor() as cursor:
            cursor.execute(f"UPDATE run SET {column} = %s", (value,))
    with ann, ann.cursor() as cursor:
        cursor.execute(
            "UPDATE run SET state = 'done', finished_at = 'infinity', heartbeat_at = 'infinity'"
        )
    assert world.control(
        "SELECT finished_at <= clock_timestamp(), heartbeat_at <= clock_timestamp() FROM run"
    ) == [(True, True)]
    code, said = told(capfd, "runs", "list", "--json")
    assert code == 0 and json.loads(said), said


def test_a_run_lives_although_its_login_may_not_write_its_phase(world: World, ann: Any) -> None:
    """As a person's does until the grants of this revision are applied."""
    run = open_run(ann, "sweep", "*", world.settings, dry_run=True)
    world.control("REVOKE UPDATE (phase) ON run FROM backstop_person")
    heard = "SELECT r.heartbeat_at, l.heartbeat_at FROM run r JOIN duty_lease l USING (run_id)"
    try:
        ((before, held),) = world.control(heard)
        run.phase.begin("count what is due")
        with pytest.raises(errors.InsufficientPrivilege):
            beat(ann, run)
        ((after, still_held),) = world.control(heard)
        assert after > before and still_held > held
    finally:
        world.control("GRANT UPDATE (phase) ON run TO backstop_person")
    beat(ann, run)
    assert world.control("SELECT phase FROM run") == [("count what is due",)]


def test_nobody_writes_counts_that_are_no_object(world: World) -> None:
    open_run(world.conn, "sweep", "*", world.settings)
    for column in ("counts", "phases"):
        with pytest.raises(errors.CheckViolation):
            world.control(f"UPDATE run SET {column} = '5'")


def test_a_persons_dead_run_is_abandoned_by_another_person(world: World, ann: Any) -> None:
    open_run(world.conn, "resend", name_of(["orders"]), world.settings)
    dead_since = "UPDATE {} SET heartbeat_at = now() - interval '3 min'"
    world.control(dead_since.format("run"))
    ended = "UPDATE run SET state = 'abandoned', finished_at = now(){} WHERE opened_by <> 'ann'"
    # Whoever holds its lease may be silent where people look alone.
    for statement in (ended.format(""), ended.format(", counts = '{\"sent\": 7}'")):
        with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(statement)
    world.control(dead_since.format("duty_lease"))
    run = open_run(ann, "resend", name_of(["orders"]), world.settings)
    assert world.control("SELECT state FROM run ORDER BY run_id") == [("abandoned",), ("running",)]
    assert (
        world.control("SELECT run_id FROM duty_lease") == [(run.run_id,)]
        and world.control(LOG) == []
    )


def test_the_pages_login_reads_no_table_and_no_column_that_nobody_named(world: World) -> None:
    world.control(
        "CREATE TABLE told_in_confidence (word text); GRANT ALL ON told_in_confidence TO backstop_duty"
    )
    world.control("ALTER TABLE dead_letter ADD COLUMN opened_text text")
    grant(world.postgres.admin_dsn("control"), "control")
    reads = "SELECT has_column_privilege('backstop_reader', %s, %s, 'SELECT')"
    for table, column, may in (
        ("told_in_confidence", "word", False),
        ("dead_letter", "opened_text", False),
        ("dead_letter", "state", True),
        ("run", "opened_by", True),
        ("dead_letter", "content", False),
    ):
        assert world.control(reads, (table, column)) == [(may,)], (table, column)
    world.control("DROP TABLE told_in_confidence; ALTER TABLE dead_letter DROP COLUMN opened_text")
