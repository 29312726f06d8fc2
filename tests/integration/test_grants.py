"""Grants converge: after `backstop migrate --grants` each role holds what its privileges.sql says, and no more, whatever an earlier
version or somebody by hand had granted. And what that is: a closed list of all that each role may write."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
import pymysql
import pytest

from backstop.model.errors import StoreUnavailable
from backstop.schema.migrate import grant, grants_sql, migrate
from backstop.schema.revisions import IN_MARIADB, ROLES
from backstop.schema.take_back import objects_of
from backstop_lab.servers.postgres import Postgres
from maria_world import MariaDatabase, maria_database, maria_server
from mariadb import PASSWORD, MariaDB, connect_to

__all__ = ["maria_server"]

Writes = dict[str, dict[str, str]]
"""role -> table -> what it may do there beside SELECT"""

ALL = "DELETE, INSERT, UPDATE"
PRODUCER: Writes = {
    "backstop_app": {
        "message_stub": "INSERT, UPDATE (attempt_requested_by, attempt_token, attempted_at, broker, broker_message_id,"
        " queue_epoch, queue_id, queue_offset, refusals, sent_at, updated_at)",
        "send_attempt": "INSERT",
    },
    "backstop_duty": {
        "message_stub": "DELETE, UPDATE (attempt_deadline, attempt_groups, attempt_requested_by, attempt_token, attempted_at,"
        " broker, broker_message_id, content, content_version, erased_hash, first_broker, first_groups, first_queue_epoch,"
        " first_queue_id, first_queue_offset, first_seen_at, headers, judged_at, max_sends, message_key, next_check_at,"
        " ordering_key, queue_epoch, queue_id, queue_offset, refusals, send_count, sent_at, status, updated_at)",
        "send_attempt": "INSERT, UPDATE (error)",
    },
    "backstop_person": {
        "message_stub": "UPDATE (attempt_groups, attempt_requested_by, attempt_token, attempted_at, content, content_version,"
        " max_sends, next_check_at, status, updated_at)",
        "send_attempt": "INSERT",
    },
}
CONSUMER: Writes = {
    "backstop_consumer": {
        "consumer_log": "INSERT, UPDATE",
        "queue_owner": "INSERT, UPDATE",
        "consumer_books": ALL,
        "downstream_away": ALL,
        "group_member": ALL,
        "parked_key": ALL,
        "parked_message": ALL,
        "parking_full": ALL,
    },
    "backstop_duty": {
        "consumer_log": "DELETE, UPDATE (last_error, lease_expires_at, payload_hash, state, updated_at)",
        "consumer_log_floor": "INSERT, UPDATE",
        "parked_discard": "DELETE, INSERT",
        "parked_key": "DELETE, UPDATE",
        "parked_message": "DELETE, UPDATE",
    },
    "backstop_person": {
        "parked_discard": "DELETE, INSERT",
        "parked_key": "DELETE, UPDATE (answer, answered_at, answered_by, bytes, messages, state, updated_at)",
        "parked_message": "DELETE, UPDATE (content, content_version)",
    },
}
DUTYS_OWN = """
    alert alert_channel alert_delivery alert_message anomaly audit_finding audit_look broker_server case_file case_member case_note
    case_question cause cause_hour data_check dead_letter dead_letter_aside delay_look delivery_decision delivery_hour drain_batch
    drain_mark drained_broker duty_lease erasure incident incident_delivery mapped_attempt mapped_log_proof mapped_look mapped_stub
    message_version no_taker open_delivery owed_since pause people_policy progress progress_history proof proof_count proposal
    quarantine queue_epoch resend_batch resend_request retry_place run staged_count staged_letter staged_part staged_read staged_stub
    staged_verdict sweep_count sweep_look sweep_place sweep_sample tally topic_broker total verdict verdict_count watch_consumer
    watch_finding watch_group watch_owner watch_queue watch_shard watch_topic watermark withdrawal
