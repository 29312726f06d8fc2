"""Brings one database to the newest schema of its role, safe to run twice and at once; or prints what would
be run.

Which revision a database has stands in a table of its own (`backstop_<role>_version`). It runs under a login that owns
the schema; which roles may then use the tables is for `grant` (`backstop migrate --grants`), which runs `<role>/privileges.sql`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from backstop.model.errors import StoreUnavailable
from backstop.schema import mariadb
from backstop.schema.build_indexes import build_indexes, without_indexes_there
from backstop.schema.cannot_grant import cannot_grant
from backstop.schema.change_tables import change_tables, without_changes_there
from backstop.schema.revisions import (
    IN_MARIADB,
    head,
    require_known,
    revisions,
    version_table,
)
from backstop.schema.take_back import take_back_sql
from backstop.sql.connection import NOT_A_URL, read_url
from backstop.sql.named import read_sql
from backstop.sql.own_session import WHAT_TO_DO, WHY, shares_sessions

__all__ = ["as_sql", "current", "grant", "grants_sql", "head", "is_newer", "migrate"]

_LIMITS = "SET LOCAL lock_timeout = '60s'"
OTHERS = frozenset({"producer", "consumer"})
"""Roles whose tables other programs write to, in their business transactions."""
_ALONE = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('{lock}', 0))"
"""Two migrations of one database wait for each other: the second finds nothing left to do."""
_VERSION_TABLE = "CREATE TABLE IF NOT EXISTS {table} (version_num varchar(32) NOT NULL CONSTRAINT {table}_pkc PRIMARY KEY)"
_OWNS = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%s)"
_COMMENT = re.compile(r"^--.*$", re.MULTILINE)


def migrate(url: str, role: str) -> list[str]:
    """Apply what is missing, in one transaction; returns the revisions applied, oldest first.

    Tables of other people's databases are changed, and indexes on tables that are there are built, before it: who writes to them
    waits for change_tables.WAIT_SECONDS at a time. The transaction itself locks rows alone: of messages that were resent.

    Raises StoreUnavailable when the database does not answer or refuses, ConfigurationError for an unknown
    role.
    """
    if mariadb.is_mariadb(url):
        return mariadb.migrate(url, role)
    known = revisions(role)
    _prepare(url, role)
    with _connected(url, role) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_LIMITS)
        cursor.execute(_lock(role))
        before = _revision(cursor, role)
        require_known(before, role, known)
        coming = {
            revision: sql for revision, sql in known.items() if before is None or revision > before
        }
        for sql in coming.values():
            if role in OTHERS:
                sql = without_changes_there(without_indexes_there(sql, cursor), cursor)
            if _COMMENT.sub("", sql).strip():
                cursor.execute(sql)
        if coming:
            table = version_table(role)
            cursor.execute(_VERSION_TABLE.format(table=table))
            cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"INSERT INTO {table} VALUES (%s)", (head(role),))
    return list(coming)


def _prepare(url: str, role: str) -> None:
    """What would hold up those at work on the tables, before the migration's own transaction."""
    with _connected(url, role) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            before = _revision(cursor, role)
        coming = [
            sql
            for revision, sql in revisions(role).items()
            if before is not None and revision > before
        ]
        if coming and before in revisions(role):
            if role in OTHERS:
                change_tables(connection, coming)
            build_indexes(connection, version_table(role), coming)


def as_sql(role: str) -> str:
    """The whole schema of a role as text, for a DBA: one transaction, for an empty database."""
    table = version_table(role)
    statements = [
        "BEGIN;",
        f"{_lock(role)};",
        *(sql.rstrip() for sql in revisions(role).values()),
        f"{_VERSION_TABLE.format(table=table)};",
        f"INSERT INTO {table} VALUES ('{head(role)}');",
        "COMMIT;",
    ]
    return "\n\n".join(statements) + "\n"


def current(url: str, role: str) -> str | None:
    """The revision a database is at; None when it has none. Raises StoreUnavailable."""
    if mariadb.is_mariadb(url):
        return mariadb.current(url, role)
    with _connected(url, role) as connection, connection, connection.cursor() as cursor:
        return _revision(cursor, role)


def is_newer(url: str, role: str) -> bool:
    """Whether a later version of Backstop made the database's schema: this one works with it, and must not migrate it. Raises
    StoreUnavailable."""
    revision = current(url, role)
    newest = head(IN_MARIADB[role] if mariadb.is_mariadb(url) else role)
    return revision is not None and revision > newest


def grant(url: str, role: str) -> None:
    """Make the roles where they are missing and give each its least privileges, and no others on Backstop's own objects, in one
    transaction; safe to run twice and at once.

    Raises StoreUnavailable when the login may not (then a DBA runs `grants_sql`), or when a later version made the schema, which
    grants more.
    """
    if mariadb.is_mariadb(url):
        mariadb.grant(url, role)
        return
    statement = _grants(role)
    with (
        _connected(url, role, cannot_grant) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(_LIMITS)
        cursor.execute(_lock(role))
        # Of whoever may use a table without owning it, the server takes a GRANT with a warning, and does nothing.
        cursor.execute(_OWNS, (version_table(role),))
        if cursor.fetchone() == (False,):
            raise cannot_grant(role, "this login does not own its tables")
        require_known(_revision(cursor, role), role, revisions(role))
        cursor.execute(statement)


def grants_sql(role: str) -> str:
    """The roles and privileges of one database role as text, for a DBA: one transaction; run it after the schema."""
    return "\n\n".join(["BEGIN;", f"{_lock(role)};", _grants(role).rstrip(), "COMMIT;"]) + "\n"


def _grants(role: str) -> str:
    return f"{take_back_sql(role)}\n{read_sql('backstop.schema', f'{role}/privileges.sql')}"


def _lock(role: str) -> str:
    return _ALONE.format(lock=version_table(role))


def _revision(cursor: Any, role: str) -> str | None:
    table = version_table(role)
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (table,))
    if not cursor.fetchone()[0]:
        return None
    cursor.execute(f"SELECT version_num FROM {table}")
    row = cursor.fetchone()
    return str(row[0]) if row else None


def _cannot_migrate(role: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The {role} database could not be migrated: {why}.",
        unaffected="Each step is one transaction: nothing of it stayed.",
        next_step="Fix the problem it names (this needs the owner's login), then run `backstop migrate` again.",
    )


@contextmanager
def _connected(
    url: str, role: str, error_of: Callable[[str, str], StoreUnavailable] = _cannot_migrate
) -> Iterator[Connection]:
    """A connection by libpq's own reading of the URL; what goes wrong says neither URL nor password."""
    parameters = read_url(url)
    if parameters is None:
        raise error_of(role, NOT_A_URL)
    fixed = {
        "connect_timeout": "10",
        "application_name": "backstop",
        "target_session_attrs": "primary",
    }

    def connect() -> Connection:
        made: Connection = psycopg2.connect(**{**parameters, **fixed})  # type: ignore[call-overload]
        return made

    connection: Connection | None = None
    try:
        connection = connect()
        if shares_sessions(connection, connect):
            raise error_of(role, f"{WHY} ({WHAT_TO_DO[:-1]})")
        yield connection
    except psycopg2.Error as error:
        lines = str(error).strip().splitlines()
        raise error_of(role, lines[0].rstrip(".") if lines else "no reason given") from None
    finally:
        if connection is not None:
            connection.close()
