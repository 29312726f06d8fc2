"""Least privileges: each role can do its work and nothing beside it, tried as a login that has only that
role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from backstop.brokers.protocol import Finding
from backstop.config.load import load as load_settings
from backstop.model.errors import StoreUnavailable, Unavailable
from backstop.model.records import Key, Outcome, Position
from backstop.reports.check_system import _is_closed
from backstop.reports.metrics import render
from backstop.schema.migrate import grant, grants_sql, migrate
from backstop.schema.revisions import ROLES
from backstop.sql.named import load
from backstop.stores.postgresql.leases import PostgresLeases
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.purge import PostgresLogPurge, PostgresStubPurge
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Claim, Scope, Settlement, StubOutcome
from backstop.stores.purge import FIRST_LOG, FIRST_STUB
from backstop_lab.servers.postgres import Postgres

PROJECT = Path(__file__).resolve().parents[2]
KEY = Key("orders", "m-1")
TOKEN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("pg")) as running:
        for role in ROLES:
            running.create_database(role)
            migrate(running.admin_dsn(role), role)
        with ThreadPoolExecutor(
            3
        ) as pool:  # the roles belong to the server: three databases make them at once
            list(pool.map(lambda role: grant(running.admin_dsn(role), role), ROLES))
        yield running


@pytest.fixture(scope="module")
def logins(server: Postgres) -> dict[str, str]:
    """role -> password of a login that has this role alone."""
    passwords = {}
    for role in (
        "backstop_app",
        "backstop_duty",
        "backstop_consumer",
        "backstop_reader",
        "backstop_person",
    ):
        passwords[role] = server.create_role(f"login_of_{role}")
        run(server.admin_dsn(), f"GRANT {role} TO login_of_{role}")
    passwords["nobody"] = server.create_role("login_of_nobody")
    return passwords


def run(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def as_(server: Postgres, logins: dict[str, str], role: str, database: str) -> str:
    return server.dsn(f"login_of_{role}", logins[role], database)


def put_stub(server: Postgres) -> None:
    run(
        server.admin_dsn("producer"),
        "TRUNCATE message_stub, send_attempt;"
        " INSERT INTO message_stub (topic, message_id, content, next_check_at)"
        " VALUES ('orders', 'm-1', '', now())",
    )


def refused(url: str, statement: str) -> bool:
    try:
        run(url, statement)
    except errors.InsufficientPrivilege:
        return True
    return False


def test_a_duty_can_do_all_that_the_store_of_stubs_does(
    server: Postgres, logins: dict[str, str]
) -> None:
    put_stub(server)
    now = datetime.now(UTC)
    with PostgresStubs("shop_a", as_(server, logins, "backstop_duty", "producer")) as store:
        assert store.count_due(now, Scope(), 5) == 1
        with store.scan_due(now, Scope(), 2) as scan:
            read = [
                store.read_part(part, lambda name, table: (name, table.num_rows))
                for part in scan.parts
            ]
        assert read == [[("stubs", 1)]]
        assert store.claim([Claim(KEY, 1, TOKEN, ["billing"], "r", 60, 60, 5, 5, True)]).keys() == {
            KEY
        }
        assert store.settle([Settlement(KEY, 1, TOKEN, Outcome.SENT, Position(0, 0, "e"))]) == {KEY}
        assert store.recover(5) == []
        assert (
            store.promote([StubOutcome(KEY, "pending", "exhausted", 1, None)], datetime.now(UTC))
            == 1
        )
        assert store.raise_max_sends(KEY, 9) and store.void(KEY)
        assert (
            len(store.stubs([KEY])) == len(store.attempts([KEY])) == len(store.contents([KEY])) == 1
        )
        assert all(finding.good for finding in store.check()), store.check()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE message_stub SET tag = 'x'",
        "TRUNCATE message_stub CASCADE",
        "UPDATE message_stub SET message_id = 'x'",
        "UPDATE message_stub SET created_at = now()",
        "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('t', 'x', '', now())",
        "UPDATE send_attempt SET outcome = 'sent'",
        "DELETE FROM send_attempt",
        "TRUNCATE send_attempt",
        "UPDATE backstop_producer_version SET version_num = 'x'",
        "DROP TABLE send_attempt",
        "CREATE TABLE x (y int)",
    ],
)
def test_a_duty_cannot_change_a_message_or_what_was_recorded(
    server: Postgres, logins: dict[str, str], statement: str
) -> None:
    assert refused(as_(server, logins, "backstop_duty", "producer"), statement)


def test_the_application_can_run_the_statements_of_the_wire_contract(
    server: Postgres, logins: dict[str, str]
) -> None:
    run(server.admin_dsn("producer"), "TRUNCATE message_stub, send_attempt")
    url = as_(server, logins, "backstop_app", "producer")
    values = {
        "topics": ["orders"],
        "message_ids": ["m-1"],
        "message_keys": [None],
        "tags": [None],
        "sequences": [None],
        "ordering_keys": [None],
        "headers": ["{}"],
        "contents": [b"x"],
        "content_types": ["text/plain"],
        "deliver_at": [None],
        "tokens": [TOKEN],
        "first_check_seconds": 1,
        "attempt_timeout_seconds": 1,
        "content": b"x",
        "topic": "orders",
        "message_id": "m-1",
        "outcomes": ["refused"],
        "queue_ids": [None],
        "queue_offsets": [None],
        "queue_epochs": [None],
        "broker_message_ids": [None],
        "errors": ["no"],
        "max_send_seconds": [30],
        "broker": "b",
    }
    for name in ("record", "recorded_content", "look_before_send", "settle"):
        assert run(url, load("backstop.client", "queries.sql")[name], values), name
    assert run(url, "SELECT refusals FROM message_stub") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE message_stub SET status = 'confirmed'",
        "UPDATE message_stub SET send_count = 9",
        "DELETE FROM message_stub",
        "UPDATE send_attempt SET outcome = 'sent'",
        "UPDATE message_stub SET content = ''",
    ],
)
def test_the_application_cannot_decide_what_became_of_a_message(
    server: Postgres, logins: dict[str, str], statement: str
) -> None:
    assert refused(as_(server, logins, "backstop_app", "producer"), statement)


def test_a_duty_takes_leases_back_and_changes_nothing_else_of_the_logs(
    server: Postgres, logins: dict[str, str]
) -> None:
    consumer = as_(server, logins, "backstop_consumer", "consumer")
    duty = as_(server, logins, "backstop_duty", "consumer")
    run(
        consumer,
        "INSERT INTO consumer_log (consumer_group, topic, message_id, state, lease_expires_at)"
        " VALUES ('g', 'orders', 'stuck', 'CONSUMING', now() - interval '1 s')",
    )
    with PostgresLeases("billing_db", duty) as leases:
        _, taken = leases.settle(["g"], {}, 10, False, lambda seen: seen)
    assert taken == {("g", "orders", "stuck")}
    for column in (
        "consumed_at = now()",
        "owner_token = NULL",
        "attempts = 0",
        "fence = 9",
        "consumer_group = 'x'",
    ):
        assert refused(duty, f"UPDATE consumer_log SET {column}")


def test_a_duty_only_reads_the_logs_and_a_consumer_writes_them(
    server: Postgres, logins: dict[str, str]
) -> None:
    consumer = as_(server, logins, "backstop_consumer", "consumer")
    duty = as_(server, logins, "backstop_duty", "consumer")
    insert = "INSERT INTO consumer_log (consumer_group, topic, message_id, state) VALUES ('g', 'orders', 'm-1', 'FAILED')"
    run(consumer, insert)
    run(consumer, "UPDATE consumer_log SET state = 'EXPIRED'")
    with PostgresLogs("billing_db", duty) as store:
        assert store.logs("g", [KEY])[KEY].state == "EXPIRED"
        assert store.floor("g").year == 1
        assert all(finding.good for finding in store.check()), store.check()
    for statement in (
        insert,
        "UPDATE consumer_log SET consumed_at = now()",
        "TRUNCATE consumer_log",
    ):
        assert refused(duty, statement)
    assert refused(consumer, "DELETE FROM consumer_log")
    assert refused(consumer, "UPDATE consumer_log_floor SET log_floor = now()")


def test_a_duty_can_purge_and_erase_and_services_cannot(
    server: Postgres, logins: dict[str, str]
) -> None:
    put_stub(server)
    url = server.admin_dsn("producer")
    run(url, "UPDATE message_stub SET status = 'voided', updated_at = now() - interval '1 h'")
    run(
        url,
        """
        INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)
        VALUES ('orders', 'm-1', 1, 'producer', now(), 'sent')""",
    )
    stubs = PostgresStubPurge("shop_a", as_(server, logins, "backstop_duty", "producer"))
    assert stubs.erase(KEY)
    assert stubs.purge_stubs(stubs.old_stubs("orders", 60, 60, FIRST_STUB, 5)) == 1
    assert run(url, "SELECT 1 FROM send_attempt") == []
    stubs.close()
    run(
        server.admin_dsn("consumer"),
        """
        TRUNCATE consumer_log;
        INSERT INTO consumer_log (consumer_group, topic, message_id, state, updated_at, first_received_at)
        VALUES ('g', 'orders', 'm-1', 'FAILED', now() - interval '1 h', now() - interval '1 h')""",
    )
    logs = PostgresLogPurge("billing_db", as_(server, logins, "backstop_duty", "consumer"))
    run(server.admin_dsn("consumer"), "UPDATE consumer_log SET last_error = 'of anna'")
    assert logs.erase(KEY, ["g"]) == 1
    assert logs.purge_logs("g", logs.old_logs("g", {"orders": 60}, FIRST_LOG, 5)[0]) == 1
    logs.close()
    assert refused(as_(server, logins, "backstop_app", "producer"), "DELETE FROM message_stub")
    assert refused(as_(server, logins, "backstop_consumer", "consumer"), "DELETE FROM consumer_log")


CONTENTS = (
    ("dead_letter", "content"),
    ("dead_letter", "headers"),
    ("dead_letter", "error"),
    ("dead_letter_aside", "content"),
    ("message_version", "content"),
    ("proposal", "content"),
    ("case_question", "given"),
    ("incident", "given"),
)
"""What pages do not show."""


def test_metrics_are_served_with_the_pages_login(server: Postgres, logins: dict[str, str]) -> None:
    connection = psycopg2.connect(as_(server, logins, "backstop_reader", "control"))
    try:
        text, _ = render(connection, load_settings(PROJECT / "backstop.yaml"), "", {})
    finally:
        connection.close()
    assert "backstop_" in text if isinstance(text, str) else b"backstop_" in text


UNWRITTEN = ("backstop_control_version", "decision_log", "decision_checkpoint")
ONLY_ADDED = ("decision_seen",)
"""What nobody but the owner of the tables writes; decisions are appended by a function that runs as the owner."""


def test_a_duty_writes_every_control_table_and_a_reader_none(
    server: Postgres, logins: dict[str, str]
) -> None:
    admin = server.admin_dsn("control")
    tables = [
        name
        for (name,) in run(admin, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    ]
    assert len(tables) > 20
    for table in tables:
        for role, may in (("duty", table not in UNWRITTEN), ("reader", False)):
            for privilege in ("INSERT", "UPDATE", "DELETE"):
                may = may and (privilege == "INSERT" or table not in ONLY_ADDED)
                query = "SELECT has_table_privilege(%s, %s, %s), has_any_column_privilege(%s, %s, 'SELECT')"
                values = (f"backstop_{role}", table, privilege, f"backstop_{role}", table)
                assert run(admin, query, values) == [(may, True)], (role, table, privilege)
    duty, reader = (
        as_(server, logins, f"backstop_{role}", "control") for role in ("duty", "reader")
    )
    # An identity column's sequence needs no privilege of its own.
    run(
        duty,
        "INSERT INTO run (duty, token, policy_version, code_version) VALUES ('x', gen_random_uuid(), 'p', 'c')",
    )
    assert len(run(reader, "SELECT 1 FROM run")) == 1
    assert refused(reader, "DELETE FROM run")
    for table, column in CONTENTS:
        assert refused(reader, f"SELECT {column} FROM {table}") and not refused(
            duty, f"SELECT {column} FROM {table}"
        ), table
    # Again, as an upgrade does: where a reader might read whole tables before.
    run(admin, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO backstop_reader")
    grant(admin, "control")
    assert refused(reader, "SELECT template FROM cause") and not refused(
        reader, "SELECT shown FROM cause"
    )
    assert refused(reader, "SELECT content FROM dead_letter") and not refused(
        reader, "SELECT state FROM dead_letter"
    )


def test_each_role_reads_the_views_of_the_control_database_and_changes_none(
    server: Postgres, logins: dict[str, str]
) -> None:
    views = run(
        server.admin_dsn("control"),
        "SELECT viewname FROM pg_views WHERE schemaname = 'public' ORDER BY viewname",
    )
    assert views == [("mass_loss_delivery",), ("stopped_topic",)]
    for role in ("duty", "person", "reader"):
        url = as_(server, logins, f"backstop_{role}", "control")
        for (view,) in views:
            assert not refused(url, f"SELECT FROM {view}"), (role, view)
            for privilege in ("INSERT", "UPDATE", "DELETE"):
                may = run(url, "SELECT has_table_privilege(%s, %s)", (view, privilege))
                assert may == [(False,)], (role, view, privilege)


def test_nobody_puts_an_operator_before_those_that_hold_people_to_their_names(
    server: Postgres, logins: dict[str, str]
) -> None:
    """PostgreSQL before 15 lets everybody make objects in the schema `public`. With an operator of its own there a person's login
    wrote a colleague's name: the functions of the triggers took it for the server's."""
    admin, ann = server.admin_dsn("control"), as_(server, logins, "backstop_person", "control")
    make = (
        "CREATE FUNCTION nothing(text[], text[]) RETURNS text[] LANGUAGE sql AS $$ SELECT '{}'::text[] $$;"
        " CREATE OPERATOR || (LEFTARG = text[], RIGHTARG = text[], FUNCTION = nothing)"
    )

    def finding() -> Finding:
        connection = psycopg2.connect(admin)
        try:
            (found,) = _is_closed(connection)
            return found
        finally:
            connection.close()

    assert finding().good
    run(admin, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    assert not finding().good and "login_of_backstop_person" in finding().says
    grant(admin, "control")
    assert refused(ann, make) and finding().good
    # Where the schema is another's, its owner has to.
    run(
        admin,
        "CREATE ROLE keeper; ALTER SCHEMA public OWNER TO keeper; CREATE ROLE owner LOGIN PASSWORD 'x';"
        " GRANT CONNECT ON DATABASE control TO owner; GRANT USAGE, CREATE ON SCHEMA public TO PUBLIC",
    )
    try:
        run(server.dsn("owner", "x", "control"), _CLOSES)
        assert not finding().good and "REVOKE CREATE ON SCHEMA public" in finding().do
    finally:
        run(
            admin,
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public OWNER TO pg_database_owner;"
            " REVOKE CONNECT ON DATABASE control FROM owner; DROP ROLE owner, keeper",
        )


@pytest.mark.parametrize(
    ("database", "role", "kind"),
    [
        ("producer", "backstop_app", PostgresStubs),
        ("consumer", "backstop_consumer", PostgresLogs),
    ],
)
def test_a_check_names_who_could_run_code_as_the_duties(
    server: Postgres,
    logins: dict[str, str],
    database: str,
    role: str,
    kind: type[PostgresStubs] | type[PostgresLogs],
) -> None:
    """PostgreSQL before 15 lets everybody make objects in the schema `public`, where an exact type comes before the server's
    polymorphic one."""
    admin, duty = server.admin_dsn(database), as_(server, logins, "backstop_duty", database)

    def found() -> dict[str, Finding]:
        with kind("one", duty) as store:
            return {one.subject.partition(": ")[2]: one for one in store.check()}

    assert found()["schema is closed"].good
    run(admin, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    try:
        run(
            as_(server, logins, role, database),
            "CREATE FUNCTION unnest(text[]) RETURNS SETOF text LANGUAGE sql AS"
            " $$ SELECT current_user::text || '.' $$",
        )
        calls = "SELECT * FROM unnest('{a}'::text[])"
        assert run(duty, calls) == [("login_of_backstop_duty.",)]
        findings = found()
        closed = findings.pop("schema is closed")
        assert not closed.good and f"login_of_{role}" in closed.says
        assert "REVOKE CREATE ON SCHEMA" in closed.do
        assert all(one.good for one in findings.values()), "our own calls name the server's"
    finally:
        run(
            admin,
            "DROP FUNCTION IF EXISTS public.unnest(text[]); REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        )
    assert found()["schema is closed"].good


@pytest.mark.parametrize("role", ROLES)
def test_a_migration_calls_the_servers_own_functions(server: Postgres, role: str) -> None:
    """Whoever may make objects in the schema would otherwise run code as the tables' owner."""
    admin = server.admin_dsn(role)
    fails = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not the server''s'; END $$;"
    run(
        admin,
        f"CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint {fails}"
        f" CREATE FUNCTION public.format(text, text) RETURNS text {fails}"
        f" CREATE FUNCTION public.format(text, name) RETURNS text {fails}"
        f" CREATE FUNCTION public.format(text, name, text) RETURNS text {fails}",
    )
    try:
        with pytest.raises(psycopg2.Error, match="not the server's"):
            run(admin, "SELECT hashtextextended('x', 0)")
        assert migrate(admin, role) == []
        grant(admin, role)
    finally:
        run(
            admin,
            "DROP FUNCTION public.hashtextextended(text, integer), public.format(text, text),"
            " public.format(text, name), public.format(text, name, text)",
        )


