"""Builds the indexes of coming revisions while the tables' writers go on, before the migration's own transaction.

A migration is one transaction, and an index built inside it locks every writer out for as long as it takes. So each
`CREATE INDEX IF NOT EXISTS` of a coming revision, on a table that is there, is built CONCURRENTLY first; the transaction then
finds it and leaves it out. One that was interrupted is left behind invalid: it is dropped and built again.

A build takes as long as the table is large. It waits for whatever others do for a limited time only: an index waits for every
transaction older than itself, and a forgotten one would hold the upgrade for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg2.errors import LockNotAvailable

from backstop.model.errors import StoreUnavailable

_INDEX = re.compile(
    r"^CREATE INDEX IF NOT EXISTS (?P<name>[a-z_]+) ON (?P<table>[a-z_]+)\s(?P<rest>[^;]+);",
    re.MULTILINE,
)
_KEY = "pg_catalog.hashtextextended(%s, 1)"
_LOOK_AGAIN = 0.2
"""Seconds between two looks at whether another migration is at work: to wait inside a statement would hold a snapshot, for
which the other one's index waits."""
LOCK_SECONDS = 60.0
"""How long one wait for a lock, or for an older transaction to end, may take."""
TURN_SECONDS = 3600.0
"""How long another migration of the same database may be at work."""


@dataclass(frozen=True, slots=True)
class Index:
    """One index statement of a revision."""

    name: str
    table: str
    rest: str

    def statement(self, how: str = "") -> str:
        """The statement, with `how` after INDEX."""
        return f"CREATE INDEX {how}IF NOT EXISTS {self.name} ON {self.table} {self.rest}"


def indexes_of(sql: str) -> Iterator[Index]:
    """The indexes that a revision's SQL makes beside its tables."""
    for found in _INDEX.finditer(sql):
        yield Index(found["name"], found["table"], found["rest"].strip())


def without_indexes_there(sql: str, cursor: Any) -> str:
    """A revision's SQL without the indexes that the database has: to ask for one would lock every writer out for a moment."""
    there = "SELECT to_regclass(%s) IS NOT NULL"
    return _INDEX.sub(
        lambda found: "" if _one(cursor, there, found["name"]) else found.group(), sql
    )


def build_indexes(
    connection: Any,
    lock: str,
    sqls: list[str],
    *,
    lock_seconds: float = LOCK_SECONDS,
    turn_seconds: float = TURN_SECONDS,
) -> list[str]:
    """Builds those that are missing; returns their names. `connection`: psycopg2's, in autocommit; `lock` names the database's
    migrations, so that two of them do not build at once.

    Raises StoreUnavailable when others hold it up for longer than these seconds."""
    built: list[str] = []
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = %s", (f"{lock_seconds * 1000:.0f}ms",))
        given_up = time.monotonic() + turn_seconds
        while not _one(cursor, f"SELECT pg_catalog.pg_try_advisory_lock({_KEY})", lock):
            if time.monotonic() >= given_up:
                raise StoreUnavailable(
                    f"Another migration has been building indexes here for {turn_seconds:g} s.",
                    unaffected="Nothing was changed by this one.",
                    next_step="Wait until it has ended (pg_stat_progress_create_index), then run `backstop migrate` again.",
                )
            time.sleep(_LOOK_AGAIN)
        try:
            for index in (index for sql in sqls for index in indexes_of(sql)):
                if _one(cursor, "SELECT to_regclass(%s) IS NULL", index.table):
                    continue
                valid = _one(
                    cursor,
                    "SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s))",
                    index.name,
                )
                if valid:
                    continue
                try:
                    if valid is False:
                        cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index.name}")
                    cursor.execute(index.statement("CONCURRENTLY "))
                except LockNotAvailable:
                    raise StoreUnavailable(
                        f"The index {index.name} waited {lock_seconds:g} s for a transaction that is still open.",
                        unaffected="The schema is as it was, and the writers went on; what is there of the index is not used.",
                        next_step="End it or wait for it (pg_stat_activity, the oldest xact_start), then run `backstop migrate`"
                        " again: it rebuilds the index.",
                    ) from None
                built.append(index.name)
        finally:
            cursor.execute(f"SELECT pg_catalog.pg_advisory_unlock({_KEY})", (lock,))
    return built


def _one(cursor: Any, statement: str, value: str) -> Any:
    cursor.execute(statement, (value,))
    return cursor.fetchone()[0]
