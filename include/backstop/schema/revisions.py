"""Which revisions each database role has, read from the names of its SQL files: `0001_stubs.sql` is revision
0001."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files

from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.sql.named import read_sql

ROLES = ("producer", "consumer", "control")
IN_MARIADB = {"producer": "mariadb_producer", "consumer": "mariadb_consumer"}
"""By role, the name of its tables in MariaDB, which have revisions of their own."""


@cache
def head(role: str) -> str:
    """The newest revision of a role's schema."""
    return max(revisions(role))


def revisions(role: str) -> dict[str, str]:
    """Revision -> its SQL, oldest first."""
    if role not in (*ROLES, *IN_MARIADB.values()):
        raise ConfigurationError(
            f"There is no database role {role!r}.",
            unaffected="No database was touched.",
            next_step=f"Name one of {', '.join(ROLES)}.",
        )
    named = sorted(
        entry.name
        for entry in files("backstop.schema").joinpath(role).iterdir()
        if entry.name[:4].isdigit() and entry.name.endswith(".sql")
    )
    return {name[:4]: read_sql("backstop.schema", f"{role}/{name}") for name in named}


def whole(role: str) -> str:
    """Every revision's SQL, oldest first, as one script for an empty database."""
    return "\n".join(revisions(role).values())


def version_table(role: str) -> str:
    """Where the applied revision is kept; a name of its own, so that it cannot meet a host application's."""
    return f"backstop_{role}_version"


def require_known(revision: str | None, role: str, known: Collection[str]) -> None:
    """Raises StoreUnavailable for the revision of a schema that a later version of Backstop made."""
    if revision is not None and revision not in known:
        raise StoreUnavailable(
            f"The {role} database is at revision {revision}, which this program does not know.",
            unaffected="Nothing was changed.",
            next_step="Install the version of Backstop that made it, or a later one.",
        )