_CLOSES = re.search(r"DO \$\$\nBEGIN\n    IF EXISTS \(.*?\$\$;", grants_sql("control"), re.DOTALL)[
    0
]  # type: ignore[index]


def test_a_login_without_a_role_can_look_at_nothing_and_is_told_what_is_missing(
    server: Postgres, logins: dict[str, str]
) -> None:
    run(server.admin_dsn(), "GRANT CONNECT ON DATABASE producer TO login_of_nobody")
    with PostgresStubs("shop_a", as_(server, logins, "nobody", "producer")) as store:
        with pytest.raises(StoreUnavailable, match=r"refused: permission denied") as caught:
            store.stubs([KEY])
        assert "backstop check" in caught.value.next_step
        privileges = next(finding for finding in store.check() if "privileges" in finding.subject)
    assert not privileges.good
    missing = re.findall(r"(\w+) on ([\w.]+)", privileges.says)
    assert ("UPDATE", "message_stub.next_check_at") in missing and (
        "INSERT",
        "send_attempt",
    ) in missing
    assert "Grant the role backstop_duty" in privileges.do


def test_a_persons_login_is_not_advised_to_become_the_duties(
    server: Postgres, logins: dict[str, str]
) -> None:
    """It could then decide in anybody's name."""
    stubs = PostgresStubs("shop_a", as_(server, logins, "backstop_person", "producer"))
    logs = PostgresLogs("billing_db", as_(server, logins, "backstop_person", "consumer"))
    with stubs, logs:
        found = [one for store in (stubs, logs) for one in store.check() if not one.good]
    assert [one for one in found if "backstop_duty" in f"{one.says} {one.do}"] == []


