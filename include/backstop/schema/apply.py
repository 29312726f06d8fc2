"""Executes the SQL file of one revision, inside a migration."""

from __future__ import annotations

import re

from alembic import context, op
from sqlalchemy import text

from backstop.schema.build_indexes import without_indexes_there
from backstop.schema.change_tables import without_changes_there
from backstop.schema.revisions import revisions

_COMMENT = re.compile(r"^--.*$", re.MULTILINE)


def apply(role: str, revision: str) -> None:
    """The SQL file of this role and revision, as it is."""
    _execute(revisions(role)[revision])


def apply_to_tables_in_use(role: str, revision: str) -> None:
    """The same without the changes of tables and the indexes that were made before, one by one."""
    sql = revisions(role)[revision]
    if not context.is_offline_mode():
        cursor = op.get_bind().connection.cursor()
        sql = without_changes_there(without_indexes_there(sql, cursor), cursor)
        cursor.close()
    _execute(sql)


def _execute(sql: str) -> None:
    if _COMMENT.sub("", sql).strip():
        # A colon would begin a parameter; the file has none.
        op.execute(text(sql.strip().removesuffix(";").replace(":", r"\:")))