"""
CONTROL: Writes = {
    # Not decision_log and decision_checkpoint, nor the version of the schema.
    "backstop_duty": {**dict.fromkeys(DUTYS_OWN.split(), ALL), "decision_seen": "INSERT"},
    "backstop_person": {
        "alert": "INSERT (body, case_id, dedup_key, severity, title)",
        "case_file": "INSERT (consumer_group, evidence, kind, opened_by_run, severity, subject, summary, topic),"
        " UPDATE (closed_at, decided_at, decided_by, decision, evidence, intention, last_seen_at, opened_at, reopened, severity,"
        " state, summary, why)",
        "case_member": "DELETE, INSERT (case_id, consumer_group, message_id, shard, topic), UPDATE (added_at, settled_at)",
        "case_note": "INSERT (case_id, note, written_by)",
        "dead_letter": "UPDATE (barred, case_id, closed_at, decided_at, decided_by, decision, left_in_case, look_at, proof, reason,"
        " send_number, shard, state)",
        "delivery_decision": "INSERT (case_id, consumer_group, decided_by, decision, message_id, topic, why)",
        "drained_broker": "INSERT (broker, case_id, stated_by, topic, why)",
        "duty_lease": ALL,
        "incident": "INSERT (planned_by, run_id, wanted, why),"
        " UPDATE (approved_at, approved_by, left_out, paced_until, too_wide, whole)",
        "incident_delivery": "INSERT (consumer_group, letters, message_id, place, reason, route, run_id, seen, send_number, shard,"
        " topic), UPDATE (asked_at, left_out, letters, seen)",
        "message_version": "INSERT (case_id, content, content_version, message_id, shard, topic, why, written_by),"
        " UPDATE (carried_out, case_id, content, shard, why, written_at, written_by)",
        "pause": "DELETE, INSERT (paused_by, topic, why)",
        "proposal": "INSERT (action, case_id, content, options, who, why), UPDATE (content, ended_at, ended_by, how)",
        "queue_epoch": "UPDATE (accepted)",
        "resend_batch": "UPDATE (ended_at, pardoned, state)",
        "resend_request": "INSERT (groups, held, message_id, reason, requested_by, route, run_id, send_number, shard, topic),"
        " UPDATE (asked_by, batch_id, closed_by_run, created_at, error, given_up_by, given_up_groups, groups, held, not_before, reason,"
        " requested_by, route, run_id, shard, state, step, updated_at)",
        "run": "INSERT (code_version, dry_run, duty, no_send, policy_version, scope, token),"
        " UPDATE (counts, error, finished_at, heartbeat_at, only_ids, phase, phase_done, phase_of, phases, state)",
        "withdrawal": "DELETE, INSERT (applied_at, case_id, decided_by, message_id, shard, topic, why),"
        " UPDATE (applied_at, begun_at, case_id, decided_by, why)",
    },
}
WRITES = {"producer": PRODUCER, "consumer": CONSUMER, "control": CONTROL}
MARIADB_WRITES: dict[str, Writes] = {
    "producer": PRODUCER,
    "consumer": {
        "backstop_consumer": {"consumer_log": "INSERT, UPDATE", "consumer_books": ALL},
        "backstop_duty": {
            "consumer_log": "DELETE, UPDATE (last_error, lease_expires_at, payload_hash, state, updated_at)",
            "consumer_log_floor": "INSERT, UPDATE",
        },
    },
}
"""Stubs are the same in both; nothing is parked in MariaDB, so a person writes nothing in a consumer's database there."""