@pytest.mark.parametrize(
    ("database", "role", "table", "taken", "missing"),
    [
        # As the grants of 0.1.0 left it: the client's message goes out, and its outcome cannot be stored.
        (
            "producer",
            "backstop_app",
            "message_stub",
            "UPDATE (attempted_at)",
            "UPDATE on message_stub.attempted_at",
        ),
        ("producer", "backstop_app", "send_attempt", "INSERT", "INSERT on send_attempt"),
        ("consumer", "backstop_consumer", "consumer_log", "UPDATE", "UPDATE on consumer_log"),
    ],
)
def test_a_check_says_what_the_services_own_role_cannot_do(
    server: Postgres,
    logins: dict[str, str],
    database: str,
    role: str,
    table: str,
    taken: str,
    missing: str,
) -> None:
    def finding() -> Finding:
        kind: Any = PostgresStubs if database == "producer" else PostgresLogs
        with kind("one", as_(server, logins, "backstop_duty", database)) as store:
            (found,) = [finding for finding in store.check() if role in finding.subject]
        return found  # type: ignore[no-any-return]

    assert finding().good and finding().says == "all that the client needs"
    run(server.admin_dsn(database), f"REVOKE {taken} ON {table} FROM {role}")
    try:
        assert (finding().good, finding().says) == (False, f"missing: {missing}")
        assert f"`backstop migrate --grants --role {database}`" in finding().do
        # A platform with roles of its own uses ours for nothing.
        run(server.admin_dsn(database), f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}")
        assert finding().good and "not used here" in finding().says
    finally:
        grant(server.admin_dsn(database), database)
    assert finding().says == "all that the client needs"


