"""Refuses a connection pooler that shares the server's sessions between transactions (PgBouncer's pool_mode transaction).

Behind one, what a session sets holds for somebody else's transaction and not for the next one of ours: no limit of time, and rows
that a policy hides are missing without an error. Absence would look like evidence.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

_ROUNDS = 3
_SECONDS = 5.0
"""How long a second connection may wait for its session."""
WHY = "a connection pooler shares the server's sessions between transactions, so that what a session sets is lost"
WHAT_TO_DO = "Name the server itself, or a pooler that keeps a session for each connection (PgBouncer: pool_mode = session)."
REFUSED_BY_POOLER = "unsupported startup parameter"
"""In the error of a pooler that does not let a session's settings pass."""


def shares_sessions(connection: Connection, again: Callable[[], Connection]) -> bool:
    """Whether the next transaction may be in another session of the server. `again` opens a second connection to the same
    address; it is asked for only where a pooler stands between. The connection is left without a transaction.

    Raises psycopg2.OperationalError when the pooler gives no second session in time.
    """
    ours = _session(connection)
    if ours == connection.info.backend_pid:
        return False  # the server named it itself: nothing is between that deals with sessions
    with closing(again()) as other:
        for _ in range(_ROUNDS):
            # Between our transactions our session is free: a pooler that shares gives it to another one, or us another session.
            if _in_time(other) == ours or _session(connection) != ours:
                return True
            other.rollback()
    return False


def _session(connection: Connection) -> int:
    """The server's own number of the session that this transaction is in."""
    pid = _asked(connection)
    connection.rollback()
    return pid


def _asked(connection: Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        found: Any = cursor.fetchone()
    return int(found[0])


def _in_time(connection: Connection) -> int:
    """Of a transaction that stays open."""
    cut = threading.Timer(_SECONDS, cut_line, [connection])
    cut.daemon = True
    cut.start()
    try:
        return _asked(connection)
    finally:
        cut.cancel()


def cut_line(connection: Connection) -> None:
    """Ends whatever the connection waits for, from this side."""
    # One that was closed meanwhile has no line left.
    with (
        suppress(OSError, psycopg2.InterfaceError),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
