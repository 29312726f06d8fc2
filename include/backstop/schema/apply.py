"""Executes the SQL file of one revision, inside a migration."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from backstop.schema.revisions import revisions


def apply(role: str, revision: str) -> None:
    """The SQL file of this role and revision, as it is."""
    # A colon would begin a parameter; the file has none.
    op.execute(text(revisions(role)[revision].strip().removesuffix(";").replace(":", r"\:")))