@pytest.mark.parametrize(
    ("database", "table"), [("producer", "message_stub"), ("consumer", "consumer_log")]
)
def test_rows_that_row_level_security_hides_are_refused_and_never_absent(
    server: Postgres, logins: dict[str, str], database: str, table: str
) -> None:
    """Filtered rows would look like rows that are not there: a consumed message would be LOST, a lost stub would not exist."""
    admin, duty = server.admin_dsn(database), as_(server, logins, "backstop_duty", database)
    store: Any = PostgresStubs("one", duty) if database == "producer" else PostgresLogs("one", duty)
    ask = (
        (lambda: store.stubs([KEY])) if database == "producer" else (lambda: store.logs("g", [KEY]))
    )
    with store:
        run(
            admin,
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; CREATE POLICY tenant ON {table} USING (topic = 'other')",
        )
        try:
            with pytest.raises(
                StoreUnavailable, match="refused: query would be affected by row-level security"
            ):
                ask()
            (finding,) = [
                finding for finding in store.check() if "row-level security" in finding.subject
            ]
            assert (finding.good, finding.says) == (False, f"hides rows of {table} from this login")
            run(server.admin_dsn(), "ALTER ROLE login_of_backstop_duty BYPASSRLS")
            ask()
            assert all(finding.good for finding in store.check()), store.check()
        finally:
            run(server.admin_dsn(), "ALTER ROLE login_of_backstop_duty NOBYPASSRLS")
            run(
                admin,
                f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY; DROP POLICY tenant ON {table}",
            )


