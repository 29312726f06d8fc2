"""Checks that a PostgreSQL store is what the policy relies on: its schema, our privileges, and what it keeps
in a crash."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2 import sql

from backstop.brokers.protocol import Finding
from backstop.schema.revisions import head, version_table
from backstop.sql.connection import PostgresConnection
from backstop.sql.named import load
from backstop.stores.postgresql.privileges import Need, Needs
from backstop.stores.statement_log import QUERY, finding

_SQL = load("backstop.stores.postgresql", "check.sql")
_VERSION = sql.SQL("SELECT version_num FROM {}")


def check(connection: PostgresConnection, needs: Needs) -> list[Finding]:
    """One finding for the schema's version, one for our privileges, one for row-level security, one for the privileges of the
    services' role, one for who may make objects beside the tables, one for the encoding, one for the server's log, one for each
    durability setting."""
    return [
        _version(connection, needs.schema),
        _privileges(connection, needs.duty),
        _row_security(connection, needs.duty),
        _privileges_of_services(connection, needs),
        _is_closed(connection, needs.schema),
        _encoding(connection),
        finding(connection.subject, connection.rows(QUERY, {"role": needs.service_role})),
        *_durability(connection),
    ]


def _version(connection: PostgresConnection, role: str) -> Finding:
    table, newest = version_table(role), head(role)
    subject = f"{connection.subject}: schema"
    ((readable,),) = connection.rows(_SQL["version_is_there"], {"table": table})
    if readable is None:
        return Finding(
            subject, False, f"there is no table {table}", f"Run `backstop migrate --role {role}`."
        )
    if not readable:
        return Finding(
            subject,
            False,
            f"{table} may not be read",
            f"Grant SELECT on {table} to this login's role.",
        )
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


def _privileges(connection: PostgresConnection, needs: Sequence[Need]) -> Finding:
    missing = [_text(need) for need, granted in _granted(connection, None, needs) if not granted]
    subject = f"{connection.subject}: privileges"
    if not missing:
        return Finding(subject, True, "all that the duties need")
    if connection.rows(_SQL["is_person"]) == [(True,)]:
        return Finding(subject, True, "a person's login, which is not to have what the duties need")
    return Finding(
        subject,
        False,
        f"missing: {', '.join(missing)}",
        "Grant the role backstop_duty to this login.",
    )


def _row_security(connection: PostgresConnection, needs: Sequence[Need]) -> Finding:
    """A policy that hides rows from this login makes the server refuse its queries, because our sessions switch row_security
    off."""
    found = connection.rows(
        _SQL["row_security"], {"tables": sorted({table for table, _, _ in needs})}
    )
    subject = f"{connection.subject}: row-level security"
    if not found:
        return Finding(subject, True, "hides no rows from this login")
    tables = ", ".join(table for (table,) in found)
    return Finding(
        subject,
        False,
        f"hides rows of {tables} from this login",
        "Give it BYPASSRLS: ALTER ROLE ... BYPASSRLS.",
    )


def _privileges_of_services(connection: PostgresConnection, needs: Needs) -> Finding:
    """The services' own role. One that is not there, or is granted nothing here, is not theirs: a service that may do nothing
    fails at once, and one that may do almost all does not know how its sends ended."""
    subject = f"{connection.subject}: privileges of {needs.service_role}"
    answers = _granted(connection, needs.service_role, needs.service)
    missing = [_text(need) for need, granted in answers if not granted]
    if len(missing) == len(answers):
        return Finding(subject, True, "not used here; the services' own logins are not looked at")
    if not missing:
        return Finding(subject, True, "all that the client needs")
    again = f"Run `backstop migrate --grants --role {needs.schema}` again."
    return Finding(subject, False, f"missing: {', '.join(missing)}", again)


def _is_closed(connection: PostgresConnection, role: str) -> Finding:
    """A function or operator for narrower types comes before the server's own, and runs with the rights of its caller. Most of
    our calls of polymorphic functions name pg_catalog; operators do not."""
    rows = connection.rows(_SQL["may_create"], {"table": version_table(role)})
    logins = [name for (name,) in rows]
    subject = f"{connection.subject}: schema is closed"
    if not logins:
        return Finding(subject, True, "nobody but its owner makes objects beside the tables")
    named = f"{', '.join(logins[:5])}{' and others' if len(logins) > 5 else ''}"
    return Finding(
        subject,
        False,
        f"{named} may make functions and operators beside the tables, which then run with the duties' rights",
        "Its owner runs: REVOKE CREATE ON SCHEMA ... FROM PUBLIC, and from whom else it was granted; or give Backstop's tables a"
        " schema of their own.",
    )


def _granted(
    connection: PostgresConnection, role: str | None, needs: Sequence[Need]
) -> list[tuple[Need, bool | None]]:
    answers = connection.rows(
        _SQL["privileges"],
        {
            "role": role,
            "tables": [table for table, _, _ in needs],
            "columns": [column for _, column, _ in needs],
            "privileges": [privilege for _, _, privilege in needs],
        },
    )
    return [((table, column, privilege), granted) for table, column, privilege, granted in answers]


def _text(need: Need) -> str:
    table, column, privilege = need
    return f"{privilege} on {table}{'' if column is None else '.' + column}"


def _encoding(connection: PostgresConnection) -> Finding:
    """Ids are any Unicode: a database that is not UTF-8 refuses some of them, or holds bytes that are none."""
    ((encoding,),) = connection.rows(_SQL["encoding"])
    if encoding == "UTF8":
        return Finding(f"{connection.subject}: encoding", True, "UTF8")
    return Finding(
        f"{connection.subject}: encoding",
        False,
        f"{encoding}: an id with a character that it cannot hold has no row there and ends the consumer that receives it, and a row"
        " that is not UTF-8 is never judged",
        "Move these tables to a database made with ENCODING 'UTF8', or use ASCII alone in ids, ordering keys and tags.",
    )


def check_identity(connection: PostgresConnection) -> Finding:
    """A scan of many logs counts only if the server was the same before and after it. Where that cannot be known, logs are read
    by key: correct, and slow when many are due."""
    subject = f"{connection.subject}: bulk scans"
    denied = ", ".join(signature for (signature,) in connection.rows(_SQL["identity"]))
    if not denied:
        return Finding(subject, True, "can tell whether the server stays the same")
    return Finding(
        subject,
        False,
        f"cannot tell whether the server stays the same: this login may not call {denied}. Each log is read by its key",
        f"Let a superuser run: GRANT EXECUTE ON FUNCTION {denied} TO backstop_duty;",
    )


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
            ""
            if commit != "off"
            else "Turn it on, also for the application: a crash loses its last commits.",
        ),
        Finding(
            subject,
            not standby,
            "a standby" if standby else "the primary",
            "Name the primary in the connection." if standby else "",
        ),
    ]
