"""Migrations: safe to run twice and at once, apart from a host's own, the same as their text, one with the
records."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.errors
import pytest

from backstop import schema
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.model.records import LogState, Outcome, RequestState, StubStatus
from backstop.schema.migrate import as_sql, current, grant, grants_sql, head, is_newer, migrate
from backstop.schema.revisions import ROLES, revisions
from backstop_lab.servers.postgres import Postgres

STRUCTURE = """
    SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
    WHERE table_schema = 'public'
    UNION ALL SELECT tablename, indexname, indexdef, NULL, NULL FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL, NULL
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    ORDER BY 1, 2, 3
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("pg")) as running:
        yield running


@pytest.fixture
def url(server: Postgres, request: pytest.FixtureRequest) -> str:
    """An empty database for each test."""
    name = re.sub(r"\W", "_", request.node.name)[-60:]
    server.create_database(name)
    return server.admin_dsn(name)


def rows(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def test_a_revision_is_its_sql_file_and_nothing_else() -> None:
    folders = [Path(schema.__file__).parent / role for role in ROLES]
    assert {file.suffix for folder in folders for file in folder.iterdir() if file.is_file()} == {
        ".sql"
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_migration_run_twice_changes_nothing_the_second_time(url: str, role: str) -> None:
    assert current(url, role) is None
    assert migrate(url, role) == sorted(revisions(role))
    before = rows(url, STRUCTURE)
    assert migrate(url, role) == []
    assert (current(url, role), rows(url, STRUCTURE)) == (head(role), before)


@pytest.mark.parametrize("role", ROLES)
def test_a_schema_of_a_later_version_is_recognized_and_never_migrated(url: str, role: str) -> None:
    assert not is_newer(url, role)
    migrate(url, role)
    assert not is_newer(url, role)
    rows(url, f"UPDATE backstop_{role}_version SET version_num = '9999'")
    before = rows(url, STRUCTURE)
    assert is_newer(url, role)
    with pytest.raises(StoreUnavailable, match="does not know"):
        migrate(url, role)
    assert (current(url, role), rows(url, STRUCTURE)) == ("9999", before)


@pytest.mark.parametrize("role", ROLES)
def test_the_text_for_a_dba_makes_the_same_database(server: Postgres, url: str, role: str) -> None:
    migrate(url, role)
    server.create_database(f"by_text_{role}")
    by_text = server.admin_dsn(f"by_text_{role}")
    rows(by_text, as_sql(role))
    assert rows(by_text, STRUCTURE) == rows(url, STRUCTURE)
    assert migrate(by_text, role) == []


def test_four_migrations_at_once_apply_each_revision_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda _: migrate(url, "producer"), range(4)))
    assert sorted(applied) == [[], [], [], sorted(revisions("producer"))]


def test_roles_that_share_a_database_with_a_host_do_not_touch_its_versions_or_tables(
    url: str,
) -> None:
    rows(
        url,
        "CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY);"
        " INSERT INTO alembic_version VALUES ('host-42'); CREATE TABLE run_of_the_host (id int)",
    )
    for role in ROLES:
        migrate(url, role)
    assert rows(url, "SELECT version_num FROM alembic_version") == [("host-42",)]
    assert [current(url, role) for role in ROLES] == [head(role) for role in ROLES]


def test_a_migration_that_fails_leaves_nothing_behind(url: str) -> None:
    rows(url, "CREATE TABLE send_attempt (mine int)")  # the second table of the revision is taken
    before = rows(url, STRUCTURE)
    with pytest.raises(StoreUnavailable, match="already exists") as caught:
        migrate(url, "producer")
    assert caught.value.unaffected and caught.value.next_step
    assert rows(url, STRUCTURE) == before


def test_a_database_of_a_later_version_is_left_alone(url: str) -> None:
    migrate(url, "consumer")
    rows(url, "UPDATE backstop_consumer_version SET version_num = '9999'")
    with pytest.raises(StoreUnavailable, match="9999"):
        migrate(url, "consumer")
    assert current(url, "consumer") == "9999"


OVERLONG = random.Random(2).randbytes(600).hex()
"""1,200 bytes that no compression makes fit."""