def test_check_names_what_a_bulk_scan_is_not_granted_and_a_grant_of_just_that_is_enough(
    server: Postgres, logins: dict[str, str]
) -> None:
    admin = server.admin_dsn("consumer")
    with PostgresLogs("one", as_(server, logins, "backstop_duty", "consumer")) as store:
        try:
            run(
                admin,
                "REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn) FROM PUBLIC",
            )
            with pytest.raises(Unavailable):
                store.lineage()
            (bad,) = [finding for finding in store.check() if not finding.good]
            assert bad.subject.endswith("bulk scans")
            assert "may not call pg_control_system(), pg_walfile_name(pg_lsn)" in bad.says
            run(admin, bad.do.removeprefix("Let a superuser run: "))
            assert store.continues(store.lineage()) and all(
                finding.good for finding in store.check()
            )
        finally:
            run(
                admin,
                "REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn) FROM backstop_duty;"
                "GRANT EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn) TO PUBLIC",
            )


def test_the_duties_may_stage_where_nobody_else_may_make_temporary_tables(
    server: Postgres, logins: dict[str, str]
) -> None:
    statement = "CREATE TEMP TABLE incoming (LIKE staged_verdict) ON COMMIT DROP"
    run(server.dsn("login_of_backstop_duty", logins["backstop_duty"], "control"), statement)
    with pytest.raises(errors.InsufficientPrivilege):
        run(server.dsn("login_of_backstop_reader", logins["backstop_reader"], "control"), statement)