EXTRA = {
    "producer": """
        GRANT UPDATE (status), DELETE, TRUNCATE ON message_stub TO backstop_app;
        GRANT UPDATE ON send_attempt TO backstop_app WITH GRANT OPTION;
        GRANT SELECT ON message_stub TO backstop_reader;
        GRANT INSERT, TRIGGER, REFERENCES ON message_stub TO backstop_person;
        GRANT UPDATE (version_num) ON backstop_producer_version TO backstop_duty""",
    "consumer": """
        GRANT UPDATE (consumed_at), DELETE ON consumer_log TO backstop_person;
        GRANT DELETE, UPDATE ON consumer_log_floor TO backstop_consumer;
        GRANT UPDATE ON parked_message TO backstop_person;
        GRANT USAGE, UPDATE ON SEQUENCE parked_message_number_seq TO backstop_consumer;
        GRANT INSERT ON consumer_log TO backstop_app""",
    # The first three lines stood in privileges.sql. Nothing took run's and incident's away when they went: a person could make a dry run
    # of theirs the duties' last success, and write what somebody had answered in Airflow.
    "control": """
        GRANT INSERT, UPDATE ON run, case_file, withdrawal, message_version TO backstop_person;
        GRANT INSERT ON incident, incident_delivery, delivery_decision, pause, drained_broker, alert, case_note, resend_request,
            resend_batch, owed_since, proposal TO backstop_person;
        GRANT INSERT, UPDATE, DELETE ON case_member TO backstop_person;
        GRANT UPDATE (hash), DELETE ON decision_log TO backstop_duty;
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO backstop_reader;
        GRANT EXECUTE ON FUNCTION forget_decisions(timestamptz), tally_requests() TO backstop_person;
        GRANT USAGE ON SEQUENCE run_run_id_seq TO backstop_person;
        GRANT UPDATE ON stopped_topic TO backstop_duty;
        GRANT CREATE ON SCHEMA public TO backstop_person""",
}
THEIRS = """
    CREATE TABLE parcel (parcel_id integer GENERATED ALWAYS AS IDENTITY, weight integer);
    CREATE FUNCTION weigh() RETURNS integer LANGUAGE sql AS 'SELECT 1';
    REVOKE EXECUTE ON FUNCTION weigh() FROM PUBLIC;
    GRANT ALL ON parcel TO backstop_duty;
    GRANT UPDATE (weight) ON parcel TO backstop_person;
    GRANT USAGE ON SEQUENCE parcel_parcel_id_seq TO backstop_duty;
    GRANT EXECUTE ON FUNCTION weigh() TO backstop_duty"""
"""Another program's, in the same schema."""

_HELD = """
SELECT 'relation', c.relname::text, NULL::text, a.grantee, a.privilege_type, a.is_grantable
FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
WHERE c.relnamespace = 'public'::regnamespace AND a.grantee <> c.relowner
UNION ALL
SELECT 'relation', c.relname, t.attname, a.grantee, a.privilege_type, a.is_grantable
FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid CROSS JOIN LATERAL aclexplode(t.attacl) a
WHERE c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'function', p.oid::regprocedure::text, NULL, a.grantee, a.privilege_type, a.is_grantable
FROM pg_proc p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
WHERE p.pronamespace = 'public'::regnamespace AND a.grantee <> p.proowner
UNION ALL
SELECT 'schema', NULL, NULL, a.grantee, a.privilege_type, a.is_grantable
FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a
WHERE n.nspname = 'public' AND a.grantee <> n.nspowner
UNION ALL
SELECT 'database', NULL, NULL, a.grantee, a.privilege_type, a.is_grantable
FROM pg_database d CROSS JOIN LATERAL aclexplode(d.datacl) a
WHERE d.datname = current_database() AND a.grantee <> d.datdba
UNION ALL
SELECT 'default', d.defaclobjtype::text, NULL, a.grantee, a.privilege_type, a.is_grantable
FROM pg_default_acl d CROSS JOIN LATERAL aclexplode(d.defaclacl) a"""
Held = tuple[str, str | None, str | None, str, str, bool]
"""kind of object, its name, column, role, privilege, whether the role may hand it on"""


