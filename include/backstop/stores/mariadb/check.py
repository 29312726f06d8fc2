"""Checks that a producer or consumer database in MariaDB is what the policy relies on: its schema, our privileges, and what it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backstop.brokers.protocol import Finding
from backstop.schema.revisions import IN_MARIADB, head, version_table
from backstop.sql.mysql import MysqlConnection, driver
from backstop.sql.named import load

_SQL = load("backstop.stores.mariadb", "check.sql")


class Needs(NamedTuple):
    """What one role's database must have."""

    role: str
    table: str
    """The one whose engine counts."""
    privileges: Mapping[str, str]
    """By the statement that takes them."""
    has_handlers: bool
    """Whether transactions of handlers read and then lock its rows."""


CONSUMER = Needs(
    "consumer",
    "consumer_log",
    {
        "may_read": "SELECT on consumer_log, consumer_log_floor and consumer_books",
        "may_sweep": "UPDATE (state, updated_at, lease_expires_at, last_error, payload_hash) on consumer_log",
        "may_purge": "DELETE on consumer_log",
        "may_raise": "INSERT and UPDATE on consumer_log_floor",
    },
    has_handlers=True,
)
PRODUCER = Needs(
    "producer",
    "message_stub",
    {
        "may_read_stubs": "SELECT on message_stub and send_attempt",
        "may_change_stubs": "UPDATE of what the duties decide on message_stub (schema/mariadb_producer/privileges.sql)",
        "may_record_attempts": "INSERT on send_attempt",
        "may_empty_attempts": "UPDATE (error) on send_attempt",
        "may_purge_stubs": "DELETE on message_stub",
    },
    has_handlers=False,
)
_DENIED = frozenset({1142, 1143})
_NO_TABLE = 1146
_OWN_ISOLATION = (11, 6, 2)
"""From this version on the guard's statements leave a stricter isolation of the server's out."""


def check(connection: MysqlConnection, needs: Needs) -> list[Finding]:
    """One finding for the server, the schema's version, our privileges, the engine, the statement log, the isolation, and each
    setting of durability. Raises StoreUnavailable."""
    subject = connection.subject

    def ask(cursor: Any) -> list[Finding]:
        cursor.execute(_SQL["server"])
        ((server,),) = cursor.fetchall()
        cursor.execute(_SQL["settings"])
        settings = {name: str(value).upper() for name, value in cursor.fetchall()}
        return [
            _server(subject, server),
            _version(subject, cursor, needs.role),
            _engine(subject, cursor, needs.table),
            _statement_log(subject, settings),
            *([_isolation(subject, server, settings)] if needs.has_handlers else []),
            *_durability(subject, settings),
        ]

    findings = connection.run(ask)
    # A transaction that only reads refuses to plan a change.
    return [*findings, connection.change(lambda cursor: _privileges(subject, cursor, needs))]


def _server(subject: str, server: str) -> Finding:
    if "MariaDB" in server:
        return Finding(f"{subject}: server", True, server)
    return Finding(
        f"{subject}: server",
        False,
        f"{server} is MySQL, on which these tables are untried",
        "Use MariaDB 10.6 or later, or try it with traffic of your own before you rely on it.",
    )


def _version(subject: str, cursor: Any, role: str) -> Finding:
    newest, errors = head(IN_MARIADB[role]), driver(subject).err
    do = f"Run `backstop migrate --role {role}`."
    try:
        cursor.execute(f"SELECT version_num FROM {version_table(role)}")
    except errors.MySQLError as error:
        if error.args[0] not in _DENIED | {_NO_TABLE}:
            raise
        says = f"{version_table(role)} is not there, or may not be read"
        return Finding(f"{subject}: schema", False, says, f"{do} Grant backstop_duty its tables.")
    found = [version for (version,) in cursor.fetchall()]
    if found == [newest]:
        return Finding(f"{subject}: schema", True, f"revision {newest}")
    says = f"revision {found[0] if found else 'none'}, but this program needs {newest}"
    return Finding(f"{subject}: schema", False, says, do)