def test_no_content_lands_in_the_servers_log_where_its_check_is_good(
    server: Postgres, logins: dict[str, str]
) -> None:
    def finding() -> Finding:
        with PostgresStubs("shop_a", as_(server, logins, "backstop_duty", "producer")) as store:
            return next(one for one in store.check() if "server's log" in one.subject)

    def fails(content: str) -> str:
        """A producer's statement that fails, and what the server logged of it."""
        put_stub(server)
        log = server.directory / "server.log"
        before = len(log.read_text(errors="replace"))
        with pytest.raises(errors.UniqueViolation):
            run(
                as_(server, logins, "backstop_app", "producer"),
                "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('orders', 'm-1', %s, now())",
                (content.encode(),),
            )
        return log.read_text(errors="replace")[before:]

    assert finding().good
    assert b"IBAN".hex() not in fails("IBAN DE89")
    app = "login_of_backstop_app"
    try:
        loudest = {
            "log_min_error_statement": "error",
            "log_statement": "mod",
            "log_min_duration_statement": "0",
        }
        for setting, loud in loudest.items():
            run(server.admin_dsn(), f"ALTER ROLE {app} SET {setting} = '{loud}'")
            told = finding()
            assert not told.good and f"{setting} is {loud} for {app}" in told.says
            assert f"ALTER ROLE {app} SET {setting}" in told.do
            # How long a statement took is logged of those that do not fail.
            assert (b"IBAN".hex() in fails("IBAN DE89")) is (
                setting != "log_min_duration_statement"
            )
            run(server.admin_dsn(), f"ALTER ROLE {app} RESET ALL")
            assert finding().good
    finally:
        run(server.admin_dsn(), f"ALTER ROLE {app} RESET ALL")
