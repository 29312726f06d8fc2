"""Changes tables that others are at work on, one statement at a time, before the migration's own transaction.

An ALTER TABLE waits for every transaction that has touched the table, and whoever comes after it waits behind it: one reader that
leaves its transaction open would hold up all producers. So each statement waits for a second at most, gives way, lets the others
go on, and tries again. What is there already is left out, here and in the migration: also to ask for it would lock the table.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg2.errors import DuplicateColumn, DuplicateObject, LockNotAvailable

from backstop.model.errors import StoreUnavailable

_CHANGE = re.compile(r"^ALTER TABLE (?P<table>[a-z_]+)\s+(?P<what>[^;]+);[ \t]*\n?", re.MULTILINE)
_COLUMN = re.compile(r"ADD COLUMN IF NOT EXISTS (?P<name>[a-z_]+)\s")
_CONSTRAINT = re.compile(r"ADD CONSTRAINT (?P<name>[a-z_]+)\s.*NOT VALID\Z", re.DOTALL)
_DEFAULT = re.compile(r"ALTER COLUMN (?P<name>[a-z_]+) SET DEFAULT (?P<value>\d+)\Z")
WAIT_SECONDS = 1.0
"""How long a statement may wait for its lock, and hold up those who come after it."""
PAUSE_SECONDS = 1.0
"""How long the others go on before it tries again."""
PATIENCE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a table, of a kind of which a database can say whether it is there."""

    table: str
    what: str

    def question(self) -> tuple[str, tuple[str, ...]]:
        """A query that says whether it is there, and its values."""
        if found := _COLUMN.match(self.what):
            return (
                "SELECT EXISTS (SELECT 1 FROM pg_attribute"
                " WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped)",
                (self.table, found["name"]),
            )
        if found := _CONSTRAINT.match(self.what):
            return (
                "SELECT EXISTS (SELECT 1 FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s)",
                (self.table, found["name"]),
            )
        if found := _DEFAULT.match(self.what):
            return (
                "SELECT EXISTS (SELECT 1 FROM pg_attrdef d JOIN pg_attribute a ON (a.attrelid, a.attnum) = (d.adrelid, d.adnum)"
                " WHERE d.adrelid = to_regclass(%s) AND a.attname = %s AND pg_get_expr(d.adbin, d.adrelid) = %s)",
                (self.table, found["name"], found["value"]),
            )
        raise ValueError(
            f"A revision changes {self.table} in a way of which nobody can say whether it is there: {self.what}"
        )

    def is_there(self, cursor: Any) -> bool:
        cursor.execute(*self.question())
        return bool(cursor.fetchone()[0])


def changes_of(sql: str) -> Iterator[Change]:
    """The changes of tables in a revision's SQL, in their order."""
    for found in _CHANGE.finditer(sql):
        yield Change(found["table"], found["what"].strip())


def without_changes_there(sql: str, cursor: Any) -> str:
    """A revision's SQL without the changes that the database has."""
    return _CHANGE.sub(
        lambda found: (
            "" if Change(found["table"], found["what"].strip()).is_there(cursor) else found.group()
        ),
        sql,
    )


def change_tables(
    connection: Any,
    sqls: list[str],
    *,
    wait_seconds: float = WAIT_SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Makes the changes of these revisions to tables that are there. `connection`: psycopg2's, in autocommit.

    Raises StoreUnavailable when the lock could not be had for so long."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = %s", (f"{wait_seconds * 1000:.0f}ms",))
        given_up = time.monotonic() + patience_seconds
        for change in (change for sql in sqls for change in changes_of(sql)):
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (change.table,))
            if not cursor.fetchone()[0]:
                continue  # a coming revision makes the table
            while not change.is_there(cursor):
                try:
                    cursor.execute(f"ALTER TABLE {change.table} {change.what}")
                except (DuplicateColumn, DuplicateObject):
                    continue  # another migration made it in this moment
                except LockNotAvailable:
                    if time.monotonic() >= given_up:
                        raise StoreUnavailable(
                            f"The table {change.table} was in use for {patience_seconds:g} s without a moment for its change.",
                            unaffected="The writers went on, and what was changed before works with this and the earlier version.",
                            next_step="End the oldest transaction (pg_stat_activity, by xact_start), then run `backstop migrate`"
                            " again.",
                        ) from None
                    time.sleep(pause_seconds)