def _privileges(subject: str, cursor: Any, needs: Needs) -> Finding:
    """By statements that the server would plan, and never runs: it asks for the privileges first, those of a role included."""
    errors, missing = driver(subject).err, []
    for name, privileges in needs.privileges.items():
        try:
            cursor.execute(_SQL[name])
            cursor.fetchall()
        except errors.MySQLError as error:
            if error.args[0] == _NO_TABLE:
                says = "its tables are not there"
                do = f"Run `backstop migrate --role {needs.role}`."
                return Finding(f"{subject}: privileges", False, says, do)
            if error.args[0] not in _DENIED:
                raise
            missing.append(privileges)
    if not missing:
        return Finding(f"{subject}: privileges", True, "all that the duties need")
    cursor.execute("SELECT CURRENT_ROLE()")
    if cursor.fetchone()[0] == "backstop_person":
        says = "a person's login, which is not to have what the duties need"
        return Finding(f"{subject}: privileges", True, says)
    return Finding(
        f"{subject}: privileges",
        False,
        f"missing: {'; '.join(missing)}",
        "Grant the role backstop_duty to this login, and make it its default role (SET DEFAULT ROLE).",
    )


def _engine(subject: str, cursor: Any, table: str) -> Finding:
    cursor.execute(_SQL["engine"], {"table": table})
    found = [str(engine) for (engine,) in cursor.fetchall()]
    is_innodb = found == ["InnoDB"]
    return Finding(
        f"{subject}: engine",
        is_innodb,
        f"{table} is kept by {', '.join(found) or 'nothing that this login may see'}",
        "" if is_innodb else f"Run `backstop migrate`, or ALTER TABLE {table} ENGINE = InnoDB.",
    )


def _statement_log(subject: str, settings: dict[str, str]) -> Finding:
    is_off = settings.get("general_log", "OFF") in ("OFF", "0")
    return Finding(
        f"{subject}: statement log",
        is_off,
        f"general_log is {settings.get('general_log', 'OFF')}",
        ""
        if is_off
        else "Turn it off: it writes every statement with its ids, contents and errors to a file.",
    )


def _isolation(subject: str, server: str, settings: dict[str, str]) -> Finding:
    """A handler that runs longer than a third of its lease, and read before, would never end: its log was renewed meanwhile."""
    is_on = settings.get("innodb_snapshot_isolation", "OFF") in ("ON", "1")
    is_left_out = _numbers(server) >= _OWN_ISOLATION
    return Finding(
        f"{subject}: isolation",
        not is_on or is_left_out,
        f"innodb_snapshot_isolation is {'on' if is_on else 'off'}",
        ""
        if not is_on or is_left_out
        else "Turn it off, or use MariaDB 11.6.2 or later: handlers that outlast a renewal would fail.",
    )


def _numbers(server: str) -> tuple[int, ...]:
    parts = server.partition("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def _durability(subject: str, settings: dict[str, str]) -> list[Finding]:
    lost = "what was committed can be lost in a crash, and a message would be done twice"
    flushed = settings.get("innodb_flush_log_at_trx_commit", "1")
    doubled = settings.get("innodb_doublewrite", "ON")
    findings = [
        Finding(
            f"{subject}: durability",
            flushed == "1",
            f"innodb_flush_log_at_trx_commit is {flushed}",
            "" if flushed == "1" else f"Set it to 1: {lost}.",
        ),
        Finding(
            f"{subject}: durability",
            doubled not in ("OFF", "0"),
            f"innodb_doublewrite is {doubled}",
            "" if doubled not in ("OFF", "0") else "Turn it on: a page can be torn in a crash.",
        ),
    ]
    if settings.get("log_bin", "OFF") in ("ON", "1"):
        logged = settings.get("binlog_format", "MIXED")
        findings.append(
            Finding(
                f"{subject}: binary log",
                logged != "STATEMENT",
                f"binlog_format is {logged}",
                "Set it to MIXED or ROW: the server refuses what the duties change, which is at READ COMMITTED."
                if logged == "STATEMENT"
                else "",
            )
        )
        synced = settings.get("sync_binlog", "1")
        findings.append(
            Finding(
                f"{subject}: durability",
                synced == "1",
                f"sync_binlog is {synced}",
                "" if synced == "1" else f"Set it to 1: {lost} by a replica that takes over.",
            )
        )
    return findings
