"""Statements of the tests themselves, in PostgreSQL and MariaDB, each committed by itself, over connections that stay open: a new
session costs the server more than nearly every statement."""

from __future__ import annotations

import os
import threading
from typing import Any

import psycopg2

from mariadb import connect_to

_SMALL = 64 * 1024
"""Bytes of a table up to which its rows are deleted: to make new files for it and all its indexes costs more."""
_FILLED = f"""
SELECT format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid) > {_SMALL}
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    AND c.relname !~ '^backstop_.*_version$' AND pg_relation_size(c.oid) > 0
"""
_RESTARTED = """
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences
WHERE last_value IS NOT NULL
"""


class _Sessions(threading.local):
    """Of one thread: one that waits for a lock must not hold up the others."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, str], Any] = {}
        """By process, because a fork must not speak on its parent's line, and by address."""


_sessions = _Sessions()


def execute(url: str, query: str, values: Any = None) -> Any:
    """The cursor of one committed statement, or of several that are committed together."""
    key = (os.getpid(), url)
    session = _sessions.open.get(key)
    if session is not None and _is_open(session):
        try:
            return _execute(session, query, values)
        except Exception:
            if _is_open(session):
                raise
    # None so far, or one that a test has ended meanwhile.
    _sessions.open[key] = session = _open(url)
    return _execute(session, query, values)


def rows(url: str, query: str, values: Any = None) -> list[tuple[Any, ...]]:
    cursor = execute(url, query, values)
    return list(cursor.fetchall()) if cursor.description else []


def named_rows(url: str, query: str, values: Any = None) -> list[dict[str, Any]]:
    """The same, each by the names of its columns."""
    cursor = execute(url, query, values)
    if cursor.description is None:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def empty(url: str) -> None:
    """Of a PostgreSQL: every table without a row and every sequence at its start; which revision the schema has stays."""
    filled = rows(url, _FILLED)
    if large := [table for table, is_large in filled if is_large]:
        execute(url, f"TRUNCATE {', '.join(large)} CASCADE")
    if small := [table for table, is_large in filled if not is_large]:
        # No order of tables is needed then, and no trigger fires.
        words = [f"DELETE FROM {table}" for table in small]
        execute(url, "; ".join(["SET LOCAL session_replication_role = replica", *words]))
    execute(url, _RESTARTED)


def close_sessions() -> None:
    """At the end of a file, whose servers end with it."""
    for session in _sessions.open.values():
        if _is_open(session):
            session.close()
    _sessions.open.clear()


def _open(url: str) -> Any:
    if url.startswith("mysql:"):
        return connect_to(url, autocommit=True)
    session = psycopg2.connect(url)
    session.autocommit = True
    return session


def _is_open(session: Any) -> bool:
    return bool(session.open) if hasattr(session, "open") else not session.closed


def _execute(session: Any, query: str, values: Any) -> Any:
    cursor = session.cursor()
    cursor.execute(query, values)
    return cursor
