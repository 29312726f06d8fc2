"""Connects to the control database, with limits on how long anything may take."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import psycopg2
from psycopg2.extensions import connection as Connection

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.config.transport import open_to_others
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.sql.connection import (
    AFTER_REFUSAL,
    NOT_A_URL,
    bound_instants,
    lift_transaction_limit,
    read_url,
    refusal,
)
from backstop.sql.own_session import REFUSED_BY_POOLER, WHAT_TO_DO, WHY, shares_sessions

STATEMENT_LIMIT = timedelta(minutes=10)
"""Longer than promoting the largest run takes; a statement beyond it hangs."""
LOCK_LIMIT = timedelta(seconds=30)
"""Locks are held for one small transaction; a longer wait means that its holder hangs."""
DROPPED = "a connection pooler drops what Backstop sets for its sessions"
TO_THE_SERVER = "Name the server of the control database itself: Backstop sets limits and safeguards for each of its sessions."


def connect_reader(settings: Settings, connections: Connections, limit: timedelta) -> Connection:
    """A connection that only reads, each statement within `limit`: by the login of console.reader where there is one."""
    reader = settings.console.reader
    connection = connect(
        settings.model_copy(update={"control": reader}) if reader else settings,
        connections,
        connect_timeout=5,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT set_config('default_transaction_read_only', 'on', false)")
    limit_statements(connection, limit)
    return connection


def limit_statements(connection: Connection, limit: timedelta) -> None:
    """From now on a statement of this session ends after `limit`; commits."""
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, false)",
            [str(int(limit.total_seconds() * 1000))],
        )


def connect(
    settings: Settings, connections: Connections, *, connect_timeout: int = 10
) -> Connection:
    """A new connection to the control database in UTC, autocommit off; StoreUnavailable when it does not answer.

    With `require_tls` ConfigurationError when any connection that a duty may need is open to others.
    """
    if settings.require_tls:
        _require_tls(settings, connections)
    url = connections.url(settings.control)
    next_step = (
        "Restart it, or correct the connection; the next run continues where this one stopped."
    )
    try:
        if read_url(url) is None:
            raise psycopg2.ProgrammingError  # not even tried: the server's error would repeat parts of the password
        again = partial(
            psycopg2.connect,
            url,
            application_name="backstop",
            client_encoding="UTF8",
            connect_timeout=connect_timeout,
            target_session_attrs="read-write",
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
            options=(
                "-c timezone=UTC -c row_security=off"
                f" -c statement_timeout={int(STATEMENT_LIMIT.total_seconds() * 1000)}"
                f" -c lock_timeout={int(LOCK_LIMIT.total_seconds() * 1000)}"
            ),
        )
        connection: Connection = again()
        with connection.cursor() as cursor:
            cursor.execute("SHOW row_security")
            kept = cursor.fetchone() == ("off",)  # a pooler may drop what it does not know
        shared = shares_sessions(connection, again)
        if kept and not shared:
            bound_instants(connection)
            lift_transaction_limit(connection)
            return connection
        connection.close()
        why, next_step = (WHY, WHAT_TO_DO) if shared else (DROPPED, TO_THE_SERVER)
    except psycopg2.ProgrammingError:
        why = NOT_A_URL  # the driver's own text repeats the URL
    except psycopg2.OperationalError as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    if reason := refusal(why):
        raise StoreUnavailable(
            f"The control database ({settings.control}) refused the connection: {reason}.",
            unaffected="Nothing was decided or sent; stubs and logs are untouched in their own databases.",
            next_step=AFTER_REFUSAL,
        )
    if REFUSED_BY_POOLER in why:
        next_step = TO_THE_SERVER
    raise StoreUnavailable(
        f"The control database ({settings.control}) did not answer: {why}.",
        unaffected="Nothing was decided or sent; stubs and logs are untouched in their own databases.",
        next_step=next_step,
    )


def _require_tls(settings: Settings, connections: Connections) -> None:
    found = {
        ref: open_to_others(url)
        for ref, url in connections.known(settings.connection_refs()).items()
    }
    if open_ones := [f"{ref} ({why})" for ref, why in found.items() if why is not None]:
        raise ConfigurationError(
            f"Connections that others on the way could read: {'; '.join(open_ones)}.",
            unaffected="Nothing was read or changed.",
            next_step="Encrypt them as it says, or set require_tls: false in backstop.yaml.",
        )