def test_lengths_hold_for_new_stubs_and_older_ones_may_still_be_changed(url: str) -> None:
    insert = (
        "INSERT INTO message_stub (topic, message_id, ordering_key, content, next_check_at)"
        " VALUES ('orders', %s, %s, '', now())"
    )
    for revision, statements in sorted(revisions("producer").items()):
        if revision <= "0003":
            rows(url, statements)
    rows(url, "CREATE TABLE backstop_producer_version (version_num varchar(32) PRIMARY KEY)")
    rows(url, "INSERT INTO backstop_producer_version VALUES ('0003')")
    rows(url, insert, (OVERLONG, OVERLONG))
    migrate(url, "producer")
    assert rows(url, "UPDATE message_stub SET updated_at = now() RETURNING length(message_id)") == [
        (len(OVERLONG),)
    ]
    for over in ((1, 0), (0, 1)):
        with pytest.raises(psycopg2.errors.CheckViolation, match="lengths"):
            rows(url, insert, tuple(OVERLONG[: 1024 + more] for more in over))
    rows(url, insert, (OVERLONG[:1024], OVERLONG[:1024]))


def test_no_row_of_version_2_is_longer_also_where_each_statement_commits_by_itself(
    url: str,
) -> None:
    before, coming = [], []
    for revision, statements in sorted(revisions("producer").items()):
        (coming if revision == "0006" else before).append(statements)
    rows(url, "\n".join(before))
    for statement in re.sub("--.*", "", coming[0]).split(";"):
        if statement.strip():
            rows(url, statement)
            with suppress(psycopg2.errors.CheckViolation):
                rows(
                    url,
                    "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('orders', %s, '', now())",
                    (f"{len(rows(url, 'SELECT 1 FROM message_stub'))}{OVERLONG}",),
                )
    found = rows(
        url,
        "SELECT schema_version, count(*) FROM message_stub WHERE octet_length(message_id) > 1024 GROUP BY 1",
    )
    assert dict(found).keys() == {1}


WIDEST = {
    "topic": 255,
    "message_id": 1024,
    "consumer_group": 255,
    "subject": 2000,
    "row_key": 2000,
    "broker_id": 512,
    "queue": 1300,
}
"""Bytes by column, as the contract or the code bounds them; every other column of a key is short."""


def test_every_key_of_the_control_database_holds_what_the_contract_admits(url: str) -> None:
    migrate(url, "control")
    keys = rows(
        url,
        "SELECT i.indexrelid::regclass::text, array_agg(a.attname::text) FROM pg_index i"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indrelid::regclass::text NOT LIKE 'pg_%' AND i.indrelid::regclass::text NOT LIKE '%.%' GROUP BY 1",
    )
    width = {name: sum(WIDEST.get(column, 40) for column in columns) for name, columns in keys}
    assert len(keys) > 50 and {name: size for name, size in width.items() if size > 2704} == {}


def test_an_unknown_role_and_an_unreachable_database_are_told_without_the_password() -> None:
    for ask in (
        lambda: migrate("postgresql://x", "master"),
        lambda: as_sql("../x"),
        lambda: grants_sql("master"),
    ):
        with pytest.raises(ConfigurationError):
            ask()
    for url in (
        "postgresql://u:s3cret-pass@127.0.0.1:1/x",
        "postgresql://u:s3cret-pass/y@127.0.0.1:1/x",
    ):
        with pytest.raises(StoreUnavailable) as caught:
            migrate(url, "producer")
        assert "s3cret" not in str(caught.value) + repr(caught.value.__context__)


@pytest.mark.parametrize("role", ROLES)
def test_the_migration_of_an_owner_needs_no_superuser(server: Postgres, role: str) -> None:
    owner = f"owner_{role}"
    password = server.create_role(owner)
    server.create_database(owner, owner)
    url = server.dsn(owner, password, owner)
    assert migrate(url, role) == sorted(revisions(role))
    rows(server.admin_dsn(), f"ALTER ROLE {owner} CREATEROLE")
    grant(url, role)
    grant(url, role)


@pytest.mark.parametrize(
    ("role", "table", "column", "states"),
    [
        ("producer", "message_stub", "status", StubStatus),
        ("producer", "send_attempt", "outcome", Outcome),
        ("consumer", "consumer_log", "state", LogState),
        ("control", "resend_request", "state", RequestState),
    ],
)
def test_the_states_of_the_records_are_those_that_the_database_holds(
    url: str, role: str, table: str, column: str, states: type[StrEnum]
) -> None:
    migrate(url, role)
    definitions = rows(
        url,
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        f" WHERE contype = 'c' AND conrelid = '{table}'::regclass AND cardinality(conkey) = 1"
        f"   AND pg_get_constraintdef(oid) LIKE '%({column} = ANY%'",
    )
    assert set(re.findall(r"'(\w+)'", definitions[0][0])) == {str(state) for state in states}
