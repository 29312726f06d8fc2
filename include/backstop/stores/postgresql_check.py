"""Checks that a PostgreSQL store is what the policy relies on: its schema, our privileges, and what it keeps
in a crash."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg2 import sql

from backstop.brokers.protocol import Finding
from backstop.named_sql import load
from backstop.schema.revisions import head, version_table
from backstop.stores.postgresql_connection import PostgresConnection

_SQL = load("backstop.stores", "postgresql_check.sql")
_VERSION = sql.SQL("SELECT version_num FROM {}")
Need = tuple[str, str | None, str]
"""table, column or null for the whole table, privilege"""


def check(connection: PostgresConnection, role: str, needs: Iterable[Need]) -> list[Finding]:
    """One finding for the schema's version, one for the privileges, one for each durability setting."""
    return [_version(connection, role), _privileges(connection, list(needs)), *_durability(connection)]


def _version(connection: PostgresConnection, role: str) -> Finding:
    table, newest = version_table(role), head(role)
    subject = f"{connection.subject}: schema"
    ((readable,),) = connection.rows(_SQL["version_is_there"], {"table": table})
    if readable is None:
        return Finding(subject, False, f"there is no table {table}", f"Run `backstop migrate --role {role}`.")
    if not readable:
        return Finding(subject, False, f"{table} may not be read", f"Grant SELECT on {table} to this login's role.")
    found = [version for (version,) in connection.rows(_VERSION.format(sql.Identifier(table)))]
    if found == [newest]:
        return Finding(subject, True, f"revision {newest}")
    at = found[0] if found else "none"
    return Finding(
        subject,
        False,
        f"revision {at}, but this program needs {newest}",
        f"Run `backstop migrate --role {role}`, or install the version of Backstop that made revision {at}.",
    )


def _privileges(connection: PostgresConnection, needs: list[Need]) -> Finding:
    answers = connection.rows(
        _SQL["privileges"],
        {
            "tables": [table for table, _, _ in needs],
            "columns": [column for _, column, _ in needs],
            "privileges": [privilege for _, _, privilege in needs],
        },
    )
    missing = [
        f"{privilege} on {table}{'' if column is None else '.' + column}"
        for table, column, privilege, granted in answers
        if not granted
    ]
    subject = f"{connection.subject}: privileges"
    if not missing:
        return Finding(subject, True, "all that the duties need")
    return Finding(subject, False, f"missing: {', '.join(missing)}", "Grant the role backstop_duty to this login.")


def _durability(connection: PostgresConnection) -> list[Finding]:
    ((fsync, full_pages, commit, standby),) = connection.rows(_SQL["durability"])
    subject = f"{connection.subject}: durability"
    lost = "Turn it on: what was committed can be lost or torn in a crash."
    return [
        Finding(subject, fsync == "on", f"fsync is {fsync}", "" if fsync == "on" else lost),
        Finding(
            subject,
            full_pages == "on",
            f"full_page_writes is {full_pages}",
            "" if full_pages == "on" else lost,
        ),
        Finding(
            subject,
            commit != "off",
            f"synchronous_commit is {commit} for this login",
            "" if commit != "off" else "Turn it on, also for the application: a crash loses its last commits.",
        ),
        Finding(
            subject,
            not standby,
            "a standby" if standby else "the primary",
            "Name the primary in the connection." if standby else "",
        ),
    ]