def run(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def held(url: str) -> set[Held]:
    """All that anybody but an owner holds in a database."""
    query = f"SELECT h.*, coalesce(r.rolname, 'PUBLIC') FROM ({_HELD}) h (kind, object, part, grantee, privilege, hands_on)"
    found = run(url, f"{query} LEFT JOIN pg_roles r ON r.oid = h.grantee")
    return {(kind, name, part, role, may, on) for kind, name, part, _, may, on, role in found}


def writes(found: set[tuple[str, str, str | None, str]]) -> Writes:
    """(role, table, column, privilege), without SELECT, as the lists above write it."""
    parts: dict[str, dict[str, dict[str, set[str | None]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(set))
    )
    for role, table, column, privilege in found:
        if privilege != "SELECT":
            parts[role][table][privilege].add(column)
    return {
        role: {
            table: ", ".join(
                name if None in columns else f"{name} ({', '.join(sorted(map(str, columns)))})"
                for name, columns in sorted(privileges.items())
            )
            for table, privileges in tables.items()
        }
        for role, tables in parts.items()
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """With a new database for each kind, named after it, in which the grants were applied once."""
    with Postgres(tmp_path_factory.mktemp("pg")) as running:
        for role in ROLES:
            prepared(running, role, role)
        run(running.admin_dsn(), "CREATE ROLE somebody")
        yield running


def prepared(server: Postgres, name: str, role: str) -> str:
    server.create_database(name)
    url = server.admin_dsn(name)
    migrate(url, role)
    grant(url, role)
    return url


@contextmanager
def upgraded(server: Postgres, role: str) -> Iterator[str]:
    """A database whose roles hold more than the grants say; dropped at the end."""
    url = prepared(server, f"upgraded_{role}", role)
    try:
        run(url, EXTRA[role])
        yield url
    finally:
        run_alone(server.admin_dsn(), f"DROP DATABASE upgraded_{role}")


def run_alone(url: str, statement: str) -> None:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(statement)


def by_program(url: str, role: str) -> None:
    grant(url, role)


def by_dba(url: str, role: str) -> None:
    run_alone(url, grants_sql(role))


@pytest.mark.parametrize("grants", [by_program, by_dba])
@pytest.mark.parametrize("role", ROLES)
def test_an_upgraded_database_gives_its_roles_what_a_new_one_gives_them(
    server: Postgres, role: str, grants: Callable[[str, str], None]
) -> None:
    new = held(server.admin_dsn(role))
    with upgraded(server, role) as url:
        more = held(url) - new
        assert len(more) > 5 and new <= held(url)
        grants(url, role)
        assert held(url) == new


@pytest.mark.parametrize("role", ROLES)
def test_grants_leave_what_is_not_backstops(server: Postgres, role: str) -> None:
    with upgraded(server, role) as url:
        mine = objects_of(role, role)["TABLE"][-1]
        run(url, f"{THEIRS}; GRANT SELECT, DELETE ON {mine} TO somebody")
        theirs = {
            one
            for one in held(url)
            if one[3] == "somebody" or (one[1] or "").startswith(("parcel", "weigh"))
        }
        assert len(theirs) > 10
        grant(url, role)
        assert held(url) - held(server.admin_dsn(role)) == theirs


@pytest.mark.parametrize("role", ROLES)
def test_nobody_meets_a_role_without_its_rights_while_they_are_granted_again(
    server: Postgres, role: str
) -> None:
    password = server.create_role("at_work")
    run(server.admin_dsn(), "GRANT backstop_duty TO at_work")
    table = {"producer": "message_stub", "consumer": "consumer_log", "control": "run"}[role]
    done, worked = threading.Event(), threading.Event()
    refused: list[str] = []

    def work() -> None:
        with closing(psycopg2.connect(server.dsn("at_work", password, role))) as connection:
            connection.autocommit = True
            while not done.is_set():
                try:
                    with connection.cursor() as cursor:
                        cursor.execute(f"SELECT 1 FROM {table} LIMIT 1 FOR UPDATE")
                except psycopg2.Error as error:
                    refused.append(str(error))
                worked.set()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(5):
            worked.clear()
            grant(server.admin_dsn(role), role)
            assert worked.wait(30)
    finally:
        done.set()
        worker.join()
    assert refused == []


@pytest.mark.parametrize("role", ROLES)
def test_grants_that_fail_midway_take_nothing_back(server: Postgres, role: str) -> None:
    last = {"producer": "send_attempt", "consumer": "parked_discard", "control": "stopped_topic"}
    with upgraded(server, role) as url:
        kind = "VIEW" if role == "control" else "TABLE"
        run(url, f"ALTER {kind} {last[role]} RENAME TO away")
        before = held(url)
        with pytest.raises(StoreUnavailable, match="does not exist"):
            grant(url, role)
        assert held(url) == before
        with pytest.raises(psycopg2.Error, match="does not exist"):
            by_dba(url, role)
        assert held(url) == before


@pytest.mark.parametrize("role", ROLES)
def test_an_earlier_version_takes_nothing_from_roles_that_a_later_one_granted(
    server: Postgres, role: str
) -> None:
    """After a roll back: programs of the later version may still be at work."""
    with upgraded(server, role) as url:
        run(url, f"UPDATE backstop_{role}_version SET version_num = '9999'")
        before = held(url)
        with pytest.raises(StoreUnavailable, match="9999, which this program does not know"):
            grant(url, role)
        with pytest.raises(psycopg2.Error, match="use the grants of that version"):
            run(url, grants_sql(role))
        assert held(url) == before


@pytest.mark.parametrize("role", ROLES)
def test_all_that_a_schema_makes_is_known_as_backstops_own(server: Postgres, role: str) -> None:
    """Else what a role held on it would stay."""
    ours = objects_of(role, role)
    made = run(
        server.admin_dsn(role),
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind NOT IN ('i', 'S', 'c', 't')",
    )
    assert {name for (name,) in made} == {*ours["TABLE"], *ours["VIEW"]}
    made = run(
        server.admin_dsn(role),
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    )
    assert {name for (name,) in made} <= {*ours["FUNCTION"]}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_writes_what_is_listed_here_and_nothing_else(server: Postgres, role: str) -> None:
    found = held(server.admin_dsn(role))
    tables = {
        (who, str(name), part, may) for kind, name, part, who, may, _ in found if kind == "relation"
    }
    assert writes(tables) == WRITES[role]
    assert not any(on for *_, on in found), "nobody hands anything on"


@pytest.mark.parametrize("role", ROLES)
def test_beside_tables_a_role_holds_what_is_listed_here_and_nothing_else(
    server: Postgres, role: str
) -> None:
    url = server.admin_dsn(role)
    ours = {
        f"backstop_{name}"
        for name in (
            "duty",
            "person",
            {"producer": "app", "control": "reader"}.get(role, "consumer"),
        )
    }
    others = {one[:1] + one[3:5] for one in held(url) if one[0] not in ("relation", "function")}
    wanted = {("schema", name, "USAGE") for name in ours | {"PUBLIC"}}
    wanted |= {("database", name, "CONNECT") for name in ours}
    if role == "control":
        wanted.add(("database", "backstop_duty", "TEMPORARY"))
    assert others == wanted
    functions = {
        one[1:2] + one[3:4] for one in held(url) if one[0] == "function" and one[3] != "PUBLIC"
    }
    appends = "append_decision(text,text,text,text,jsonb)"
    named = {(appends, "backstop_duty"), (appends, "backstop_person")}
    assert functions == (named if role == "control" else set())
    # What runs with the owner's rights, or forgets decisions, is not everybody's to call.
    closed = run(
        url,
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        " AND (prosecdef OR proname = 'forget_decisions') AND has_function_privilege('public', oid, 'EXECUTE')",
    )
    assert closed == []
    # And none finds an operator or a function by its caller's path.
    found = run(
        url,
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proconfig IS NULL",
    )
    assert found == []


MARIADB_EXTRA = {
    "producer": (
        "GRANT UPDATE ON {0}.message_stub TO backstop_app",
        "GRANT UPDATE (`groups`), DELETE ON {0}.send_attempt TO backstop_app WITH GRANT OPTION",
        "GRANT ALL ON {0}.message_stub TO backstop_person",
        "GRANT UPDATE (tag) ON {0}.message_stub TO backstop_duty",
        "GRANT UPDATE ON {0}.backstop_producer_version TO backstop_duty",
        "GRANT SELECT, INSERT ON {0}.message_stub TO backstop_reader",
    ),
    "consumer": (
        "GRANT UPDATE ON {0}.consumer_log TO backstop_duty",
        "GRANT UPDATE (state), DELETE ON {0}.consumer_log TO backstop_person",
        "GRANT DELETE, UPDATE ON {0}.consumer_log_floor TO backstop_consumer",
        "GRANT INSERT ON {0}.consumer_log TO backstop_app",
    ),
}


def maria_held(database: MariaDatabase) -> set[tuple[str, str, str | None, str]]:
    found = database.run(
        "SELECT GRANTEE AS who, TABLE_NAME AS t, NULL AS c, PRIVILEGE_TYPE AS p, IS_GRANTABLE AS g"
        " FROM information_schema.TABLE_PRIVILEGES WHERE TABLE_SCHEMA = DATABASE()"
        " UNION ALL SELECT GRANTEE, TABLE_NAME, COLUMN_NAME, PRIVILEGE_TYPE, IS_GRANTABLE"
        " FROM information_schema.COLUMN_PRIVILEGES WHERE TABLE_SCHEMA = DATABASE()"
    )
    more = {(one["who"], one["t"], None, "GRANT OPTION") for one in found if one["g"] == "YES"}
    named = {(one["who"], one["t"], one["c"], one["p"]) for one in found} | more
    return {(who.split("'")[1], table, column, may) for who, table, column, may in named}


@contextmanager
def maria_upgraded(server: MariaDB, role: str) -> Iterator[MariaDatabase]:
    with maria_database(server, role) as database:
        grant(database.dsn, role)
        for name in ("backstop_app", "backstop_reader"):
            database.run(f"CREATE ROLE IF NOT EXISTS {name}")
        for statement in MARIADB_EXTRA[role]:
            database.run(statement.format(database.name))
        yield database


@pytest.mark.parametrize("role", sorted(IN_MARIADB))
def test_in_mariadb_each_role_writes_what_is_listed_here_and_nothing_else(
    maria_server: MariaDB, role: str
) -> None:
    with maria_database(maria_server, role) as database:
        grant(database.dsn, role)
        assert writes(maria_held(database)) == MARIADB_WRITES[role]
        (said,) = [one for one in database.run("SHOW TABLES") if "version" in str(one)]
        made = {str(value) for one in database.run("SHOW TABLES") for value in one.values()}
        assert made - {"effect", "business_order"} == set(
            objects_of(IN_MARIADB[role], role)["TABLE"]
        ), said


@pytest.mark.parametrize("role", sorted(IN_MARIADB))
def test_in_mariadb_an_upgraded_database_gives_its_roles_what_a_new_one_gives_them(
    maria_server: MariaDB, role: str
) -> None:
    with maria_database(maria_server, role) as new, maria_upgraded(maria_server, role) as old:
        grant(new.dsn, role)
        table = "business_order" if role == "producer" else "effect"
        old.run(f"GRANT ALL ON {table} TO backstop_duty")
        theirs = {one for one in maria_held(old) if one[1] == table}
        assert len(maria_held(old) - maria_held(new) - theirs) > 5
        grant(old.dsn, role)
        assert maria_held(old) - theirs == maria_held(new) and len(theirs) > 5
        left = old.run("SELECT User FROM mysql.user WHERE User LIKE 'backstop_meanwhile%'")
        assert left == [], "nothing is left of what stood in meanwhile"


def test_in_mariadb_nobody_meets_a_role_without_its_rights_while_more_is_taken_back(
    maria_server: MariaDB,
) -> None:
    with maria_upgraded(maria_server, "producer") as database:
        for statement in (
            f"CREATE OR REPLACE USER app@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            "GRANT backstop_app TO app@'127.0.0.1'",
            "SET DEFAULT ROLE backstop_app FOR app@'127.0.0.1'",
        ):
            database.run(statement)
        done, worked = threading.Event(), threading.Event()
        refused: list[str] = []

        def work() -> None:
            app = connect_to(maria_server.dsn("app", PASSWORD, database.name))
            with closing(app), app.cursor() as cursor:
                while not done.is_set():
                    try:
                        cursor.execute(
                            "UPDATE message_stub SET sent_at = NULL WHERE topic = 'orders'"
                        )
                        app.rollback()
                    except pymysql.MySQLError as error:
                        refused.append(str(error))
                    worked.set()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(20):
                worked.clear()
                database.run(MARIADB_EXTRA["producer"][0].format(database.name))
                grant(database.dsn, "producer")
                assert worked.wait(30)
        finally:
            done.set()
            worker.join()
        assert refused == []
        assert writes(maria_held(database)) == PRODUCER


def test_in_mariadb_grants_that_were_cut_off_are_finished_by_the_next(
    maria_server: MariaDB,
) -> None:
    """The role that stands in meanwhile is then the only one that has what another keeps."""
    with maria_database(maria_server, "producer") as database:
        grant(database.dsn, "producer")
        name = database.one("SELECT LEFT(SHA1(DATABASE()), 16) AS name")["name"]
        for statement in (
            f"CREATE ROLE backstop_meanwhile_{name}",
            f"GRANT UPDATE (sent_at) ON message_stub TO backstop_meanwhile_{name}",
            f"GRANT backstop_meanwhile_{name} TO backstop_app",
            "REVOKE ALL PRIVILEGES ON message_stub FROM backstop_app",
        ):
            database.run(statement)
        grant(database.dsn, "producer")
        assert writes(maria_held(database)) == PRODUCER
        assert "meanwhile" not in str(database.run("SHOW GRANTS FOR backstop_app"))


def test_in_mariadb_a_login_that_cannot_read_what_roles_hold_is_refused_with_what_it_needs(
    maria_server: MariaDB,
) -> None:
    with maria_upgraded(maria_server, "consumer") as database:
        for statement in (
            f"CREATE OR REPLACE USER dba@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            "GRANT CREATE USER ON *.* TO dba@'127.0.0.1'",
            f"GRANT ALL ON {database.name}.* TO dba@'127.0.0.1' WITH GRANT OPTION",
        ):
            database.run(statement)
        dba = maria_server.dsn("dba", PASSWORD, database.name)
        with pytest.raises(StoreUnavailable, match=r"SELECT on mysql\.\*"):
            grant(dba, "consumer")
        database.run("GRANT SELECT ON mysql.* TO dba@'127.0.0.1'")
        grant(dba, "consumer")
        assert writes(maria_held(database)) == MARIADB_WRITES["consumer"]


@pytest.mark.parametrize("role", sorted(IN_MARIADB))
def test_in_mariadb_an_earlier_version_takes_nothing_from_roles_that_a_later_one_granted(
    maria_server: MariaDB, role: str
) -> None:
    with maria_upgraded(maria_server, role) as database:
        database.run(f"UPDATE backstop_{role}_version SET version_num = '9999'")
        before = maria_held(database)
        with pytest.raises(StoreUnavailable, match="9999, which this program does not know"):
            grant(database.dsn, role)
        assert maria_held(database) == before
