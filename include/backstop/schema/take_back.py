"""Takes back what a role of Backstop holds on Backstop's own objects and its privileges.sql does not grant: an earlier version granted
it, or somebody did by hand. So a database that was upgraded gives its roles what a new one gives them.

PostgreSQL takes all of it, and grants in the same transaction. In MariaDB each statement commits by itself: there the grants come
first, and what is more than they is taken after them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from backstop.schema.cannot_grant import cannot_grant
from backstop.schema.revisions import IN_MARIADB, revisions, version_table, whole
from backstop.sql.named import read_sql

ROLES = (
    "backstop_app",
    "backstop_consumer",
    "backstop_duty",
    "backstop_person",
    "backstop_reader",
)
_OBJECT = re.compile(
    r"^CREATE (?:OR REPLACE )?(TABLE|VIEW|FUNCTION) (?:IF NOT EXISTS )?([a-z_]+)", re.MULTILINE
)
_GRANT = re.compile(r"GRANT (?P<what>.+) ON (?P<table>\w+) TO (?P<role>\w+)\Z", re.DOTALL)
_PRIVILEGE = re.compile(r"([A-Z]+)(?:\s*\(([^)]*)\))?")
_HELD = """
SELECT GRANTEE, TABLE_NAME, NULL, PRIVILEGE_TYPE, IS_GRANTABLE FROM information_schema.TABLE_PRIVILEGES
WHERE TABLE_SCHEMA = DATABASE()
UNION ALL
SELECT GRANTEE, TABLE_NAME, COLUMN_NAME, PRIVILEGE_TYPE, IS_GRANTABLE FROM information_schema.COLUMN_PRIVILEGES
WHERE TABLE_SCHEMA = DATABASE()"""
_Privilege = tuple[str | None, str]
"""column, or null for the whole table; what it allows there"""


def objects_of(schema: str, role: str) -> dict[str, list[str]]:
    """The names of what a schema's revisions make, by kind: TABLE (the one of its version, too), VIEW and FUNCTION."""
    found: dict[str, set[str]] = {"TABLE": {version_table(role)}, "VIEW": set(), "FUNCTION": set()}
    for kind, name in _OBJECT.findall(whole(schema)):
        found[kind].add(name)
    return {kind: sorted(names) for kind, names in found.items()}


def take_back_sql(role: str) -> str:
    """The statement for a PostgreSQL database of this role; the grants follow it in the same transaction."""
    ours = objects_of(role, role)
    return read_sql("backstop.schema", "take_back.sql").format(
        version=version_table(role),
        head=max(revisions(role)),
        roles=_listed(ROLES),
        relations=_listed(ours["TABLE"] + ours["VIEW"]),
        functions=_listed(ours["FUNCTION"]),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def take_back(cursor: Any, role: str, grants: Iterable[str]) -> None:
    """In a MariaDB database in which these statements were run: each role keeps what they grant. Raises StoreUnavailable where the login
    cannot read what roles hold.

    MariaDB takes what a role holds on a whole table together with the same of its columns. So meanwhile another role, of which it is a
    member, has what it keeps."""
    statements: dict[tuple[str, str], list[str]] = defaultdict(list)
    granted: dict[tuple[str, str], set[_Privilege]] = defaultdict(set)
    for found in filter(None, map(_GRANT.match, grants)):
        place = found["role"], found["table"]
        statements[place].append(f"GRANT {found['what']} ON {found['table']} TO {{}}")
        granted[place].update(_privileges(found["what"]))
    held = _held(cursor, objects_of(IN_MARIADB[role], role)["TABLE"])
    if any(wanted - held[place] for place, wanted in granted.items()):
        raise cannot_grant(
            role, "what the roles hold besides is kept from this login (it needs SELECT on mysql.*)"
        )
    cursor.execute("SELECT CONCAT('backstop_meanwhile_', LEFT(SHA1(DATABASE()), 16))")
    (meanwhile,) = cursor.fetchone()
    for (holder, table), privileges in held.items():
        if privileges <= granted[holder, table]:
            continue
        kept = statements[holder, table]
        cursor.execute(f"DROP ROLE IF EXISTS {meanwhile}")
        cursor.execute(f"CREATE ROLE {meanwhile}")
        for statement in kept:
            cursor.execute(statement.format(meanwhile))
        cursor.execute(f"GRANT {meanwhile} TO {holder}")
        cursor.execute(f"REVOKE GRANT OPTION ON {table} FROM {holder}")
        cursor.execute(f"REVOKE ALL PRIVILEGES ON {table} FROM {holder}")
        for statement in kept:
            cursor.execute(statement.format(holder))
    # Also one of a run that was cut off: its holders have been granted what they keep since.
    cursor.execute(f"DROP ROLE IF EXISTS {meanwhile}")


def _privileges(what: str) -> Iterable[_Privilege]:
    for privilege, columns in _PRIVILEGE.findall(what):
        for column in columns.split(",") if columns else (None,):
            yield column.strip() if column else None, privilege


def _held(cursor: Any, tables: Iterable[str]) -> dict[tuple[str, str], set[_Privilege]]:
    """By role and table, what the roles of Backstop hold on these tables; the right to hand something on is one more."""
    cursor.execute("SELECT VERSION()")
    host = "" if "MariaDB" in cursor.fetchone()[0] else "%"
    names = {f"'{name}'@'{host}'": name for name in ROLES}
    held: dict[tuple[str, str], set[_Privilege]] = defaultdict(set)
    cursor.execute(_HELD)
    for grantee, table, column, privilege, is_grantable in cursor.fetchall():
        if grantee in names and table in tables:
            held[names[grantee], table].add((column, privilege))
            if is_grantable == "YES":
                held[names[grantee], table].add((None, "GRANT OPTION"))
    return held
