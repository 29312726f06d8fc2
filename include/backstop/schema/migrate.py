"""Brings one database to the newest schema of its role, safe to run twice and at once; or prints what would
be run.

Alembic keeps the revision in a table of our own (`backstop_<role>_version`). It runs under a login that owns
the schema; which roles may then use the tables is for `grant`, which runs `<role>/privileges.sql`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from psycopg2.extensions import connection as PsycopgConnection
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from backstop.errors import StoreUnavailable
from backstop.schema.build_indexes import build_indexes
from backstop.schema.change_tables import change_tables
from backstop.schema.revisions import head, revisions, version_table
from backstop.stores.postgresql_connection import NOT_A_URL, read_url

__all__ = ["as_sql", "current", "grant", "grants_sql", "head", "migrate"]

_FOLDER = Path(__file__).resolve().parent
_LIMITS = "SET LOCAL lock_timeout = '60s'"
OTHERS = frozenset({"producer", "consumer"})
"""Roles whose tables other programs write to, in their business transactions."""
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('{lock}', 0))"
"""Two migrations of one database wait for each other: the second finds nothing left to do."""


def migrate(url: str, role: str) -> list[str]:
    """Apply what is missing, in one transaction; returns the revisions applied, oldest first.

    Tables of other people's databases are changed, and indexes on tables that are there are built, before it: who writes to them
    waits for change_tables.WAIT_SECONDS at a time. The transaction itself locks rows alone: of messages that were resent.

    Raises StoreUnavailable when the database does not answer or refuses, ConfigurationError for an unknown
    role.
    """
    known = list(revisions(role))
    config = _config(role)
    _prepare(url, role)
    with _connected(url, role) as connection, connection.begin():
        connection.execute(text(_LIMITS))
        connection.execute(text(_lock(role)))
        before = _revision(connection, role)
        if before is not None and before not in known:
            raise StoreUnavailable(
                f"The {role} database is at revision {before}, which this program does not know.",
                kept="Nothing was changed.",
                next_step="Install the version of Backstop that made it, or a later one.",
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return [revision for revision in known if before is None or revision > before]


def _prepare(url: str, role: str) -> None:
    """What would hold up those at work on the tables, before the migration's own transaction."""
    with _connected(url, role) as connection:
        before = _revision(connection, role)
        connection.rollback()
        coming = [sql for revision, sql in revisions(role).items() if before is not None and revision > before]
        if coming and before in revisions(role):
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.autocommit = True
            if role in OTHERS:
                change_tables(raw, coming)
            build_indexes(raw, version_table(role), coming)


def as_sql(role: str) -> str:
    """The whole schema of a role as text, for a DBA: one transaction, for an empty database."""
    output = io.StringIO()
    config = _config(role)
    config.attributes.update(output=output, lock=_lock(role))
    command.upgrade(config, "head", sql=True)
    return output.getvalue()


def current(url: str, role: str) -> str | None:
    """The revision a database is at; null when it has none. Raises StoreUnavailable."""
    with _connected(url, role) as connection:
        return _revision(connection, role)


def grant(url: str, role: str) -> None:
    """Make the roles where they are missing and give each its least privileges; safe to run twice and at
    once.

    Raises StoreUnavailable when the login may not: then a DBA runs `grants_sql`.
    """
    statement = grants_sql(role)
    with _connected(url, role) as connection, connection.begin():
        connection.execute(text(_LIMITS))
        connection.execute(text(_lock(role)))
        # The file is run as it is: a percent sign or a colon in it is no parameter.
        connection.connection.cursor().execute(statement)


def grants_sql(role: str) -> str:
    """The roles and privileges of one database role as text, for a DBA; run it after the schema."""
    revisions(role)  # refuses an unknown role
    return (_FOLDER / role / "privileges.sql").read_text(encoding="utf-8")


def _lock(role: str) -> str:
    return _ALONE.format(lock=version_table(role))


def _revision(connection: Connection, role: str) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": version_table(role)})
    return context.get_current_revision()


def _config(role: str) -> Config:
    revisions(role)  # refuses an unknown role, whose name would become a path
    config = Config()
    # The configuration parser takes a percent sign for a reference.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("version_locations", str(_FOLDER / role).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["version_table"] = version_table(role)
    return config


@contextmanager
def _connected(url: str, role: str) -> Iterator[Connection]:
    """A connection by libpq's own reading of the URL; what goes wrong says neither URL nor password."""

    parameters = read_url(url)

    def connect() -> PsycopgConnection:
        fixed = {"connect_timeout": "10", "application_name": "backstop", "target_session_attrs": "primary"}
        connection: PsycopgConnection = psycopg2.connect(**{**(parameters or {}), **fixed})  # type: ignore[call-overload]
        return connection

    if parameters is None:
        raise _unavailable(role, NOT_A_URL)
    engine = create_engine("postgresql+psycopg2://", creator=connect, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    except (DBAPIError, psycopg2.Error) as error:
        lines = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()
        raise _unavailable(role, lines[0].rstrip(".") if lines else "no reason given") from None
    finally:
        engine.dispose()


def _unavailable(role: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The {role} database did not do it: {why}.",
        kept="Each step is one transaction: nothing of it stayed.",
        next_step="Mend what it names (an owner's login is needed), then run `backstop migrate` again.",
    )
