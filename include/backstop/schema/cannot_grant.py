"""What is said when roles and privileges could not be granted, whichever server refused."""

from __future__ import annotations

from backstop.model.errors import StoreUnavailable


def cannot_grant(role: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The roles and privileges of the {role} database could not be granted: {why}.",
        unaffected="Its tables and rows are as before.",
        next_step="Run `backstop migrate --grants` after `backstop migrate`, as the tables' owner with the right to create roles;"
        f" or have a DBA run what `backstop migrate --grants --sql --role {role}` prints (MariaDB: with --kind mariadb).",
    )
