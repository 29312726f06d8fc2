"""Brings a producer or consumer database in MariaDB to the newest schema; see migrate, which comes here for such a URL.

DDL commits by itself there, so that a migration is no transaction: each statement is safe to run again, and the revision is written
after its last one. A migration that was cut off is finished by the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.schema.cannot_grant import cannot_grant
from backstop.schema.revisions import (
    IN_MARIADB,
    head,
    require_known,
    revisions,
    version_table,
)
from backstop.schema.take_back import take_back
from backstop.sql.mysql import connect, driver, read_mysql_url
from backstop.sql.named import read_sql

_LOCK_SECONDS = 60
_STATEMENT_SECONDS = 3600
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS {} (version_num varchar(32) NOT NULL PRIMARY KEY) ENGINE = InnoDB"
)


def is_mariadb(url: str) -> bool:
    """Whether a URL names a server of this kind."""
    return urlsplit(url).scheme == "mysql"


def _name_of(role: str) -> str:
    """Raises ConfigurationError for a role whose tables are in PostgreSQL alone."""
    if role not in IN_MARIADB:
        raise ConfigurationError(
            f"The tables of the role {role!r} are in PostgreSQL alone; MariaDB has those of {' and '.join(IN_MARIADB)}.",
            unaffected="Nothing was changed.",
            next_step="Use PostgreSQL for it (--kind postgresql with --sql).",
        )
    return IN_MARIADB[role]


def migrate(url: str, role: str) -> list[str]:
    """Apply what is missing; returns the revisions applied, oldest first. Raises StoreUnavailable, and ConfigurationError for a role
    whose tables are in PostgreSQL alone."""
    known, table = revisions(_name_of(role)), version_table(role)
    with _connected(url, role) as cursor, _alone(cursor, role):
        before = _revision(cursor, role)
        require_known(before, role, known)
        coming = [revision for revision in known if before is None or revision > before]
        for revision in coming:
            for statement in _statements(known[revision]):
                cursor.execute(statement)
            cursor.execute(_VERSION_TABLE.format(table))
            cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"INSERT INTO {table} VALUES (%s)", (revision,))
            cursor.execute("COMMIT")
    return coming


def as_sql(role: str) -> str:
    """The whole schema as text, for a DBA and an empty database."""
    name, table = _name_of(role), version_table(role)
    texts = [text.rstrip() for text in revisions(name).values()]
    version = f"INSERT INTO {table} VALUES ('{head(name)}');"
    return "\n\n".join([*texts, f"{_VERSION_TABLE.format(table)};", version]) + "\n"


def current(url: str, role: str) -> str | None:
    """The revision a database is at; None when it has none. Raises StoreUnavailable."""
    _name_of(role)
    with _connected(url, role) as cursor:
        return _revision(cursor, role)


def grant(url: str, role: str) -> None:
    """Make the roles where they are missing and give each its least privileges, and no others on Backstop's own tables; safe to run
    twice. Raises StoreUnavailable when the login may not (then a DBA runs `grants_sql`, which takes nothing back), or when a later
    version made the schema, which grants more."""
    statements = list(_statements(grants_sql(role)))
    with _connected(url, role, cannot_grant) as cursor, _alone(cursor, role):
        require_known(_revision(cursor, role), role, revisions(_name_of(role)))
        for statement in statements:
            cursor.execute(statement)
        take_back(cursor, role, statements)


def grants_sql(role: str) -> str:
    """The roles and privileges as text, for a DBA; run it after the schema."""
    return read_sql("backstop.schema", f"{_name_of(role)}/privileges.sql")


def _statements(text: str) -> Iterator[str]:
    for statement in _COMMENT.sub("", text).split(";"):
        if statement.strip():
            yield statement.strip()


def _revision(cursor: Any, role: str) -> str | None:
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s",
        (version_table(role),),
    )
    if not cursor.fetchone()[0]:
        return None
    cursor.execute(f"SELECT version_num FROM {version_table(role)}")
    row = cursor.fetchone()
    return str(row[0]) if row else None


@contextmanager
def _alone(cursor: Any, role: str) -> Iterator[None]:
    """Two migrations of one database wait for each other: the second finds nothing left to do."""
    # A lock's name has at most 64 characters; a database's may have as many.
    cursor.execute("SELECT GET_LOCK(CONCAT('backstop ', SHA1(DATABASE())), %s)", (_LOCK_SECONDS,))
    if cursor.fetchone()[0] != 1:
        raise _cannot_migrate(role, f"another migration holds it for more than {_LOCK_SECONDS} s")
    yield  # closing the connection releases it


def _cannot_migrate(role: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The {role} database could not be migrated: {why}.",
        unaffected="What was made before stays, and nothing uses it until the revision is whole.",
        next_step="Fix the problem it names (this needs the owner's login), then run `backstop migrate` again.",
    )


@contextmanager
def _connected(
    url: str, role: str, error_of: Callable[[str, str], StoreUnavailable] = _cannot_migrate
) -> Iterator[Any]:
    login = read_mysql_url(url)
    if login is None:
        raise error_of(role, "its connection is not mysql://user:password@host:3306/database")
    pymysql = driver(f"the {role} database")
    try:
        connection = connect(
            pymysql,
            **login,
            charset="utf8mb4",
            autocommit=False,
            program_name="backstop",
            connect_timeout=10,
            read_timeout=_STATEMENT_SECONDS,
        )
        with closing(connection), connection.cursor() as cursor:
            # No mode of the server's changes what a statement means, or takes another engine for a missing one.
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
            yield cursor
    except pymysql.MySQLError as error:
        lines = str(error.args[-1] if error.args else error).strip().splitlines()
        why = lines[0].rstrip(".") if lines else type(error).__name__
        raise error_of(role, mask_secrets(why, [str(login.get("password") or "")])) from None
