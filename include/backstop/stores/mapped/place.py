"""What a script for a DBA begins with: a schema in another program's database that holds nothing of another role."""

from __future__ import annotations

from backstop.sql.named import load

_SQL = load("backstop.stores.mapped", "place.sql")


def place(schema: str) -> str:
    """Makes the schema, or refuses it, in the script's transaction."""
    return _SQL["place"].replace("{schema}", schema)
